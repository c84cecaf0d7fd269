"""Checkpoints as the hub has them: without a prefix, with masks and tables that are not used, with packed tensors."""

import json
import math

import pytest
import torch
import transformers
from rows import FAMILIES
from safetensors.torch import load_file, save_file
from seq2seq_rows import FAMILIES as SEQ2SEQ

from edgeformer.checkpoints.source import open_source
from edgeformer.errors import WeightsError
from edgeformer.export.reference.reference import Reference
from edgeformer.models.model_spec import model_spec_of
from edgeformer.transformers_backend.float64 import computing_in_float64

MASK = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
TABLE = torch.zeros(4)


def sinusoids(rows, width):
    """The table of M2M100 and XGLM, in float32 as transformers computes it."""
    frequencies = torch.exp(torch.arange(width // 2).float() * -(math.log(10000) / (width // 2 - 1)))
    angles = torch.arange(rows).float()[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), 1)


def padded(table, row):
    """Return a table with a row of zeros, that of the padding."""
    table[row] = 0
    return table


# By family: the prefix that names lack, and tensors that are stored in addition.
STORED = {
    "bloom": ("transformer.", {}),
    "codegen": ("", {"transformer.h.0.attn.causal_mask": MASK}),
    "gpt2": ("transformer.", {"h.0.attn.bias": MASK, "h.2.attn.masked_bias": torch.tensor(-1e4)}),
    "gpt_bigcode": ("", {"transformer.h.1.attn.bias": MASK}),
    "gpt_neox": (
        "",
        {
            "gpt_neox.layers.1.attention.bias": MASK,
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.tensor([1, 0.01]),  # of 4 in 16 elements
        },
    ),
    "gptj": ("", {"transformer.h.2.attn.bias": MASK, "transformer.h.0.attn.masked_bias": torch.tensor(-1e9)}),
    "opt": ("model.", {}),
    "qwen3_5_text": ("", {"mtp.layers.0.self_attn.q_proj.weight": TABLE, "mtp.fc.weight": TABLE}),
    "qwen3_next": ("", {"mtp.norm.weight": TABLE}),
    "xglm": ("model.", {"embed_positions.weights": padded(sinusoids(66, 64), 1)}),
}  # fmt: skip

# As above, for encoder-decoders.
STORED_PAIRS = {
    "bart": ("model.", {"encoder.version": TABLE, "decoder.version": TABLE}),
    "m2m_100": ("", {"model.encoder.embed_positions.weights": padded(sinusoids(66, 64), 1).half()}),
    "t5": ("", {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": TABLE}),
    "whisper": ("model.", {}),
}


@pytest.fixture
def make_folder(make_model):
    """Return a function that saves the first model of a family's row, with its tensors changed."""

    def make(family, change=lambda tensors: tensors):
        row = (FAMILIES | SEQ2SEQ)[family]
        auto = {"auto": row.auto} if family in SEQ2SEQ else {}
        folder = make_model(family, **auto, **(row.sizes | next(iter(row.models.values()))))
        path = folder / "model.safetensors"
        save_file({name: tensor.clone() for name, tensor in change(load_file(path)).items()}, path)
        return folder

    return make


def as_on_the_hub(prefix, beside):
    """Return tensors without the prefix and with additional ones; a BART without head has no bias of logits."""

    def change(stored):
        hub = {name.removeprefix(prefix): stored[name] for name in stored} | beside
        return {name: hub[name] for name in hub if not (prefix and name == "final_logits_bias")}

    return change


@pytest.mark.parametrize("family", [*STORED, *STORED_PAIRS])
def test_a_checkpoint_of_the_hub_holds_the_same_weights(family, make_folder):
    prefix, beside = (STORED | STORED_PAIRS)[family]
    plain = open_source(make_folder(family)).weights()
    hub = open_source(make_folder(family, as_on_the_hub(prefix, beside))).weights()
    assert plain.keys() == hub.keys()
    assert all(torch.equal(plain[name], hub[name]) for name in plain if name != "decoder.head.bias")


@pytest.mark.parametrize("family", ["bart", "marian", "mbart", "pegasus"])
def test_a_bias_of_logits_is_a_row_and_zero_where_it_is_absent(family, make_folder):
    def change(stored):
        del stored["final_logits_bias"]
        return stored

    stored = load_file(make_folder(family) / "model.safetensors")["final_logits_bias"]
    assert stored.shape == (1, 131)
    assert torch.equal(open_source(make_folder(family)).weights()["decoder.head.bias"], stored[0])
    absent = open_source(make_folder(family, change)).weights()["decoder.head.bias"]
    assert torch.equal(absent, torch.zeros(131))
    text = refusal(make_folder(family, lambda stored: stored | {"final_logits_bias": torch.zeros(2, 131)}))
    assert "misshapen: final_logits_bias is [2, 131], and the config implies [131]" in text


# By family: a tensor, and the names under which copies of it may be stored.
COPIES = {
    "bart": (
        "model.shared.weight",
        ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"],
    ),
    "gpt2": ("transformer.wte.weight", ["lm_head.weight"]),
    "mt5": ("shared.weight", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]),
    "whisper": ("model.decoder.embed_tokens.weight", ["proj_out.weight"]),
}


def first_embedding(family):
    return {"gpt2": "embedding.weight", "whisper": "decoder.embedding.weight"}.get(family, "encoder.embedding.weight")


@pytest.mark.parametrize("family", COPIES)
def test_a_tied_weight_may_be_stored_under_all_of_its_names(family, make_folder):
    tensor, copies = COPIES[family]
    plain = open_source(make_folder(family)).weights()
    full = open_source(
        make_folder(family, lambda stored: stored | {copy: stored[tensor].clone() for copy in copies})
    ).weights()
    assert plain.keys() == full.keys()
    assert all(torch.equal(plain[name], full[name]) for name in plain)


@pytest.mark.parametrize(("family", "copy"), [(family, copy) for family in COPIES for copy in COPIES[family][1]])
def test_copies_of_a_tied_weight_that_differ_are_named(family, copy, make_folder):
    tensor, _ = COPIES[family]

    def change(stored):
        stored[copy] = stored[tensor].clone()
        stored[copy][5, 7] += 1e-3
        return stored

    folder = make_folder(family, change)
    weights = open_source(folder).weights()
    name = first_embedding(family)
    assert torch.isfinite(weights[next(other for other in weights if other != name)]).all()
    for _ in range(2):
        with pytest.raises(WeightsError) as caught:
            weights[name]
        text = str(caught.value)
        assert tensor in text and copy in text, text
        assert "which differ, and by config.json the model has one matrix for both" in text
        is_head = copy.startswith(("lm_head", "proj_out"))
        advice = 'If it was trained with two, say so there ("tie_word_embeddings": false); otherwise remove the tensor'
        assert (advice if is_head else "for both. Remove the tensor that is left over") in text
    # With the change that the message proposes, the untied head is read.
    if is_head:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
        weights = open_source(folder).weights()
        head = "head.weight" if family == "gpt2" else "decoder.head.weight"
        assert torch.equal(weights.get("decoder.embedding.weight", weights[name]), weights[name])
        assert weights[head][5, 7] - weights[name][5, 7] == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("family", ["mt5", "t5", "umt5"])
def test_both_halves_read_the_decoders_table_if_it_is_the_only(family, make_folder):
    """As MADLAD-400 stores it: the decoder's table, and a head."""

    def change(stored):
        table = stored.pop("shared.weight")
        others = {name: tensor for name, tensor in stored.items() if "embed_tokens" not in name}
        return others | {"decoder.embed_tokens.weight": table, "lm_head.weight": table if family == "t5" else table * 2}

    folder = make_folder(family, change)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": family == "t5"}
    (folder / "config.json").write_text(json.dumps(config))
    weights = open_source(folder).weights()
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    tables = {half: getattr(theirs, half).embed_tokens.weight for half in ("encoder", "decoder")}
    assert torch.equal(weights["encoder.embedding.weight"], tables["encoder"])
    assert torch.equal(tables["encoder"], tables["decoder"])
    head = weights.get("decoder.head.weight", weights["encoder.embedding.weight"])
    assert torch.equal(head, theirs.lm_head.weight)


def refusal(folder):
    with pytest.raises(WeightsError) as caught:
        open_source(folder).weights()
    return str(caught.value)


def test_a_buffer_of_another_name_is_not_ignored(make_folder):
    text = refusal(make_folder("gpt2", lambda stored: stored | {"transformer.h.0.attn.scale": TABLE}))
    assert "unexpected: transformer.h.0.attn.scale" in text


def test_packed_and_transposed_tensors_have_their_stored_names(make_folder):
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


# By family: a tensor that the config determines, values that are other ones, and what the error says.
DIFFERENT = {
    "gpt2": ("transformer.h.1.attn.bias", MASK.flip(2), "is neither a causal mask nor one of the window of a layer"),
    "gpt_neox": ("gpt_neox.layers.1.attention.masked_bias", torch.tensor(0.0), "is not one number below -10000"),
    "llama": ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8), "does not hold the frequencies that"),
    "m2m_100": ("model.encoder.embed_positions.weights", sinusoids(66, 64) * 1.01, "differs from sines and cosines by"),
    "xglm": ("model.embed_positions.weights", sinusoids(66, 64).flip(0), "differs from sines and cosines by"),
}  # fmt: skip


