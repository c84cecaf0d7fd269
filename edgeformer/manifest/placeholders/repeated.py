"""The placeholder of pictures of one size: a token for each state."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import CountedPlaceholder, MarkEncoder, Marks
from edgeformer.manifest.placeholders.prompt_text import PromptText


@dataclass(frozen=True, kw_only=True)
class RepeatedPlaceholder(CountedPlaceholder):
    """A placeholder of a picture in a prompt that becomes the same token, once for each of the picture's states.

    Attributes:
        token: the placeholder.
        count: states of a picture.
        text: how prompts are written; None for as they are, with the placeholder in them.
    """

    kind: Literal["repeated"] = "repeated"
    text: PromptText | None = None

    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a picture; `token` stands for each state. It is not cut into rows and columns."""
        return [self.token] * self.count

    @property
    def prompt_text(self) -> PromptText | None:
        """Return how prompts are written."""
        return self.text


@dataclass(frozen=True, kw_only=True)
class RepeatedMarks(Marks):
    """The marks of a `RepeatedPlaceholder`. text: see there."""

    text: PromptText | None = None

    @property
    def spelled(self) -> str:
        """Return the text that stands for a picture in a prompt."""
        return self.picture if self.text is None else self.text.spelled

    def placeholder(self, encoder: MarkEncoder, pictures: PictureProcessor) -> RepeatedPlaceholder:
        """Return the placeholder."""
        return RepeatedPlaceholder(token=encoder.token, count=pictures.tile_states(encoder.states), text=self.text)


PLACEHOLDER = RepeatedPlaceholder
