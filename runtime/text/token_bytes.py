"""The bytes of every token of a vocabulary, which a token's name in tokenizer.json only encodes.

byte level     Ġdog, Ċ        a character stands for each byte (GPT-2, Llama 3, Qwen)
SentencePiece  ▁dog, <0x0A>   ▁ is a space, and bytes have tokens of their own (Llama 2, Gemma)
WordPiece      dog, ##s       a word begins with a space, and ## goes on (BERT)
"""

import json
import re
from typing import Any

import tokenizers

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def vocabulary_bytes(backend: tokenizers.Tokenizer) -> list[bytes]:
    """Return the bytes of each token id, special tokens spelled as their names; b"" for an id without a token."""
    parts = _decoder(backend)
    decoder = {part["type"] for part in parts}
    replaced = [(text, part["content"]) for part in parts if (text := part.get("pattern", {}).get("String"))]
    byte_level = {character: byte for byte, character in _byte_level_characters().items()}
    added = backend.get_added_tokens_decoder()

    def to_bytes(id: int) -> bytes:
        name = backend.id_to_token(id)
        if id in added or name is None:
            return (name or "").encode()
        if "ByteLevel" in decoder:
            return bytes(byte_level[character] for character in name if character in byte_level)
        if "ByteFallback" in decoder and (match := BYTE_TOKEN.fullmatch(name)):
            return bytes.fromhex(match[1])
        if "WordPiece" in decoder:
            return (name[2:] if name.startswith("##") else f" {name}").encode()
        for text, content in replaced:
            name = name.replace(text, content)
        return name.replace("▁", " ").encode()

    return [to_bytes(id) for id in range(backend.get_vocab_size(with_added_tokens=True))]


def _decoder(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """Return the parts of the decoder, or the decoder itself."""
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    return state.get("decoders", [state])


def _byte_level_characters() -> dict[int, str]:
    """Return the character of each byte: itself if it is visible in Latin-1, else one from U+0100 on. Source: GPT-2."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}
