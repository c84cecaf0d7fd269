"""Train byte-level BPE tokenizers on generated texts."""

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def train_tokenizer(texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str]) -> Tokenizer:
    """Train a tokenizer of exactly vocab_size tokens; every byte has a token, so any text can be encoded.

    Each digit is one token, so that digits stay aligned for arithmetic. Special tokens get the first ids. Raises
    ValueError if the texts have too few different words for so many tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the texts yield {tokenizer.get_vocab_size()} tokens instead of {vocab_size}; give more texts"
        )
    return tokenizer


def tokenizer_config(**special_tokens: Any) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special_tokens,
        "clean_up_tokenization_spaces": False,
    }
