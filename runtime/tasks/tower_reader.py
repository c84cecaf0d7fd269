"""Read what a tower reads, pictures or recordings, in the places of placeholders of a text: the base of such models.

text         "What is <image>?"     a placeholder for each of what comes with it
expanded     [9, 31, 31, 31, …]     as many as it has states (`placeholders`)
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import TowerTextConfig
from edgeformer.errors import PromptLengthError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.runtime.media.pictures.placeholders import check_count, expand
from edgeformer.runtime.request_values import is_list, shown
from edgeformer.runtime.sessions.session import SessionSettings
from edgeformer.runtime.steps.picture_rows import PictureGraphs
from edgeformer.runtime.steps.picture_tower import FeatureCache, Features, PromptPicture, Run, Tower
from edgeformer.runtime.tasks.model import Model, Text

FEATURE_BYTES = 256 * 2**20
"""Bytes of states that a model keeps for further questions: 380 pictures of 17 tiles of SmolVLM-256M."""

ReadMedium = tuple[PromptPicture, tuple[int, ...]]
"""A picture or a recording of a prompt, and the rows and columns of parts that its placeholder becomes."""


class TowerReader(Model):
    """A model with a tower of pictures or of sound in front of it.

    What the tower computes is kept for further questions (`features`), and found again by what it was computed of.
    """

    medium: ClassVar[str]
    """A word for one of those that the tower reads, in errors."""
    reads: ClassVar[str | None]
    """The argument of calls that has these."""

    def __init__(self, folder: Path, manifest: Manifest, settings: SessionSettings):
        super().__init__(folder, manifest, settings)
        self.features = FeatureCache(FEATURE_BYTES)
        spelled = None if self.tokenizer is None else self.tokenizer.backend.id_to_token(self.placeholder.token)
        if self.tokenizer is not None and spelled is not None:
            self.tokenizer.unsaid += (spelled,)

    @property
    def config(self) -> TowerTextConfig:
        """The config of the model."""
        assert isinstance(self.manifest.model, TowerTextConfig), "`Manifest` has checked it"
        return self.manifest.model

    @property
    def placeholder(self) -> Placeholder:
        """The placeholder in a prompt; its `token` is the placeholder."""
        assert self.manifest.placeholder is not None, "every manifest of this task has one"
        return self.manifest.placeholder

    @cached_property
    def tower_session(self) -> Any:
        """The session of the tower, opened when there is something to read."""
        return self._open_graph(self.manifest.graphs[self.config.tower_graph].file)

    @cached_property
    def picture_graphs(self) -> PictureGraphs:
        """The sessions that read what the tower computes, opened when there is something to read."""
        graphs = self.manifest.graphs
        return PictureGraphs(
            embed=self._open_graph(graphs["embed_tokens"].file),
            reader=self._open_graph(graphs[self.config.embedding_graph].file),
            token=self.placeholder.token,
            vocab_size=self.manifest.vocab_size,
        )

    def encode(
        self, text: Text, what: str = "prompt", vocab_size: int | None = None, context_length: int | None = None
    ) -> list[int]:
        """Return the token ids of a text by itself; see `Model.encode`.

        Raises RequestError, too, for a text with a placeholder.
        """
        tokens = super().encode(text, what, vocab_size, context_length)
        check_count(tokens, self.placeholder, 0)
        self._check_pictures(0)
        return tokens

    @property
    def tower(self) -> Tower:
        """The tower, and what it computed before."""
        return Tower(self._run_tower, self.features)

    def _check_pictures(self, count: int) -> None:
        """Raise RequestError for a text without pictures where it must have some."""

    def _read_prompt(
        self, prompt: Text, media: Sequence[Any], most_tokens: int, names: Sequence[str] | None
    ) -> tuple[NDArray[np.int64], list[PromptPicture], list[tuple[int, ...]]]:
        """Return a prompt with the placeholder for each state, what stands there, and the grids of these.

        The arguments, and errors, are those of `TowerTextLM.see`.
        """
        if isinstance(prompt, str) and media and self.placeholder.bare:
            prompt = self.require_tokenizer().encode(
                prompt, add_special_tokens=False, most_tokens=self.manifest.context_length
            )
        tokens = super().encode(prompt)
        check_count(tokens, self.placeholder, len(media))
        self._check_pictures(len(media))
        if names is None:
            names = [f"the {self.medium}"] if len(media) == 1 else [
                f"{self.medium} {index}" for index in range(len(media))
            ]  # fmt: skip
        found = self._read_media(tokens, media, names, most_tokens)
        read, grids = [picture for picture, _ in found], [grid for _, grid in found]
        return np.array(expand(tokens, self.placeholder, grids), np.int64), read, grids

    @abstractmethod
    def _read_media(
        self, tokens: Sequence[int], media: Sequence[Any], names: Sequence[str], most: int
    ) -> list[ReadMedium]:
        """Return what stands in the places of the placeholders of a prompt, of at most so many tokens."""

    def _check_tokens(self, tokens: int, most: int, advice: str) -> None:
        """Raise PromptLengthError for a prompt of more tokens than it may have."""
        if tokens > most:
            raise PromptLengthError(
                f"the prompt has {tokens} tokens with its {self.medium}s, and may have {most}. {advice}"
            )

    def _run_tower(self, run: Run) -> Features:
        """Return the states of a run of the tower, float32 [n, E]."""
        inputs = {name: value[None] for name, value in run.items()} if self.config.tiled else dict(run)
        [states] = self.tower_session.run([self.config.features], inputs)
        features: Features = states.reshape(-1, self.config.state_size)
        return features

    @abstractmethod
    def _is_medium(self, value: Any) -> bool:
        """Return whether a value is one of what the tower reads, and not several."""

    def _media(self, media: Any, prompts: int, single: bool) -> list[list[Any]]:
        """Return the pictures or recordings of each prompt. Raises RequestError where there is no list for each."""
        given = [[media] if self._is_medium(media) else media] if single else media
        if not is_list(given) or len(given) != prompts:
            raise RequestError(
                f"{self.reads} must be a list of {self.medium}s"
                f"{'' if single else f' for each of the {prompts} prompts'}"
                f", and it is {type(media).__name__ if not is_list(media) else f'a list of {len(media)}'}."
            )
        lists = [[each] if self._is_medium(each) else each for each in given]
        for each in lists:
            if not is_list(each):
                raise RequestError(f"{self.reads} has {shown(each)}; it must be a list of {self.medium}s.")
        return [list(each) for each in lists]
