"""Make a tokenizer.json of the metadata of a GGUF file, which has a vocabulary and names the rest of the tokenizer.

llama.cpp has two kinds that decoders use: `gpt2`, merges of bytes, whose way to cut texts into words has a name, and
`llama`, the pieces of SentencePiece with their scores, whose merges follow from them. A name or a kind that is not
known here is an error: another tokenizer of the same vocabulary would give a model other tokens than it was trained on.
Sources: llama.cpp, src/llama-vocab.cpp; the tokenizer.json of models of each name.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from edgeformer.checkpoints.gguf.gguf_file import GgufFile
from edgeformer.errors import shown

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens."""

SPACE = "▁"
"""SentencePiece's letter for a space."""

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{ENDINGS}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{ENDINGS}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Words(NamedTuple):
    """How a text is cut into words before bytes are merged.

    Attributes:
        pattern: of words; None for that of GPT-2.
        digits: whether every digit is a word.
        whole: whether a word that is a token is taken before merges.
        bos: whether texts begin with a token of their own where no key says.
        composed: whether letters are composed before (NFC).
    """

    pattern: str | None = None
    digits: bool = False
    whole: bool = False
    bos: bool = False
    composed: bool = False


WORDS = {
    name: words
    for words, names in {
        Words(): ("gpt-2", "phi-2", "mpt", "olmo", "jais"),
        Words(digits=True): ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"),
        Words(QWEN2, composed=True): ("qwen2",),
        Words(QWEN2): ("deepseek-r1-qwen", "stablelm2", "megrez"),
        Words(LLAMA3, whole=True, bos=True): (
            "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2",
        ),
        Words(LLAMA3): ("dbrx", "smaug-bpe"),
        Words(TEKKEN, whole=True, bos=True): ("tekken",),
        Words(GPT4O): ("gpt-4o", "llama4"),
    }.items()
    for name in names
}  # fmt: skip
"""Ways to cut texts, by the names that llama.cpp has for them (tokenizer.ggml.pre)."""


def write_gguf_tokenizer(file: GgufFile, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into a folder. Raises ValueError for an unknown tokenizer."""
    values = _Values(file)
    kind = values.text("model")
    if kind == "gpt2":
        made, bos = _byte_level(values)
    elif kind == "llama":
        made, bos = _pieces(values, file.metadata.get("general.architecture"))
    else:
        raise ValueError(f"a tokenizer of the kind {shown(kind)} is not read from GGUF")
    _add_tokens(made, values)
    if (begins := values.flag("add_bos_token", bos)) | (ends := values.flag("add_eos_token", False)):
        made.post_processor = _template(values, begins, ends)
    made.save(str(folder / "tokenizer.json"))
    config = {f"{name}_token": values.token(name) for name in ("bos", "eos", "unk", "pad")}
    known = {name: value for name, value in config.items() if value is not None}
    content = {"tokenizer_class": "PreTrainedTokenizerFast", **known, **_templates(file)}
    (folder / "tokenizer_config.json").write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


class _Values:
    """The metadata of a tokenizer."""

    def __init__(self, file: GgufFile):
        self._metadata = file.metadata
        tokens = self.entries("tokens", str)
        if not tokens:
            raise ValueError("it has no tokens")
        self.tokens: list[str] = tokens
        self.kinds: list[int] = self.entries("token_type", int) or [NORMAL] * len(tokens)
        if len(self.kinds) != len(tokens):
            raise ValueError(f"it has {len(tokens):,} tokens and the kinds of {len(self.kinds):,}")

    def entries(self, name: str, kind: type | tuple[type, ...]) -> list[Any]:
        """Return a list, which may be absent."""
        found = self._metadata.get(f"tokenizer.ggml.{name}", [])
        if not isinstance(found, list) or not all(isinstance(each, kind) for each in found):
            raise ValueError(f"tokenizer.ggml.{name} is no list of what it must hold")
        return found

    def text(self, name: str) -> str | None:
        """Return a text, which may be absent."""
        found = self._metadata.get(f"tokenizer.ggml.{name}")
        return found if isinstance(found, str) else None

    def flag(self, name: str, otherwise: bool) -> bool:
        """Return a truth value, which may be absent."""
        found = self._metadata.get(f"tokenizer.ggml.{name}")
        return found if isinstance(found, bool) else otherwise

    def token(self, name: str) -> str | None:
        """Return the text of a special token; None where there is none."""
        key = {"unk": "unknown", "pad": "padding"}.get(name, name)
        id = self._metadata.get(f"tokenizer.ggml.{key}_token_id")
        return self.tokens[id] if isinstance(id, int) and 0 <= id < len(self.tokens) else None


def _byte_level(values: _Values) -> tuple[Tokenizer, bool]:
    """Return a tokenizer that merges bytes, and whether its texts begin with a token by default."""
    name = values.text("pre")
    if name not in WORDS:
        raise ValueError(f"the way {shown(name)} to cut texts into words (tokenizer.ggml.pre) is not known")
    words = WORDS[name]
    merges = [tuple(merge.split(" ")) for merge in values.entries("merges", str)]
    if not merges or any(len(merge) != 2 for merge in merges):
        raise ValueError("its merges are not pairs")
    vocabulary = {token: id for id, token in enumerate(values.tokens)}
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=words.whole, fuse_unk=False))
    made.normalizer = normalizers.NFC() if words.composed else None
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if words.digits else []
    if words.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(words.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.pattern is None))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    return made, words.bos


def _pieces(values: _Values, architecture: Any) -> tuple[Tokenizer, bool]:
    """Return a tokenizer of SentencePiece's pieces, whose merges are those of highest score first.

    Gemma's pieces have their order by rank, and runs of spaces are spelled as such in its files.
    """
    gemma = isinstance(architecture, str) and architecture.startswith("gemma")
    if gemma:
        values.tokens = [SPACE * len(each) if " " in each and not each.strip(" ") else each for each in values.tokens]
    scores = values.entries("scores", (int, float))
    if len(scores) != len(values.tokens):
        raise ValueError(f"it has {len(values.tokens):,} tokens and the scores of {len(scores):,}")
    ranks = [-float(id) for id in range(len(scores))] if gemma else scores
    kinds = values.kinds
    vocabulary = {token: id for id, token in enumerate(values.tokens)}
    merged = {
        token: ranks[id] for token, id in vocabulary.items() if kinds[id] in (NORMAL, USER_DEFINED, UNUSED)
    }  # fmt: skip
    unknown = next((token for token, kind in zip(values.tokens, kinds, strict=True) if kind == UNKNOWN), None)
    merges = _merges(merged, vocabulary)
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in kinds))
    replaced = normalizers.Replace(" ", SPACE)
    prefix = values.flag("add_space_prefix", True)
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replaced]) if prefix else replaced
    if gemma:
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    ends = [decoders.Strip(" ", 1, 0)] if prefix else []
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    return made, True


def _merges(scores: dict[str, float], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that make a piece, those of the highest score first."""
    found = []
    for token, score in scores.items():
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [(left, right) for left, right in halves if left in scores and right in scores]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(score, pair) for pair in known]
    found.sort(key=lambda each: each[0], reverse=True)
    return [pair for _, pair in found]


