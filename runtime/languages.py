"""How multilingual models are told which language a source is in, and which to write.

| tokenizer_class | source                     | told to write a language by                |
|-----------------|----------------------------|--------------------------------------------|
| Nllb            | language, tokens, end (a)  | the language as the first token written    |
| M2M100, MBart50 | language, tokens, end      | the language as the first token written    |
| MBart           | tokens, end, language      | the language as the decoder's first prompt |
| T5              | a prefix of words, tokens  | that prefix                                |
| Marian          | >>language<<, tokens, end  | that token, in models of several targets   |

(a) with legacy_behaviour: tokens, end, language.

Source: the tokenizers of transformers 5.23, and task_specific_params of T5's config.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Translation:
    """What a pair of languages asks for.

    before, after: tokens around those of the source; None: what the tokenizer itself puts there. words: a prefix of its
    text. first: the first token to be written. start: the prompt of the decoder, in the place of the usual one.
    """

    before: Sequence[int] | None = None
    after: Sequence[int] | None = None
    words: str = ""
    first: int | None = None
    start: int | None = None

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Token ids of a source."""
        if self.before is None or self.after is None:
            return tokenizer.encode(self.words + text)
        return [*self.before, *tokenizer.encode(text, add_special_tokens=False), *self.after]


def plan_translation(
    tokenizer: Tokenizer, generation: Mapping[str, Any], source: str | None, target: str | None, end: int
) -> Translation:
    """Find out how a model is told its languages; None for those of a model that has only one.

    source, target: codes as the model's tokenizer has them (eng_Latn, en_XX, en…). generation: the bundle's, where T5
    keeps its prefixes. end: the end token. Raises RequestError for a language that the model does not have.
    """
    kind = str(tokenizer.config.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer")
    if kind in ("Nllb", "M2M100", "MBart50", "MBart"):
        languages = _languages(tokenizer)
        before, after = _choose(languages, source, "source"), _choose(languages, target, "target")
        if kind == "MBart":
            return Translation(before=[], after=[end, before], start=after)
        if kind == "Nllb" and tokenizer.config.get("legacy_behaviour"):
            return Translation(before=[], after=[end, before], first=after)
        return Translation(before=[before], after=[end], first=after)
    prefixes = {
        tuple(name.removeprefix("translation_").split("_to_")): task["prefix"]
        for name, task in (generation.get("task_specific_params") or {}).items()
        if name.startswith("translation_") and "prefix" in task
    }
    if prefixes:
        if (source, target) not in prefixes:
            pairs = ", ".join(" → ".join(pair) for pair in prefixes)
            raise RequestError(f"this model does not translate {source} → {target}. It translates {pairs}.")
        return Translation(words=prefixes[source, target])
    targets = _marian_targets(tokenizer) if kind == "Marian" else {}
    if target is not None and targets:
        if source is not None:
            raise RequestError("this model is not told the language of a source; leave source_language out.")
        return Translation(before=[_choose(targets, target, "target")], after=[end])
    if source is not None or target is not None:
        raise RequestError("this model knows no names of languages; leave source_language and target_language out.")
    return Translation()


def _languages(tokenizer: Tokenizer) -> dict[str, int]:
    """Tokens of the languages by their codes: special tokens like eng_Latn, en_XX or __en__.

    Other tokens are none, whatever they are called: `en` is a piece of words.
    """
    added = tokenizer.backend.get_added_tokens_decoder()
    return {
        token.content.strip("_"): id
        for id, token in added.items()
        if token.special and "_" in token.content and not token.content.startswith("<")
    }


def _marian_targets(tokenizer: Tokenizer) -> dict[str, int]:
    """Tokens of the languages by their codes: all of the vocabulary that is like >>fra<<."""
    vocabulary = tokenizer.backend.get_vocab()
    return {token[2:-2]: id for token, id in vocabulary.items() if token.startswith(">>") and token.endswith("<<")}


def _choose(languages: Mapping[str, int], code: str | None, which: str) -> int:
    """The token of a language."""
    if code is not None and code in languages:
        return languages[code]
    known = sorted(languages)
    shown = ", ".join(known[:12]) + (" …" if len(known) > 12 else "")
    problem = f"this model has no language {code!r}" if code is not None else "this model has many languages"
    raise RequestError(f"{problem}; give {which}_language one of its codes: {shown or 'see its tokenizer'}.")
