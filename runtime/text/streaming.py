"""Turn tokens into text as they are generated: whole characters only, and no part of a stop string."""

from collections.abc import Mapping, Sequence

from edgeformer.runtime.text.tokenizer import Tokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""The character that a tokenizer decodes an incomplete character to."""


class TextStream:
    """The text of one row.

    spelled: texts of special tokens that are shown, by their ids; of the others there is none. A stop string that is
    exactly one special token, white space around it aside, stops at that token.

    `push` returns text that no later token can change and that cannot be the beginning of a stop string. All returned
    pieces and the one of `flush`, joined, are the decoded text up to the first stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), spelled: Mapping[int, str] | None = None):
        self._tokenizer = tokenizer
        self._spelled = spelled or {}
        wanted = {text.strip() for text in stop}
        self._stop_tokens = {id for id, text in tokenizer.special_tokens.items() if text in wanted}
        self._texts = tokenizer.token_texts
        self._stop = [text for text in stop if text]
        self._longest_stop = max(map(len, self._stop), default=0)
        # Tokens are decoded after the ones before them, because tokenizers may treat the first token differently.
        self._context: list[int] = []
        self._context_length = 0
        self._open: list[int] = []
        self._unsettled = ""  # text of self._open, which the next token may change
        self._held = ""  # settled text that may be the beginning of a stop string
        self.stopped = False

    @property
    def is_incomplete(self) -> bool:
        """Whether the last token ended within a character."""
        return bool(self._unsettled)

    def at_end(self) -> "TextStream | WholeText":
        """Return what decodes the same text at its end, for a row without tokens; stop strings need each piece."""
        return self if self._stop or self._spelled else WholeText(self._tokenizer)

    def push(self, token: int) -> str:
        """Add the next token; return new text, which may be empty. Set `stopped` at a stop string."""
        alone = self._texts[token]
        if self.stopped:
            return ""
        if alone is None:
            self.stopped = token in self._stop_tokens
            return "" if self.stopped or token not in self._spelled else self._push_spelled(self._spelled[token])
        self._open.append(token)
        # The ids are those of tokens, so they need none of the checks of `Tokenizer.decode`.
        text = self._tokenizer.backend.decode(self._context + self._open, skip_special_tokens=True)
        self._unsettled = text[self._context_length :]
        text = self._held + self._unsettled
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = self._unsettled = ""
            return text[: min(found)]
        if not self._unsettled or self._unsettled.endswith(INCOMPLETE) or alone.is_byte:
            return ""
        self._context, self._open = self._open, []
        self._context_length = alone.length if len(self._context) == 1 else len(self._tokenizer.decode(self._context))
        end = len(text) - self._possible_stop(text)
        self._held, self._unsettled = text[end:], ""
        return text[:end]

    def _push_spelled(self, text: str) -> str:
        """Return the text of a special token behind what was held back, of which nothing can change any more."""
        before = self.flush()
        self._context, self._open, self._context_length = [], [], 0
        return before + text

    def flush(self) -> str:
        """Return the rest: text that was held back, and incomplete characters as U+FFFD."""
        rest = self._held + self._unsettled
        self._held = self._unsettled = ""
        return rest

    def _possible_stop(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is a prefix of a stop string."""
        for length in range(min(self._longest_stop - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0


class WholeText:
    """The text of a row whose pieces are read nowhere, or decoded elsewhere: it is decoded once, at its end."""

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