def _add_tokens(made: Tokenizer, values: _Values) -> None:
    """Add the tokens that are matched in a text before it is cut: control tokens, and those that users define."""
    spelled = {
        kind: [AddedToken(token, normalized=False, special=kind == CONTROL) for token in tokens]
        for kind in (CONTROL, USER_DEFINED)
        if (tokens := [each for each, its in zip(values.tokens, values.kinds, strict=True) if its == kind])
    }
    if special := [*spelled.get(CONTROL, []), *_unknown(values)]:
        made.add_special_tokens(special)
    runs = {SPACE * length for length in range(1, 64)}  # which merges make, too
    if own := [token for token in spelled.get(USER_DEFINED, []) if token.content not in runs]:
        made.add_tokens(own)


def _unknown(values: _Values) -> list[AddedToken]:
    return [
        AddedToken(token, normalized=False, special=True)
        for token, kind in zip(values.tokens, values.kinds, strict=True)
        if kind == UNKNOWN
    ]


def _template(values: _Values, begins: bool, ends: bool) -> processors.TemplateProcessing:
    """Return what puts tokens before and behind every text. Raises ValueError where there are no such tokens."""
    names = [name for name, added in (("bos", begins), ("eos", ends)) if added]
    tokens = {name: values.token(name) for name in names}
    if None in tokens.values():
        raise ValueError("it adds tokens to texts that it does not have")
    before = f"{tokens['bos']}:0 " if begins else ""
    pieces = {token: values.tokens.index(token) for token in tokens.values() if token is not None}
    second = before.replace(":0", ":1")
    after = [f" {tokens['eos']}:{kind}" if ends else "" for kind in (0, 1)]
    return processors.TemplateProcessing(
        single=f"{before}$A:0{after[0]}",
        pair=f"{before}$A:0{after[0]} {second}$B:1{after[1]}",
        special_tokens=list(pieces.items()),
    )


def _templates(file: GgufFile) -> dict[str, Any]:
    """Return the chat template of tokenizer_config.json: one, or several by name."""
    prefix = "tokenizer.chat_template"
    default = file.metadata.get(prefix)
    named = {
        key[len(prefix) + 1 :]: value
        for key, value in file.metadata.items()
        if key.startswith(f"{prefix}.") and isinstance(value, str)
    }
    if not isinstance(default, str):
        return {}
    if not named:
        return {"chat_template": default}
    listed = {"default": default, **named}
    return {"chat_template": [{"name": name, "template": template} for name, template in listed.items()]}
