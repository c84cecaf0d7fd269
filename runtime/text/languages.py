"""Tell multilingual models the language of a source and the language to translate into.

| tokenizer_class | source                     | target language                            |
|-----------------|----------------------------|--------------------------------------------|
| Nllb            | language, tokens, end (a)  | forced as the first new token              |
| M2M100, MBart50 | language, tokens, end      | forced as the first new token              |
| MBart           | tokens, end, language      | the decoder's prompt                       |
| T5              | a prefix of words, tokens  | in that prefix                             |
| Marian          | >>language<<, tokens, end  | that token, in models of several targets   |

(a) with legacy_behaviour: tokens, end, language.

Source: the tokenizers of transformers 5.23, and task_specific_params of T5's config.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Translation:
    """How a source is encoded, and how the decoder starts, for a pair of languages.

    Attributes:
        before, after: tokens around those of the source; None for those that the tokenizer adds.
        words: a prefix of the source's text.
        first: the first new token, forced.
        start: the decoder's prompt; None for the model's start token.
    """

    before: Sequence[int] | None = None
    after: Sequence[int] | None = None
    words: str = ""
    first: int | None = None
    start: int | None = None

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Return the token ids of a source."""
        if self.before is None or self.after is None:
            return tokenizer.encode(self.words + text)
        return [*self.before, *tokenizer.encode(text, add_special_tokens=False), *self.after]


def plan_translation(
    tokenizer: Tokenizer, generation: Mapping[str, Any], source: str | None, target: str | None, end: int
) -> Translation:
    """Return how a model is told its languages, by its tokenizer.

    source, target: codes as the model's tokenizer has them (eng_Latn, en_XX, en…); None for a model of one pair of
    languages. generation: of the manifest; T5 keeps its prefixes there. end: the end token. Raises RequestError for a
    language that the model does not have, and for one that is missing.
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
            raise RequestError("this model takes no language of the source; leave source_language out.")
        return Translation(before=[_choose(targets, target, "target")], after=[end])
    if source is not None or target is not None:
        raise RequestError("this model takes no languages; leave source_language and target_language out.")
    return Translation()


def _languages(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the tokens of the languages by their codes: special tokens like eng_Latn, en_XX or __en__.

    A token that is not special is not a language, whatever its name: `en` is a piece of words.
    """
    added = tokenizer.backend.get_added_tokens_decoder()
    return {
        token.content.strip("_"): id
        for id, token in added.items()
        if token.special and "_" in token.content and not token.content.startswith("<")
    }


def _marian_targets(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the tokens of the target languages by their codes: those of the vocabulary like >>fra<<."""
    vocabulary = tokenizer.backend.get_vocab()
    return {token[2:-2]: id for token, id in vocabulary.items() if token.startswith(">>") and token.endswith("<<")}


def _choose(languages: Mapping[str, int], code: str | None, which: str) -> int:
    """Return the token of a language; which: `source` or `target`. Raises RequestError for an unknown code."""
    if code is not None and code in languages:
        return languages[code]
    known = sorted(languages)
    shown = ", ".join(known[:12]) + (" …" if len(known) > 12 else "")
    problem = f"this model has no language {code!r}" if code is not None else "this model has many languages"
    raise RequestError(f"{problem}; give {which}_language one of its codes: {shown or 'see its tokenizer'}.")
