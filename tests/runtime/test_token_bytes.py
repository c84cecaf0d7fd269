"""The bytes of tokens, joined, are the bytes of the text that they encode."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from edgeformer.runtime.text.token_bytes import vocabulary_bytes

TEXTS = ["The dog sat.", "é 你好 👍🏽", "a\nb\tc  d", "“quoted” ½"]


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_tokens_joined_are_the_text(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(tokenizer.vocabulary[id] for id in ids)
    assert joined.removeprefix(b" ") == text.encode()  # SentencePiece begins texts with a space


def test_special_tokens_are_spelled_as_their_names(byte_fallback):
    assert byte_fallback.vocabulary[:3] == [b"<unk>", b"<s>", b"</s>"]
    assert byte_fallback.vocabulary[3 + 0x0A] == b"\n"


def test_wordpiece_goes_on_with_hashes():
    backend = Backend(models.WordPiece({"[UNK]": 0, "dog": 1, "##s": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    assert vocabulary_bytes(backend) == [b" [UNK]", b" dog", b"s"]
    backend.decoder = None
    assert vocabulary_bytes(backend)[1] == b"dog"
