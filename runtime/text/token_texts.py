"""The text of each token by itself, as a stream of text needs it."""

from typing import NamedTuple

import tokenizers

from edgeformer.runtime.text.token_bytes import BYTE_TOKEN


class TokenText(NamedTuple):
    """The text of one token, decoded by itself.

    length: its characters. is_byte: whether it is one byte, as in Llama 2; in a run of them, one bad byte turns all
    into U+FFFD.
    """

    length: int
    is_byte: bool


class TokenTexts(dict[int, TokenText | None]):
    """The texts of the tokens of a vocabulary, by id, each made when it is first asked for.

    None: a special token, or an id that is none; these have no text.
    """

    def __init__(self, backend: tokenizers.Tokenizer):
        super().__init__()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._special = {token for token, entry in added.items() if entry.special}

    def __missing__(self, token: int) -> TokenText | None:
        """Make the text of a token."""
        name = self._backend.id_to_token(token)
        text = None
        if name is not None and token not in self._special:
            is_byte = BYTE_TOKEN.fullmatch(name) is not None
            text = TokenText(len(self._backend.decode([token], skip_special_tokens=True)), is_byte)
        self[token] = text
        return text
