"""The models that every family is tested with: random ones of transformers' own class, with options varied.

FAMILIES[model_type] holds `sizes`, which all models of the family share, and by name what each model adds to them. A
model may also say how it is stored (`dtype`, `shard_size`), and with which options it is exported (`export`).
"""

from dataclasses import dataclass, field
from typing import Any

import torch

VOCABULARY = 131


@dataclass(frozen=True)
class Row:
    """Random models of one family. stored, exported: options by model name, for saving it and for `export_model`."""

    sizes: dict[str, Any]
    models: dict[str, dict[str, Any]]
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    exported: dict[str, dict[str, Any]] = field(default_factory=dict)


SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
"""Sizes under the names that most families use."""

FAMILIES = {
    "llama": Row(
        sizes=SIZES | {"rms_norm_eps": 1e-5},
        models={
            "gqa": {},
            "mha": {"num_key_value_heads": 4},
            "mqa": {"num_key_value_heads": 1},
            "tied": {"tie_word_embeddings": True},
            "wide-heads": {"head_dim": 32},
            "biases": {"attention_bias": True, "mlp_bias": True},
            "large-eps": {"rms_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
            "gelu": {"hidden_act": "gelu", "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3},
            "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
            "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
            "llama3": {
                "rope_parameters": {
                    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
            "yarn": {
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
            "longrope": {
                "rope_parameters": {
                    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0,
                    "original_max_position_embeddings": 128, "short_factor": [1.0 + 0.1 * i for i in range(8)],
                    "long_factor": [2.0 + i for i in range(8)],
                },
            },
            "proportional": {
                "rope_parameters": {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            },
            # Sizes that the attention kernel does not take: rotation outside it, then all of it in primitives.
            "head-dim-8": {"head_dim": 8},
            "head-dim-12": {"hidden_size": 48},
            # As downloaded: shards, bfloat16.
            "sharded-bf16": {"num_key_value_heads": 4, "tie_word_embeddings": True},
        },
        stored={"sharded-bf16": {"dtype": torch.bfloat16, "shard_size": "40KB"}},
        exported={"longrope": {"context_length": 128}},
    ),
}  # fmt: skip
