"""Tokens to text as they come: only whole characters, and nothing of a stop string."""

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from edgeformer.runtime.tokenizer import Tokenizer


class TextStream:
    """Assembles the text of one row.

    `push` returns what can be shown for sure: whole UTF-8 characters, and no text that may yet turn out to be the beginning
    of a stop string. Everything pushed and flushed, joined, is the decoded text up to the first stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._decoded = ""
        self._shown = 0
        self._stop = [text for text in stop if text]
        self.stopped = False

    def push(self, token: int) -> str:
        """Take the next token; return new text to show, perhaps none. Sets `stopped` on a stop string."""
        self._ids.append(token)
        self._decoded += self._decoder.step(self._tokenizer.backend, token) or ""
        return self._show(final=False)

    def flush(self) -> str:
        """Return the rest: what was held back, and incomplete characters as U+FFFD."""
        if not self.stopped:
            whole = self._tokenizer.decode(self._ids)
            if whole.startswith(self._decoded):
                self._decoded = whole
        return self._show(final=True)

    def _show(self, *, final: bool) -> str:
        if self.stopped:
            return ""
        end = len(self._decoded)
        # A stop string may begin before the new text, but not before what was already shown.
        found = [place for text in self._stop if (place := self._decoded.find(text, self._shown)) >= 0]
        if found:
            self.stopped = True
            end = min(found)
        elif not final:
            end -= self._possible_stop()
        text = self._decoded[self._shown : end]
        self._shown = end
        return text

    def _possible_stop(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        pending = self._decoded[self._shown :]
        longest = max((len(text) for text in self._stop), default=1) - 1
        for length in range(min(longest, len(pending)), 0, -1):
            if any(text.startswith(pending[-length:]) for text in self._stop):
                return length
        return 0
