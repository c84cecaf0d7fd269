"""Long texts: as much of one is encoded as shows that it is too long, and other threads go on meanwhile.

`Tokenizer.encode` of the package `tokenizers` keeps the interpreter's lock until it is done, seconds for megabytes, and
needs some 200 bytes for a character. `encode_batch` lets go of the lock.
"""

import tokenizers

from edgeformer.errors import PromptLengthError

LONG = 4096
"""Characters from which a text is encoded without the interpreter's lock; a shorter one takes 1 ms or less."""

FIRST_CHARACTERS = 8
"""Characters for each token that is allowed, of which a long text is encoded first; English has four for a token."""

CUT_TOKENS = 64
"""Tokens that a cut through a word may add, at most."""


def encode(
    backend: tokenizers.Tokenizer, text: str, second: str | None = None, *, add_special_tokens: bool = True
) -> tokenizers.Encoding:
    """Return the encoding of a text or a pair. Of a long one, other threads run meanwhile."""
    if len(text) + len(second or "") < LONG:
        return backend.encode(text, second, add_special_tokens=add_special_tokens)
    [encoding] = backend.encode_batch(
        [text if second is None else (text, second)], add_special_tokens=add_special_tokens
    )
    return encoding


def encode_ids(backend: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Return the token ids of a text. Of a long one, other threads run meanwhile."""
    if len(text) < LONG:
        return backend.encode(text, add_special_tokens=add_special_tokens).ids
    return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


def beginning(backend: tokenizers.Tokenizer, text: str, tokens: int, *, of_end: bool = False) -> str:
    """Return a beginning of a text that has more than `tokens` tokens, or the whole text where it is not much longer.

    of_end: return its end instead. Work and memory follow from the tokens, whatever the length of the text.
    """
    length = max(LONG, FIRST_CHARACTERS * tokens)
    while length < len(text):
        part = text[-length:] if of_end else text[:length]
        if len(encode_ids(backend, part, add_special_tokens=False)) > tokens + CUT_TOKENS:
            return part
        length *= 2  # a tokenizer may take any number of spaces, or of unknown letters, for one token
    return text


def check_length(backend: tokenizers.Tokenizer, text: str, tokens: int, what: str) -> None:
    """Raise PromptLengthError for a text that is so long that it has more than `tokens` tokens without a doubt.

    what: names the text.
    """
    if len(beginning(backend, text, tokens)) < len(text):
        raise PromptLengthError(
            f"the {what} has {len(text):,} characters, which are more than {tokens} tokens, and the model takes "
            f"{tokens} at most. Shorten it or split it."
        )
