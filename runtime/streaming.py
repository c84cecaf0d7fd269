"""Tokens to text as they come: only whole characters, and nothing of a stop string."""

from collections.abc import Sequence

from edgeformer.runtime.tokenizer import Tokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What a decoder makes of a part of a character."""


class TextStream:
    """Assembles the text of one row.

    `push` returns what can be shown for sure: text that no later token changes, and that may not yet turn out to be the
    beginning of a stop string. Everything pushed and flushed, joined, is the decoded text up to the first stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        self._tokenizer = tokenizer
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {token for token, entry in added.items() if entry.special}
        self._stop = [text for text in stop if text]
        # Tokens are decoded behind those before them: a decoder may treat the first token of a text as no other.
        self._context: list[int] = []
        self._context_length = 0
        self._open: list[int] = []
        self._unsettled = ""  # text of the open tokens, which the next token may change
        self._held = ""  # text that is settled, but may begin a stop string
        self.stopped = False

    def push(self, token: int) -> str:
        """Take the next token; return new text to show, perhaps none. Sets `stopped` on a stop string."""
        name = self._tokenizer.backend.id_to_token(token)
        if self.stopped or name is None or token in self._special:
            return ""
        self._open.append(token)
        self._unsettled = self._tokenizer.decode(self._context + self._open)[self._context_length :]
        text = self._held + self._unsettled
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = self._unsettled = ""
            return text[: min(found)]
        if not self._unsettled or self._unsettled.endswith(INCOMPLETE) or _is_byte(name):
            return ""
        self._context, self._open = self._open, []
        self._context_length = len(self._tokenizer.decode(self._context))
        end = len(text) - self._possible_stop(text)
        self._held, self._unsettled = text[end:], ""
        return text[:end]

    def flush(self) -> str:
        """Return the rest: what was held back, and incomplete characters as U+FFFD."""
        rest = self._held + self._unsettled
        self._held = self._unsettled = ""
        return rest

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0


def _is_byte(name: str) -> bool:
    """Whether a token is one byte, as in Llama 2. Runs of them decode as one: a bad byte turns all into U+FFFD."""
    return len(name) == 6 and name.startswith("<0x") and name.endswith(">")
