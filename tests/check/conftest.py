"""Fixtures: bundles of every kind, exported once, and copies of a bundle with one fault."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from edits import Edit

from edgeformer.export import export_model

# tools/verification/client_programs runs the clients; the folders of tools/ are packages.
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

SIZES = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 130,
}  # fmt: skip
FALCON = {"vocab_size": 131, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "eos_token_id": 130}
GPT2 = {
    "vocab_size": 131, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64, "eos_token_id": 130,
    "tie_word_embeddings": False,
}  # fmt: skip
BERT = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
GEMMA2 = SIZES | {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16, "tie_word_embeddings": False}
LFM2 = SIZES | {
    "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False,
    "tie_word_embeddings": False,
}  # fmt: skip

# Models to export: the model_type, its config, options of the export.
KINDS = {
    "llama": ("llama", SIZES, {}),
    "qwen3": ("qwen3", SIZES | {"head_dim": 32}, {}),
    "gemma2": ("gemma2", GEMMA2, {}),
    "gpt2": ("gpt2", GPT2, {}),
    "falcon": ("falcon", FALCON | {"multi_query": True, "new_decoder_architecture": False}, {}),
    "static": ("llama", SIZES, {"ops": "standard", "cache": "static"}),
    "dynamic": ("llama", SIZES, {"ops": "portable", "functions": True}),
    "int4": ("llama", SIZES, {"precision": "int4"}),
    "bf16": ("llama", SIZES, {"precision": "bf16"}),
    "int8 cache": ("llama", SIZES, {"cache_precision": "int8"}),
    "lfm2": ("lfm2", LFM2, {}),
    "bert": ("bert", BERT, {}),
    "answers": ("bert", BERT, {}),
}

ENCODERS = {"bert": "AutoModelForMaskedLM", "answers": "AutoModelForQuestionAnswering"}
"""The classes of encoders, by names of models."""


@pytest.fixture(scope="session")
def bundles(make_model, tmp_path_factory):
    """Read-only: copy one before changing it."""
    place, checkpoints, made = tmp_path_factory.mktemp("bundles"), {}, {}
    for name, (family, config, options) in KINDS.items():
        key = (family, str(config), name == "answers")
        if key not in checkpoints:
            auto = ENCODERS.get(name, "AutoModelForCausalLM")
            checkpoints[key] = make_model(family, 5, auto=auto, **config)
        made[name] = export_model(checkpoints[key], place / name.replace(" ", "_"), verify=None, **options).path
    return made


@pytest.fixture(scope="session")
def talker(tiny_llama_bundle):
    """The preset with its tokenizer. Read-only."""
    return tiny_llama_bundle


@pytest.fixture(scope="session")
def places():
    from verification.client_programs.client import EXAMPLES, Places

    modules = os.environ.get("EDGEFORMER_NODE_MODULES", EXAMPLES / "node" / "node_modules")
    return Places(node_modules=Path(modules))


@pytest.fixture
def spoil(tmp_path):
    """Return a function that copies a bundle, puts a fault into the copy, and returns its folder."""

    def make(bundle, change):
        folder = shutil.copytree(bundle, tmp_path / "spoilt", dirs_exist_ok=True)
        change(Edit(folder))
        return folder

    return make
