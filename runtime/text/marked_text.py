"""The text of tokens as readers of thinking and of tool calls want it: with the special tokens that are their marks."""

from collections.abc import Mapping, Sequence

from edgeformer.runtime.text.streaming import TextStream
from edgeformer.runtime.text.tokenizer import Tokenizer


class MarkedText:
    """The text of one answer, in which some special tokens are spelled. Decoding leaves out special tokens.

    Args:
        marks: texts of the special tokens that are spelled out, by token id.
        stop: strings that end the answer.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Mapping[int, str], stop: Sequence[str] = ()):
        self._tokenizer = tokenizer
        self._marks = marks
        self._stop = stop
        self._stream = TextStream(tokenizer, stop)

    @property
    def is_incomplete(self) -> bool:
        """Whether the last token ended within a character."""
        return self._stream.is_incomplete

    def push(self, token: int) -> str:
        """Add the next token; return new text, which may be empty."""
        if token not in self._marks or self._stream.stopped:
            return self._stream.push(token)
        text = self._stream.flush()  # nothing behind a mark changes what stands before it
        self._stream = TextStream(self._tokenizer, self._stop)
        return text + self._marks[token]

    def flush(self) -> str:
        """Return the rest: text that was held back."""
        return self._stream.flush()
