"""Adapters that are kept apart from the weights: one graph over the base's weights, each adapter judged by itself."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from lora.peft_adapters import make_adapter, summed_logits

from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.weights import CheckpointWeights
from edgeformer.errors import BundleError, ConfigError, ExportError, RequestError
from edgeformer.export import export_model, verify
from edgeformer.export.adapter_graph import ADAPTER_GRAPH
from edgeformer.export.parity.verify import verify_graph
from edgeformer.lora.adapter_tensors import Update
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import load_causal_lm
from edgeformer.runtime.sessions.kernels import KernelChoice, Library

PROMPT = [5, 9, 41, 7, 100]


@pytest.fixture(scope="module")
def llama(adapted_llama):
    return adapted_llama


@pytest.fixture(scope="module")
def bundle(adapted_bundle):
    return adapted_bundle


@pytest.fixture(scope="module")
def model(bundle):
    return load_causal_lm(bundle)


def logits(model, adapter=None):
    return model.new_decoder(1, len(PROMPT), adapter).prefill_all(0, PROMPT)


def test_an_adapter_computes_what_it_computes_merged(model, llama, adapters, tmp_path):
    base = logits(model)
    for name, folder in adapters.items():
        merged = export_model(llama, tmp_path / name, merge_adapter=folder, verify=None).path
        expected = logits(load_causal_lm(merged))
        found = logits(model, name)
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
        assert np.abs(base - expected).max() > 1e-2 * np.abs(expected).max()
        text = load_causal_lm(merged).generate(PROMPT, max_new_tokens=8).token_ids
        assert model.generate(PROMPT, max_new_tokens=8, adapter=name).token_ids == text
        assert "".join(map(str, model.stream(PROMPT, max_new_tokens=8, adapter=name))) == ""  # without a tokenizer
    assert np.array_equal(logits(model), base)


SUMS = {"polite*0.7+brief*-0.4": {"polite": 0.7, "brief": -0.4}, "brief+polite": {"polite": 1, "brief": 1}}


@pytest.mark.parametrize("text", SUMS)
def test_a_weighted_sum_of_adapters_is_that_of_peft(model, llama, adapters, text):
    weights = SUMS[text]
    expected = summed_logits(llama, adapters, weights, PROMPT).numpy()

    def difference(found):
        return np.abs(found - expected).max() / np.abs(expected).max()

    assert difference(logits(model, text)) < 1e-5
    for other in ("polite*0.4+brief*-0.7", "polite", "brief*0.5"):
        assert difference(logits(model, other)) > 1e-2, "the control: other weights compute something else"


def test_a_sum_that_is_none_is_refused(model):
    for text, said in (
        ("polite+", "no adapter ''"), ("polite*x", "a sum such as polite*0.5"), ("polite*nan", "a sum such as"),
        ("polite+polite", "each is named once"), ("polite*2+rude", "no adapter 'rude'"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=said.replace("*", r"\*")):
            model.generate(PROMPT, adapter=text)


def test_rows_of_a_batch_have_one_adapter(model):
    prompts = [PROMPT, PROMPT[:2]]
    rows = model.generate(prompts, max_new_tokens=6, adapter="brief")
    alone = [model.generate(prompt, max_new_tokens=6, adapter="brief") for prompt in prompts]
    assert [row.token_ids for row in rows] == [row.token_ids for row in alone]


def test_an_adapter_that_is_not_there_is_refused(model, llama_bundle):
    with pytest.raises(RequestError, match="has no adapter 'rude'; it has polite, brief"):
        model.generate(PROMPT, adapter="rude")
    with pytest.raises(RequestError, match="has no adapter 'polite'; it has none; export it with --adapter NAME=DIR"):
        load_causal_lm(llama_bundle).generate(PROMPT, adapter="polite")
    with pytest.raises(RequestError, match="the bundle has no adapters"):
        _ = load_causal_lm(llama_bundle).adapter_session


def test_the_certificate_covers_adapters_of_the_manifest(bundle):
    manifest = Manifest.read(bundle)
    assert [(each.name, each.file, each.origin.kind) for each in manifest.adapters] == [
        ("polite", "adapters/polite.safetensors", "LoRA of rank 4"),
        ("brief", "adapters/brief.safetensors", "rsLoRA of rank 3"),
    ]
    assert manifest.adapter_graph.file == ADAPTER_GRAPH
    assert "blocks.0.attention.qkv" in manifest.adapter_graph.sites
    assert {"adapters/brief.safetensors", ADAPTER_GRAPH} <= manifest.parity["hashes"].keys()
    assert not [name for name in manifest.files if name.startswith("onnx/model_adapters.onnx_data")]


def test_the_base_runs_the_same_files_as_without_adapters(bundle, llama, tmp_path):
    plain = export_model(llama, tmp_path / "plain", verify=None).manifest.files
    assert plain["onnx/model.onnx"].sha256 == Manifest.read(bundle).files["onnx/model.onnx"].sha256
    assert plain["onnx/model.onnx_data"].sha256 == Manifest.read(bundle).files["onnx/model.onnx_data"].sha256


def names_of(report):
    return [check.name for check in report.checks if check.name.startswith("adapter ")]


def test_each_adapter_is_judged(bundle, llama):
    report = verify(bundle, llama, mode="quick")
    assert report.passed
    assert {name.split(",")[0] for name in names_of(report)} == {"adapter polite", "adapter brief"}


@pytest.fixture(scope="module")
def updates(llama, adapters):
    from edgeformer.lora.adapter_tensors import open_adapter

    source = open_source(llama)
    weights = CheckpointWeights(source.folder, source.family, source.config)
    return {name: weights.updates(open_adapter(folder)) for name, folder in adapters.items()}


def judged(bundle, llama, updates):
    source = open_source(llama)
    report = verify_graph(
        bundle, Manifest.read(bundle), model_spec_of(source.config), source.weights(), adapters=updates
    )
    return {name.split(",")[0] for name in (check.name for check in report.failures())}


def test_sessions_are_kept_by_the_kernels_that_they_run_with():
    """Sessions of adapters are kept by their choice of kernels, of a library that packs weights, too."""
    library = Library("/lib.so", "0.1", ("MatMulNBits",), ("avx2",), "avx2", panels={"avx2": "vnni"})
    assert hash(KernelChoice(library)) == hash(KernelChoice(library))
    assert KernelChoice(library) != KernelChoice(replace(library, panels={}))


def test_the_wrong_adapter_fails(bundle, llama, updates):
    assert judged(bundle, llama, updates) == set()
    assert judged(bundle, llama, {"polite": updates["brief"], "brief": updates["brief"]}) == {"adapter polite"}
    # One number of a hundred, a percent too large.
    name, update = next(iter(updates["brief"].items()))
    slightly = {**updates["brief"], name: Update(update.a, update.b * 1.01)}
    assert judged(bundle, llama, {"polite": updates["polite"], "brief": slightly}) == {"adapter brief"}


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp16", "cache_precision": "fp8"},
        pytest.param({"precision": "fp16"}, marks=pytest.mark.slow),
        pytest.param({"precision": "fp16", "cache_precision": "int8"}, marks=pytest.mark.slow),
        pytest.param({"precision": "fp32"}, marks=pytest.mark.slow),
        pytest.param({"precision": "int4"}, marks=pytest.mark.slow),
    ],
)
def test_graphs_for_cuda_are_verified_with_their_adapters(options, llama, adapters, updates, tmp_path):
    """Without a GPU their twins are."""
    bundle = export_model(llama, tmp_path / "cuda", provider="cuda", adapters=adapters, **options).path
    report = verify(bundle, llama, mode="quick")
    assert report.passed
    assert {name.split(",")[0] for name in names_of(report)} == {"adapter polite", "adapter brief"}
    assert judged(bundle, llama, {"polite": updates["brief"], "brief": updates["brief"]}) == {"adapter polite"}


def test_int4_weights_take_adapters_as_inputs(llama, adapters, tmp_path):
    result = export_model(llama, tmp_path / "int4", precision="int4", adapters={"polite": adapters["polite"]})
    assert result.report.passed
    assert {name.rpartition(", ")[0].removesuffix(", decode") for name in names_of(result.report)} >= {
        "adapter polite",
        "adapter polite, int8 activations",
    }


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gpt2", "phi3"])
def test_packed_and_transposed_projections_take_adapters(model_type, make_model, tmp_path):
    if model_type == "gpt2":
        sizes = {"vocab_size": 67, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}
        targets = ["c_attn", "c_fc"]
    else:
        sizes = {
            "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "pad_token_id": 0,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        }  # fmt: skip
        targets = ["qkv_proj", "gate_up_proj"]
    folder = make_model(model_type, **sizes)
    adapter = make_adapter(folder, tmp_path / "adapter", target_modules=targets)
    assert export_model(folder, tmp_path / "out", adapters={"one": adapter}).report.passed


def test_what_cannot_be_kept_apart_is_said(llama, adapters, make_llama, tmp_path):
    out = tmp_path / "out"
    dora = make_adapter(llama, tmp_path / "dora", target_modules=["q_proj"], use_dora=True)
    with pytest.raises(ConfigError, match=r"\(use_dora\), so it cannot be kept apart .*--merge-adapter instead"):
        export_model(llama, out, adapters={"dora": dora})
    head = make_adapter(llama, tmp_path / "head", target_modules=["q_proj"], modules_to_save=["lm_head"])
    with pytest.raises(ConfigError, match=r"\(lm_head.weight\), so it cannot be kept apart"):
        export_model(llama, out, adapters={"head": head})
    with pytest.raises(ExportError, match="with --ops ort, and without bf16. Merge one adapter"):
        export_model(llama, out, adapters=adapters, ops="portable")
    with pytest.raises(ExportError, match="the deployment mobile is for others"):
        export_model(llama, out, adapters=adapters, deployment="mobile")
    with pytest.raises(ExportError, match="an adapter is named '../x'; a name is made of letters"):
        export_model(llama, out, adapters={"../x": dora})
    with pytest.raises(ExportError, match="adapters are for models that edgeformer has a family of"):
        export_model(llama, out, adapters=adapters, backend="transformers")
    tied = make_llama(num_hidden_layers=1, tie_word_embeddings=True)
    of_head = make_adapter(tied, tmp_path / "of_head", target_modules=["lm_head"])
    with pytest.raises((ConfigError, ExportError), match="Merge it|does not have"):
        export_model(tied, out, adapters={"head": of_head})
    assert not out.exists()


def test_a_damaged_file_of_an_adapter_is_refused(bundle, tmp_path):
    folder = shutil.copytree(bundle, tmp_path / "copy")
    path = folder / "adapters" / "brief.safetensors"
    whole = path.read_bytes()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    name = next(key for key in header if key != "__metadata__")
    other = json.dumps({name: header[name] | {"shape": [1, 1, 1]}}).encode()
    for content in (b"\xff" * len(whole), (len(other).to_bytes(8, "little") + other).ljust(len(whole))):
        path.write_bytes(content)
        with pytest.raises(BundleError, match=r"brief.safetensors is damaged: .*Copy or export the bundle again"):
            load_causal_lm(folder).generate(PROMPT, adapter="brief")
    with pytest.raises(BundleError, match="was changed after the export"):
        verify(folder)
