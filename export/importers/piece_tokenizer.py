"""Make a tokenizer whose pieces a SentencePiece model finds, and whose ids are others: Marian, M2M100 and PLBart.

transformers reads these with SentencePiece itself and has no tokenizer.json for them. A vocabulary of Marian also has
the pieces of the target language. SentencePiece finds none of them in a source, so their names begin with MARK, which
decoding takes away. It hands over characters that it does not know as they are, though, and vocab.json may have those.

Two things differ from transformers: each piece of a run of such characters is a token where the vocabulary has it, and
the run is unknown as a whole there; and a language of M2M100 that a text spells, `__en__`, is its token.

The tokenizer of ESM has a file of residues in place of a model, and is made here, too.
"""

import re
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordLevel

MARK = "\ufdd0"
"""The beginning of the name of a piece that is only decoded: a code point that stands for no character."""

PLAIN, USER_DEFINED = 1, 4
"""Types of pieces that a text can have. Source: sentencepiece_model.proto."""

UNIGRAM, BYTE_PAIRS = 1, 2
"""Types of models. Source: the same."""


def piece_tokenizer(slow: Any, model: Any) -> Tokenizer:
    """Return the tokenizer that does what one of transformers does with SentencePiece.

    slow: of class MarianTokenizer, M2M100Tokenizer or PLBartTokenizer. model: the ModelProto that it finds the pieces
    of a source with. Raises ValueError for a vocabulary that no tokenizer.json can have.
    """
    ids: Mapping[str, int] = getattr(slow, "encoder", None) or slow.get_vocab()
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("the ids of its tokens are not 0, 1, 2 and so on")
    languages = {token: id for token, id in ids.items() if token in getattr(slow, "supported_language_codes", ())}
    added = {str(token): (ids[token], True) for token in slow.all_special_tokens if token in ids}
    added |= {str(token): (id, token.special) for id, token in slow.added_tokens_decoder.items()}
    added |= {token: (id, False) for token, id in languages.items()}
    added |= {token: (id, True) for token, id in getattr(slow, "lang_token_to_id", {}).items()}
    tokenizer = Tokenizer(_pieces(model, ids, set(added), str(slow.unk_token)))
    for token, (id, special) in sorted(added.items(), key=lambda entry: entry[1]):
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)])
        if tokenizer.token_to_id(token) != id:
            raise ValueError(f"{token} has the id {id}, and a tokenizer.json would give it another one")
    tokenizer.normalizer = _normalizer(model.normalizer_spec)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, ""), decoders.Metaspace(prepend_scheme="always")])
    around = [None if id < 0 else slow.convert_ids_to_tokens(id) for id in slow.build_inputs_with_special_tokens([-1])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[token or "$A" for token in around],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(filter(None, around))],
    )
    return tokenizer


def residue_tokenizer(slow: Any) -> Tokenizer:
    """Return the tokenizer of class EsmTokenizer: every token of the file stands by itself, wherever a text has it."""
    ids: Mapping[str, int] = slow._token_to_id
    tokenizer = Tokenizer(WordLevel(dict(ids), unk_token=str(slow.unk_token)))
    tokens = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    words = [pre_tokenizers.Split(Regex(tokens), "isolated"), pre_tokenizers.WhitespaceSplit()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    special = [str(token) for token in slow.all_special_tokens]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    around = [f"{slow.cls_token}", "$A", f"{slow.eos_token}"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=around,
        pair=[*around, "$B", around[2]],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (around[0], around[2])],
    )
    return tokenizer


def _pieces(model: Any, ids: Mapping[str, int], added: set[str], unknown: str) -> Unigram | BPE:
    """Return the model that finds pieces. added: tokens that are found before pieces are."""
    from transformers.tokenization_utils_base import generate_merges

    kind = model.trainer_spec.model_type
    scores = {each.piece: each.score for each in model.pieces if each.type in (PLAIN, USER_DEFINED)}
    characters = {name for name in scores if len(name) == 1}
    names = [
        token if token in scores or token in added or characters.isdisjoint(token) else MARK + token
        for token in sorted(ids, key=ids.__getitem__)
    ]
    if kind == UNIGRAM:
        lowest = min(scores.values())  # so that an unknown character costs as much as it does in SentencePiece
        return Unigram([(name, scores.get(name, lowest)) for name in names], unk_id=ids[unknown])
    if kind == BYTE_PAIRS:
        vocabulary = {name: id for id, name in enumerate(names)}
        found = {name: score for name, score in scores.items() if name in vocabulary}
        return BPE(vocab=vocabulary, merges=generate_merges(vocabulary, found), unk_token=unknown, fuse_unk=True)
    raise ValueError("its SentencePiece model finds neither unigrams nor byte pairs")


def _normalizer(spec: Any) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend("▁"))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
