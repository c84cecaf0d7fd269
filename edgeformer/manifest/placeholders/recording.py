"""The placeholder of recordings: a token for each state, and one in front of them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.manifest.placeholders.placeholder import MarkEncoder, Marks, Placeholder


@dataclass(frozen=True, kw_only=True)
class RecordingPlaceholder(Placeholder):
    """A placeholder of a recording in a prompt that becomes the same token, once for each state of all its windows.

    Attributes:
        token: the placeholder.
        start: token in front of them; None where there is none.
    """

    medium: ClassVar[str] = "recording"
    kind: Literal["recording"] = "recording"
    start: int | None = None

    def expanded(self, rows: int, columns: int, *more: int) -> list[int]:
        """Return the tokens of a recording of so many windows, and so many states of each."""
        return [*([] if self.start is None else [self.start]), *[self.token] * (rows * columns)]


@dataclass(frozen=True, kw_only=True)
class RecordingMarks(Marks):
    """The marks of a `RecordingPlaceholder`."""

    start: str | None = None

    def placeholder(self, encoder: MarkEncoder, pictures: object = None) -> RecordingPlaceholder:
        """Return the placeholder, which is the same for all processors."""
        if self.start is None:
            return RecordingPlaceholder(token=encoder.token)
        encoder.check_alike(self.picture, self.start, self.picture)
        return RecordingPlaceholder(token=encoder.token, start=encoder.special(self.start))


PLACEHOLDER = RecordingPlaceholder
