"""Functions that tests of families with a tower of pictures or of sound share: random models, bundles, and errors."""

import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from edgeformer.export import export_model
from edgeformer.transformers_backend.float64 import computing_in_float64

SENTENCES = [
    "What is left of the circle?\n\n",
    "Look at both pictures.\nWhich is red?\n",
    "USER: a picture. ASSISTANT:",
]
VOCABULARY = 340
TEXT = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 2,
    "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 512,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip
"""A text model."""


def byte_level_tokenizer(special: Sequence[str]) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer whose first tokens are special ones; it has a token for two line breaks."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 1, special_tokens=list(special), initial_alphabet=alphabet)
    made.train_from_iterator(SENTENCES * 3, trainer)
    return made


def randomize(model: torch.nn.Module, tower_words: Sequence[str]) -> None:
    """Draw the parameters of the tower, whose names have one of some words, and add noise to norms and biases.

    transformers starts with norms of one and biases of zero, which would hide many faults.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or "norm" in name or "embed" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif any(word in name for word in tower_words):
                parameter.copy_(torch.randn_like(parameter) / parameter[0].numel() ** 0.5)


def reloaded(loader: Any, folder: Any, **options: Any) -> Any:
    """Return the module of a checkpoint in float64; its tables are computed in float64, too."""
    with computing_in_float64():
        return loader.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", **options).eval()


def saved_tokenizer(made: tokenizers.Tokenizer, special: Sequence[str], **options: Any) -> Any:
    """Return transformers' tokenizer, whose first three special tokens pad, begin and end texts."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        additional_special_tokens=list(special[3:]), **options,
    )  # fmt: skip


def exporter(
    models: Callable[[str, str], Any], folders: Any, unverified: Collection[tuple[str, str]] = ()
) -> Callable[[str, str], Path]:
    """Return a function that returns the folder of a model's bundle, each made once. folders: a factory of pytest."""

    @functools.cache
    def of(family: str, name: str) -> Path:
        folder: Path = folders.mktemp("bundles") / f"{family}-{name}"
        export_model(models(family, name).folder, folder, verify=None if (family, name) in unverified else "quick")
        return folder

    return of


def error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference of logits, a fraction of the largest logit."""
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / np.abs(expected).max())
