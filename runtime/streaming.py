"""Turn tokens into text as they are generated: whole characters only, and no part of a stop string."""

from collections.abc import Sequence

from edgeformer.runtime.tokenizer import Tokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""The character that a tokenizer decodes an incomplete character to."""


class TextStream:
    """The text of one row.

    `push` returns text that no later token can change and that cannot be the beginning of a stop string. All returned
    pieces and the one of `flush`, joined, are the decoded text up to the first stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        self._tokenizer = tokenizer
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {token for token, entry in added.items() if entry.special}
        self._stop = [text for text in stop if text]
        # Tokens are decoded after the ones before them, because tokenizers may treat the first token differently.
        self._context: list[int] = []
        self._context_length = 0
        self._open: list[int] = []
        self._unsettled = ""  # text of self._open, which the next token may change
        self._held = ""  # settled text that may be the beginning of a stop string
        self.stopped = False

    def at_end(self) -> "TextStream | WholeText":
        """Return what decodes the same text at its end, for a row without tokens; stop strings need each piece."""
        return self if self._stop else WholeText(self._tokenizer)

    def push(self, token: int) -> str:
        """Add the next token; return new text, which may be empty. Set `stopped` at a stop string."""
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
        """Return the rest: text that was held back, and incomplete characters as U+FFFD."""
        rest = self._held + self._unsettled
        self._held = self._unsettled = ""
        return rest

    def _possible_stop(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is a prefix of a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0


class WholeText:
    """The text of a row whose pieces nobody reads: it is decoded once, at its end."""

    stopped = False

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._tokens: list[int] = []

    def push(self, token: int) -> str:
        """Add the next token; return no text."""
        self._tokens.append(token)
        return ""

    def flush(self) -> str:
        """Return the text."""
        return self._tokenizer.decode(self._tokens)


def _is_byte(name: str) -> bool:
    """Return whether a token is one byte, as in Llama 2; in a run of them, one bad byte turns all into U+FFFD."""
    return len(name) == 6 and name.startswith("<0x") and name.endswith(">")
