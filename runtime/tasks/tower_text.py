"""Generate text about what a tower reads, pictures or recordings: the base of the classes that have one in front.

prompt      "What is <image>?"     a placeholder for each of what comes with it
expanded    [9, 31, 31, 31, …]     as many as it has states (`placeholders`)
numbered    [9, 2⁶¹ + …, …]        by which prefixes are found again (`picture_rows`)
"""

from collections.abc import Sequence
from typing import Any

from edgeformer.config import PictureTextConfig
from edgeformer.errors import RequestError
from edgeformer.runtime.media.pictures.positions import picture_spans
from edgeformer.runtime.steps.picture_rows import PictureRows
from edgeformer.runtime.tasks.causal_lm import CausalLM, SeenPrompt
from edgeformer.runtime.tasks.model import Text
from edgeformer.runtime.tasks.tower_reader import TowerReader


class TowerTextLM(TowerReader, CausalLM):
    """A decoder-only language model with a tower of pictures or of sound in front of it."""

    @property
    def config(self) -> PictureTextConfig:
        """The config of the model."""
        assert isinstance(self.manifest.model, PictureTextConfig), "`Manifest` has checked it"
        return self.manifest.model

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
        shown, read, grids = self._read_prompt(prompt, media, most_tokens or self.manifest.context_length - 1, names)
        if not read:
            return SeenPrompt(shown.tolist(), shown.tolist(), None)
        places = [(rows, columns) for rows, columns, *_ in grids]
        spans = [] if self.config.axes is None else picture_spans(shown, self.placeholder.token, places)
        pictures = PictureRows(self.picture_graphs, shown, read, whole=self.whole_prompts, spans=spans)
        return SeenPrompt(pictures.tokens.tolist(), shown.tolist(), pictures)

    def _seen(self, prompts: Sequence[Any], media: Any, single: bool) -> list[SeenPrompt]:
        """Return prompts with their pictures or recordings."""
        lists = self._media(media, len(prompts), single)
        return [self.see(prompt, each) for prompt, each in zip(prompts, lists, strict=True)]
