"""Checkpoints as the hub has them: without a prefix, with masks and tables that carry nothing, with packed tensors."""

import pytest
import torch
from rows import FAMILIES
from safetensors.torch import load_file, save_file

from edgeformer.errors import WeightsError
from edgeformer.source import open_source

MASK = torch.ones(1, 1, 4, 4, dtype=torch.bool)
TABLE = torch.zeros(4)

# By family: what is left out before every name, and what is stored beside the weights.
STORED = {
    "bloom": ("transformer.", {}),
    "codegen": ("", {"transformer.h.0.attn.causal_mask": MASK}),
    "gpt2": ("transformer.", {"h.0.attn.bias": MASK, "h.2.attn.masked_bias": torch.tensor(-1e4)}),
    "gpt_bigcode": ("", {"transformer.h.1.attn.bias": MASK}),
    "gpt_neox": (
        "", {"gpt_neox.layers.1.attention.bias": MASK, "gpt_neox.layers.0.attention.rotary_emb.inv_freq": TABLE},
    ),
    "gptj": ("", {"transformer.h.2.attn.bias": MASK, "transformer.h.0.attn.masked_bias": torch.tensor(-1e9)}),
    "opt": ("model.", {}),
}  # fmt: skip


@pytest.fixture
def make_folder(make_model):
    """Return a function that saves the first model of a family's row, with its tensors changed."""

    def make(family, change=lambda tensors: tensors):
        row = FAMILIES[family]
        folder = make_model(family, **(row.sizes | next(iter(row.models.values()))))
        path = folder / "model.safetensors"
        save_file(change(load_file(path)), path)
        return folder

    return make


@pytest.mark.parametrize("family", STORED)
def test_a_checkpoint_of_the_hub_holds_the_same_weights(family, make_folder):
    prefix, beside = STORED[family]
    plain = open_source(make_folder(family)).weights()
    hub = open_source(
        make_folder(family, lambda stored: {name.removeprefix(prefix): stored[name] for name in stored} | beside)
    ).weights()
    assert plain.keys() == hub.keys()
    assert all(torch.equal(plain[name], hub[name]) for name in plain)


def refusal(folder):
    with pytest.raises(WeightsError) as caught:
        open_source(folder).weights()
    return str(caught.value)


def test_a_buffer_of_another_name_is_not_ignored(make_folder):
    text = refusal(make_folder("gpt2", lambda stored: stored | {"transformer.h.0.attn.scale": TABLE}))
    assert "unexpected: transformer.h.0.attn.scale" in text


def test_packed_and_transposed_tensors_are_named_as_they_are_stored(make_folder):
    def change(stored):
        del stored["transformer.h.0.attn.c_attn.bias"]
        stored["transformer.h.1.attn.c_attn.weight"] = torch.zeros(192, 64)
        return stored

    text = refusal(make_folder("gpt2", change))
    assert "missing: transformer.h.0.attn.c_attn.bias [192]" in text
    assert "misshapen: transformer.h.1.attn.c_attn.weight is [192, 64], and the config implies [64, 192]" in text


def test_of_two_names_the_one_that_is_stored_is_meant(make_folder):
    weights = open_source(make_folder("falcon")).weights()
    assert "blocks.0.attention_norm.weight" in weights

    def change(stored):
        return {name.replace(".1.input_layernorm", ".1.norm"): tensor for name, tensor in stored.items()}

    text = refusal(make_folder("falcon", change))
    assert "missing: transformer.h.1.input_layernorm.weight [64]" in text
    assert "unexpected: transformer.h.1.norm.weight" in text
