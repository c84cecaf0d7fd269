"""Generate text about what a tower reads, pictures or recordings: the base of the classes that have one in front.

prompt      "What is <image>?"     a placeholder for each of what comes with it
expanded    [9, 31, 31, 31, …]     as many as it has states (`placeholders`)
numbered    [9, 2⁶¹ + …, …]        by which prefixes are found again (`picture_rows`)
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeformer.config import PictureTextConfig
from edgeformer.errors import PromptLengthError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.runtime.media.pictures.placeholders import check_count, expand
from edgeformer.runtime.media.pictures.positions import picture_spans
from edgeformer.runtime.request_values import is_list, shown
from edgeformer.runtime.sessions.session import SessionSettings
from edgeformer.runtime.steps.picture_rows import PictureGraphs, PictureRows
from edgeformer.runtime.steps.picture_tower import FeatureCache, Features, PromptPicture, Run, Tower
from edgeformer.runtime.tasks.causal_lm import CausalLM, SeenPrompt
from edgeformer.runtime.tasks.model import Text

FEATURE_BYTES = 256 * 2**20
"""Bytes of states that a model keeps for further questions: 380 pictures of 17 tiles of SmolVLM-256M."""

ReadMedium = tuple[PromptPicture, tuple[int, ...]]
"""A picture or a recording of a prompt, and the rows and columns of parts that its placeholder becomes."""


class TowerTextLM(CausalLM):
    """A decoder-only language model with a tower of pictures or of sound in front of it.

    What the tower computes is kept for further questions (`features`), and found again by what it was computed of.
    """

    medium: ClassVar[str]
    """A word for one of those that the tower reads, in errors."""

    def __init__(self, folder: Path, manifest: Manifest, settings: SessionSettings):
        super().__init__(folder, manifest, settings)
        self.features = FeatureCache(FEATURE_BYTES)
        spelled = None if self.tokenizer is None else self.tokenizer.backend.id_to_token(self.placeholder.token)
        if self.tokenizer is not None and spelled is not None:
            self.tokenizer.unsaid += (spelled,)

    @property
    def config(self) -> PictureTextConfig:
        """The config of the model."""
        assert isinstance(self.manifest.model, PictureTextConfig), "`Manifest` has checked it"
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
            decoder=self._open_graph(graphs["embedding_decoder"].file),
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

    @property
    def whole_prompts(self) -> bool:
        """Whether all of a prompt attends both ways, text and pictures."""
        return self.config.bidirectional == "prompt"

    def _check_pictures(self, count: int) -> None:
        """Raise RequestError for a prompt without pictures where these are what a prompt is about."""
        if self.whole_prompts and not count:
            raise RequestError("this model reads prompts with a picture, as it was trained; give it one.")

    def see(
        self,
        prompt: Text,
        media: Sequence[Any],
        *,
        most_tokens: int | None = None,
        names: Sequence[str] | None = None,
    ) -> SeenPrompt:
        """Return the prompt of a text, or of its ids, with pictures or recordings in the places of its placeholders.

        They are decoded; the tower reads them when the prompt is run. most_tokens: of the prompt; None for what the
        context has room for. Sizes of pictures are known from headers, so what is too long is not decoded. names: of
        each, in errors.

        Raises RequestError unless there is a placeholder for each, and for what cannot be read, and PromptLengthError
        for a prompt that is too long.
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
        found = self._read_media(tokens, media, names, most_tokens or self.manifest.context_length - 1)
        read, grids = [picture for picture, _ in found], [grid for _, grid in found]
        shown = np.array(expand(tokens, self.placeholder, grids), np.int64)
        if not read:
            return SeenPrompt(shown.tolist(), shown.tolist(), None)
        places = [(rows, columns) for rows, columns, *_ in grids]
        spans = [] if self.config.axes is None else picture_spans(shown, self.placeholder.token, places)
        pictures = PictureRows(self.picture_graphs, shown, read, whole=self.whole_prompts, spans=spans)
        return SeenPrompt(pictures.tokens.tolist(), shown.tolist(), pictures)

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

    def _seen(self, prompts: Sequence[Any], media: Any, single: bool) -> list[SeenPrompt]:
        """Return prompts with their pictures or recordings."""
        lists = self._media(media, len(prompts), single)
        return [self.see(prompt, each) for prompt, each in zip(prompts, lists, strict=True)]

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
