"""A merged adapter makes the weights with which PEFT computes, in float64, however the weights are stored."""

import json
import shutil

import pytest
import tokenizers
import torch
from lora.peft_adapters import adapted_outputs, make_adapter
from safetensors.torch import load_file, save_file

from edgeformer.checkpoints.merged_source import merge_adapter
from edgeformer.checkpoints.source import open_source
from edgeformer.errors import ConfigError, ExportError, WeightsError
from edgeformer.export import export_model, verify
from edgeformer.export.parity import find_checkpoint
from edgeformer.export.reference.reference import Reference
from edgeformer.lora.adapter_tensors import LoraAdapter
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import load

CAUSAL, ENCODER, SEQ2SEQ = "AutoModelForCausalLM", "AutoModel", "AutoModelForSeq2SeqLM"
SIZES = {
    "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
MHA = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
MODELS = {
    "llama": (CAUSAL, SIZES),
    "tied": (CAUSAL, SIZES | {"tie_word_embeddings": True}),
    "gpt2": (CAUSAL, {"vocab_size": 67, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "phi3": (CAUSAL, SIZES | {"pad_token_id": 0}),
    "gpt_neox": (CAUSAL, MHA),
    "bloom": (CAUSAL, {"vocab_size": 67, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "qwen2": (CAUSAL, SIZES),
    "bert": (ENCODER, MHA),
    "t5": (SEQ2SEQ, {"vocab_size": 67, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}),
}
TOLERANCE = 1e-9
"""Largest difference of an output over the largest: constants that BLOOM rounds make 1e-10, sums in float64 1e-14."""

ADAPTERS = [
    ("llama", "query-value", {"target_modules": ["q_proj", "v_proj"]}),
    ("llama", "rslora", {"target_modules": "all-linear", "use_rslora": True}),
    (
        "llama",
        "patterns",
        {
            "target_modules": r".*layers\.\d+\.(self_attn\.[qko]_proj|mlp\.down_proj)",
            "rank_pattern": {"down_proj": 7, r"layers\.1\.self_attn\.q_proj": 2},
            "alpha_pattern": {"o_proj": 1.5},
        },
    ),
    ("llama", "one-layer", {"target_modules": ["gate_proj", "up_proj"], "layers_to_transform": [1]}),
    ("llama", "dora", {"target_modules": ["q_proj", "down_proj"], "use_dora": True}),
    ("llama", "saved-norms", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "input_layernorm"]}),
    ("tied", "layers", {"target_modules": ["q_proj"]}),
    ("tied", "embedding", {"target_modules": ["embed_tokens", "v_proj"]}),
    ("tied", "head", {"target_modules": ["lm_head"]}),
    ("tied", "saved-embedding", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    ("tied", "dora-embedding", {"target_modules": ["embed_tokens"], "use_dora": True}),
    ("llama", "excluded", {"target_modules": "all-linear", "exclude_modules": ["down_proj"]}),
    ("llama", "excluded-pattern", {"target_modules": "all-linear", "exclude_modules": r".*\.(down|up)_proj"}),
    ("gpt2", "fused-transposed", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    ("gpt2", "dora", {"target_modules": ["c_attn"], "use_dora": True, "fan_in_fan_out": True}),
    ("gpt2", "biases", {"target_modules": ["c_attn"], "bias": "all", "fan_in_fan_out": True}),
    ("phi3", "fused", {"target_modules": ["qkv_proj", "gate_up_proj"]}),
    ("gpt_neox", "fused-heads", {"target_modules": ["query_key_value", "dense"], "bias": "lora_only"}),
    ("bloom", "fused-tied", {"target_modules": ["query_key_value", "word_embeddings"]}),
    ("qwen2", "biases", {"target_modules": ["k_proj"], "bias": "lora_only"}),
    ("bert", "encoder", {"target_modules": ["query", "value", "dense"]}),
    ("t5", "both-halves", {"target_modules": ["q", "v", "wo"]}),
]


@pytest.fixture(scope="module")
def model_of(make_model):
    """Return a function that returns the class and the folder of a model in float64, made once."""
    made = {}

    def model(name):
        if name not in made:
            auto, sizes = MODELS[name]
            model_type = "llama" if name == "tied" else name
            made[name] = auto, make_model(model_type, auto=auto, dtype=torch.float64, **sizes)
        return made[name]

    return model


def outputs_of(source, ids=None):
    """Return the logits, or an encoder's states, of edgeformer's eager module in float64, and its inputs."""
    reference = Reference(model_spec_of(source.config), source.weights())
    ids = (
        torch.randint(3, 60, (1, 11), generator=torch.Generator().manual_seed(0)) if ids is None else torch.tensor(ids)
    )
    ones = torch.ones_like(ids)
    with torch.no_grad(), reference.loaded():
        match source.config.__class__.__name__:
            case "Seq2SeqConfig":
                _, caches = reference.module.encode(ids, ones)
                logits, _ = reference.module.decode(ids, ones, ones, reference.empty_caches(1), caches)
                return logits, {"input_ids": ids, "decoder_input_ids": ids}
            case "EncoderConfig":
                types = [torch.zeros_like(ids)] if source.config.token_types > 1 else []
                return reference.module(ids, ones, *types)[0], {"input_ids": ids}
        return reference.module(ids, ones, reference.empty_caches(1))[0], {"input_ids": ids}


def difference(one, other):
    return ((one - other).abs().max() / other.abs().max()).item()


@pytest.mark.parametrize(("model", "options"), [pytest.param(m, o, id=f"{m}-{name}") for m, name, o in ADAPTERS])
def test_merged_weights_compute_what_peft_computes(model, options, model_of, tmp_path):
    auto, folder = model_of(model)
    adapter = make_adapter(folder, tmp_path / "adapter", auto, **options)
    base = open_source(folder)
    ours, inputs = outputs_of(merge_adapter(base, adapter))
    theirs = adapted_outputs(folder, adapter, auto, **inputs)
    expected = theirs.last_hidden_state if auto == ENCODER else theirs.logits
    assert difference(ours, expected) < TOLERANCE
    # The control: without the adapter, outputs are others.
    assert difference(outputs_of(base)[0], expected) > 1e-3


@pytest.fixture(scope="module")
def llama_adapter(llama_folder, tmp_path_factory):
    """An adapter of the small Llama, in float32."""
    adapter = make_adapter(
        llama_folder, tmp_path_factory.mktemp("adapter") / "polite", target_modules=["q_proj", "up_proj"]
    )
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: each.float() for name, each in tensors.items()}, adapter / "adapter_model.safetensors")
    return adapter


@pytest.fixture(scope="module")
def merged_bundle(llama_folder, llama_adapter, tmp_path_factory):
    """The small Llama with that adapter merged, in int4."""
    place = tmp_path_factory.mktemp("bundles") / "polite"
    return export_model(llama_folder, place, precision="int4", merge_adapter=llama_adapter).path


def test_the_manifest_names_the_adapter(merged_bundle, llama_adapter):
    manifest = Manifest.read(merged_bundle)
    assert manifest.parity is not None
    assert (
        manifest.provenance.merged_adapter.name == "polite"
        and manifest.provenance.merged_adapter.kind == "LoRA of rank 4"
    )
    assert "adapter polite (LoRA of rank 4, trained on" in (merged_bundle / "README.md").read_text()
    written = json.loads((merged_bundle / "edgeformer.json").read_text())["provenance"]["merged_adapter"]
    assert written["weights_sha256"] == LoraAdapter(llama_adapter).origin().weights_sha256


def test_a_merged_bundle_is_verified_with_its_adapter(merged_bundle, llama_folder, llama_adapter, tmp_path):
    assert verify(merged_bundle, llama_folder, merge_adapter=llama_adapter, mode="quick").passed
    with pytest.raises(ConfigError, match=r"was made with the adapter polite \(LoRA of rank 4, .*--merge-adapter DIR"):
        verify(merged_bundle, llama_folder)
    with pytest.raises(ConfigError, match="merged into a model, and no model is given or found"):
        verify(merged_bundle, merge_adapter=llama_adapter)
    other = make_adapter(llama_folder, tmp_path / "other", seed=1, target_modules=["q_proj"])
    with pytest.raises(ConfigError, match="another adapter than the one that the bundle was made with, polite"):
        verify(merged_bundle, llama_folder, merge_adapter=other)


def test_the_model_of_a_merged_bundle_is_found(merged_bundle, llama_folder, llama_adapter, monkeypatch):
    monkeypatch.chdir(llama_folder.parent)
    assert find_checkpoint(merged_bundle, llama_adapter) == str(llama_folder)
    assert find_checkpoint(merged_bundle) is None


def test_a_bundle_without_an_adapter_takes_none(llama_bundle, llama_folder, llama_adapter):
    with pytest.raises(ConfigError, match="was made without an adapter. Leave --merge-adapter out"):
        verify(llama_bundle, llama_folder, merge_adapter=llama_adapter)


REFUSED = [
    ({"peft_type": "IA3"}, "peft_type = 'IA3', and only LORA"),
    ({"alora_invocation_tokens": [1, 2]}, r"alora_invocation_tokens = \[1, 2\]"),
    ({"lora_bias": True}, "lora_bias = True"),
    ({"layer_replication": [[0, 2]]}, "layer_replication"),
    ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
    ({"trainable_token_indices": [3]}, "trainable_token_indices"),
    ({"ensure_weight_tying": True}, "ensure_weight_tying = True"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
    ({"a_field_of_tomorrow": 1}, "a_field_of_tomorrow = 1"),
    ({"r": 0}, "r = 0; it must be a whole number of at least 1"),
    ({"lora_alpha": "16"}, "lora_alpha = '16'; it must be a number"),
    ({"rank_pattern": {"(": 3}}, r"the pattern '\(' in rank_pattern"),
    ({"rank_pattern": 3}, "rank_pattern = 3; it must be an object"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=[next(iter(fields)) for fields, _ in REFUSED])
def test_fields_that_may_change_the_result_are_refused(fields, message, llama_folder, changed_adapter):
    with pytest.raises(ConfigError, match=message):
        merge_adapter(open_source(llama_folder), changed_adapter(fields))


@pytest.fixture
def changed_adapter(llama_adapter, tmp_path):
    """Return a function that copies the adapter with other fields, and tensors renamed or left out (None)."""

    def change(fields, renamed=lambda name: name):
        folder = shutil.copytree(llama_adapter, tmp_path / "changed")
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | fields))
        tensors = load_file(folder / "adapter_model.safetensors")
        kept = {renamed(name): each for name, each in tensors.items() if renamed(name) is not None}
        save_file(kept, folder / "adapter_model.safetensors")
        return folder

    return change


DAMAGED = [
    ({}, lambda name: name.replace("layers.0", "layers.9"), "tensors that the model does not have:\n  model.layers.9"),
    ({}, lambda name: None if "layers.0.self_attn.q_proj.lora_B" in name else name, "q_proj has A instead of A, B"),
    ({"use_dora": True}, lambda name: name, "has A, B instead of A, B, lengths"),
    ({"target_modules": ["q_proj"]}, lambda name: name, "up_proj is adapted, and target_modules does not name it"),
    (
        {"target_modules": ["q_proj", "up_proj", "k_proj"]},
        lambda name: name,
        "k_proj of target_modules is adapted nowhere",
    ),
    ({"r": 8}, lambda name: name, r"the config says rank 8: A must be \[8, in\]"),
    ({}, lambda name: name.replace("up_proj", "down_proj"), "does not fit"),
    (
        {"target_modules": ["q_proj", "down_proj"]},
        lambda name: name.replace("up_proj", "down_proj"),
        r"adds \[96, 64\] to model.layers.0.mlp.down_proj.weight, which is \[64, 96\]",
    ),
]


@pytest.mark.parametrize(("fields", "renamed", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_adapters_that_do_not_fit_are_refused(fields, renamed, message, llama_folder, changed_adapter):
    with pytest.raises(WeightsError, match=message):
        dict(merge_adapter(open_source(llama_folder), changed_adapter(fields, renamed)).weights())


def test_marks_of_tools_mean_nothing(llama_folder, changed_adapter):
    marks = {"unsloth_version": "2026.1", "unsloth_fixed": True, "trl_version": "0.30", "axolotl_config": {"a": 1}}
    assert merge_adapter(open_source(llama_folder), changed_adapter(marks)).merged is not None


RESIZED = {
    "saved": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    "resized": ("llama", {"target_modules": ["q_proj"]}),
    "adapted": ("llama", {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "tied": ("tied", {"target_modules": ["v_proj"]}),
    "tied-saved": ("tied", {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
}
"""Adapters of models with three tokens more; PEFT stores both tables of them, whatever it trains."""


@pytest.mark.parametrize("name", RESIZED)
def test_an_adapter_brings_its_own_vocabulary(name, model_of, tmp_path):
    model, options = RESIZED[name]
    auto, folder = model_of(model)
    adapter = make_adapter(folder, tmp_path / "adapter", auto, more_tokens=3, **options)
    merged = merge_adapter(open_source(folder), adapter)
    assert merged.config.vocab_size == merged.hf_config["vocab_size"] == 70
    ours, inputs = outputs_of(merged, ids=[[0, 67, 12, 69, 68, 5]])
    expected = adapted_outputs(folder, adapter, auto, more_tokens=3, **inputs).logits
    assert ours.shape == expected.shape == (1, 6, 70)
    assert difference(ours, expected) < TOLERANCE
    # The control: rows of other tokens give other logits.
    assert difference(outputs_of(merged, ids=[[0, 68, 12, 69, 67, 5]])[0], expected) > 1e-3


def test_a_bundle_has_the_tokenizer_of_a_resized_adapter(llama_folder, tmp_path):
    size = open_source(llama_folder).config.vocab_size
    adapter = make_adapter(llama_folder, tmp_path / "adapter", more_tokens=2, **RESIZED["saved"][1])
    vocabulary = {f"w{index}": index for index in range(size + 2)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(adapter / "tokenizer.json"))
    result = export_model(llama_folder, tmp_path / "bundle", merge_adapter=adapter)
    assert result.manifest.vocab_size == size + 2 and result.report.passed
    model = load(result.path)
    assert model.encode(f"w{size + 1}") == [size + 1]
    assert model.forward([size + 1]).shape == (1, size + 2)
    assert verify(result.path, llama_folder, merge_adapter=adapter, mode="quick").passed


def test_an_adapter_of_half_a_vocabulary_is_refused(model_of, make_model, tmp_path):
    auto, folder = model_of("llama")
    larger = make_model("llama", auto=auto, dtype=torch.float64, **MODELS["llama"][1] | {"vocab_size": 69})
    options = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}
    adapter = make_adapter(larger, tmp_path / "larger", auto, **options)
    with pytest.raises(WeightsError, match="embed_tokens.weight of 69 tokens, and the model has 67 tokens"):
        merge_adapter(open_source(folder), adapter)


def test_what_cannot_be_merged_is_said(llama_folder, llama_adapter, model_of, tmp_path):
    with pytest.raises(
        ConfigError, match=r"there is no folder .*nowhere. An adapter is a folder with adapter_config.json"
    ):
        export_model(llama_folder, tmp_path / "out", merge_adapter=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="has no adapter_config.json"):
        export_model(llama_folder, tmp_path / "out", merge_adapter=llama_folder)
    with pytest.raises(ExportError, match="is exported via transformers. Merge it with PEFT"):
        export_model(llama_folder, tmp_path / "out", merge_adapter=llama_adapter, backend="transformers")
    auto, folder = model_of("t5")
    shared = make_adapter(folder, tmp_path / "shared", auto, target_modules=["q"], modules_to_save=["shared"])
    with pytest.raises(WeightsError, match="changes shared.weight, which several modules of the model share"):
        merge_adapter(open_source(folder), shared).weights()
