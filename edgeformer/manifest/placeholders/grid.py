"""The placeholder of pictures of any size: a token for each square of patches, as Qwen2-VL and later have it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgeformer.errors import RequestError
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import MarkEncoder, Marks, Placeholder


@dataclass(frozen=True, kw_only=True)
class GridPlaceholder(Placeholder):
    """A placeholder that becomes the same token, once for each square of a picture of any size.

    Attributes:
        token: the placeholder.
        video, sound: the placeholders of a video and of a recording, which are not read; None where there is none.
        start, end: tokens before and behind a picture; None where it has none.
    """

    kind: Literal["grid"] = "grid"
    video: int | None = None
    sound: int | None = None
    start: int | None = None
    end: int | None = None

    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a picture of so many squares; `token` stands for each state."""
        marks = ([] if each is None else [each] for each in (self.start, self.end))
        start, end = marks
        return [*start, *[self.token] * (rows * columns), *end]

    def check_prompt(self, tokens: Sequence[int]) -> None:
        """Raise RequestError for a prompt with a placeholder of a video or a recording."""
        if self.sound in tokens:
            raise RequestError(
                f"the prompt has a placeholder of a recording (token {self.sound}), and recordings are not heard: the "
                "part of the model that hears was left out."
            )
        if self.video in tokens:
            raise RequestError(
                f"the prompt has a placeholder of a video (token {self.video}), and videos are not read. Give "
                "frames of it as pictures."
            )


@dataclass(frozen=True, kw_only=True)
class GridMarks(Marks):
    """The marks of a `GridPlaceholder`."""

    start: str | None = None
    end: str | None = None

    def placeholder(self, encoder: MarkEncoder, pictures: PictureProcessor) -> GridPlaceholder:
        """Return the placeholder."""
        start, end = (None if each is None else encoder.special(each) for each in (self.start, self.end))
        if self.start is not None and self.end is not None:
            encoder.check_alike(self.picture, self.start, self.end)
        return GridPlaceholder(token=encoder.token, video=encoder.video, sound=encoder.sound, start=start, end=end)


PLACEHOLDER = GridPlaceholder
