"""Random models of the kinds that an engine serves, each exported once for all tests of the folder."""

import json

import pytest

from edgeformer.export import export_model
from edgeformer.runtime import load

VOCABULARY = 131
CONTEXT = 96
WINDOW = 8
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": CONTEXT,
    "bos_token_id": 1, "eos_token_id": 130,
}  # fmt: skip
DECODERS = {
    "windows": ("gemma2", {**TEXT, "sliding_window": WINDOW}),
    "recurrent": (
        "qwen3_5_text",
        {
            **TEXT, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
            "linear_value_head_dim": 16,
        },
    ),
}  # fmt: skip
SEQ2SEQ = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
}  # fmt: skip
TOKENS = {"decoder_start_token_id": 0, "bos_token_id": None, "eos_token_id": [1, 16, 31], "pad_token_id": 0}


@pytest.fixture(scope="package")
def bundles(make_model, tmp_path_factory, tiny_llama_bundle):
    """Return a function that gives the folder of a bundle by its kind."""
    made = {"llama": tiny_llama_bundle}

    def bundle(kind, **options):
        name = " ".join([kind, *map(str, options.values())])
        if name not in made:
            size = {"context_length": CONTEXT}
            if kind in ("embed", "llama"):
                folder, size = f"tiny-{kind}", {}
            elif kind == "seq2seq":
                folder = make_model("t5", 3, auto="AutoModelForSeq2SeqLM", **SEQ2SEQ, **TOKENS | {"eos_token_id": 1})
                (folder / "generation_config.json").write_text(json.dumps(TOKENS))
            else:
                family, sizes = DECODERS[kind]
                folder = make_model(family, 3, **sizes)
            place = tmp_path_factory.mktemp("bundles") / kind
            made[name] = export_model(folder, place, verify=None, **size, **options).path
        return made[name]

    return bundle


@pytest.fixture(scope="package")
def models(bundles):
    """Return a function that gives a loaded model by its kind."""
    loaded = {}

    def model(kind):
        if kind not in loaded:
            loaded[kind] = load(bundles(kind))
        return loaded[kind]

    return model