@pytest.mark.parametrize("family", DIFFERENT)
def test_a_table_that_the_config_determines_must_be_that_one(family, make_folder):
    name, values, words = DIFFERENT[family]
    text = refusal(make_folder(family, lambda stored: stored | {name: values}))
    assert f"different: {name} {words}" in text


def test_a_shared_embedding_that_differs_is_not_left_out(make_folder):
    def change(stored):
        shared = stored["model.shared.weight"]
        copies = {f"model.{half}.embed_tokens.weight": shared.clone() for half in ("encoder", "decoder")}
        shared[5, 7] += 1e-3
        return stored | copies

    weights = open_source(make_folder("bart", change)).weights()
    with pytest.raises(WeightsError, match="model.shared.weight, which differ"):
        weights["encoder.embedding.weight"]


@pytest.mark.parametrize("halves", [("encoder", "decoder"), ("encoder",), ()])
@pytest.mark.parametrize("family", ["marian", "pegasus"])
def test_stored_positions_are_read_and_absent_ones_computed(family, halves, make_folder):
    def change(stored):
        kept = {name: tensor for name, tensor in stored.items() if "embed_positions" not in name}
        generator = torch.Generator().manual_seed(1)
        tables = {f"model.{half}.embed_positions.weight": torch.randn(64, 64, generator=generator) for half in halves}
        return kept | tables

    folder = make_folder(family, change)
    source = open_source(folder)
    reference, ids = Reference(model_spec_of(source.config), source.weights()), torch.arange(3, 24).reshape(3, 7)
    with reference.loaded():
        ours, _ = reference.module.encode(ids, torch.ones_like(ids))
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    with torch.no_grad(), computing_in_float64():
        expected = theirs.get_encoder()(input_ids=ids).last_hidden_state
    # Computed tables are rounded to float32 by transformers.
    assert (ours - expected).abs().max() <= (1e-12 if "encoder" in halves else 1e-6) * expected.abs().max()
    stored = {half for half in ("encoder", "decoder") if f"{half}.position_embedding.weight" in source.weights()}
    assert stored == set(halves)
