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
        video: the placeholder of a video, which is not read; None where there is none.
    """

    kind: Literal["grid"] = "grid"
    video: int | None = None

    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a picture of so many squares; `token` stands for each state."""
        return [self.token] * (rows * columns)

    def check_prompt(self, tokens: Sequence[int]) -> None:
        """Raise RequestError for a prompt with a placeholder of a video."""
        if self.video in tokens:
            raise RequestError(
                f"the prompt has a placeholder of a video (token {self.video}), and videos are not read. Give "
                "frames of it as pictures."
            )


@dataclass(frozen=True, kw_only=True)
class GridMarks(Marks):
    """The marks of a `GridPlaceholder`."""

    def placeholder(self, encoder: MarkEncoder, pictures: PictureProcessor) -> GridPlaceholder:
        """Return the placeholder."""
        return GridPlaceholder(token=encoder.token, video=encoder.video)


PLACEHOLDER = GridPlaceholder
