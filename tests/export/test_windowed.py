"""Layers that see no further than a window keep no more than it, and the answers stay the same."""

import itertools

import numpy as np
import onnx
import pytest
import torch
import transformers

from edgeformer.export import export_model, verify
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import sha256
from edgeformer.runtime import load
from edgeformer.runtime.sessions.session import open_session

WINDOW, CONTEXT = 12, 128
VIEW = "onnx/model_windowed.onnx"
SIZES = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": CONTEXT, "sliding_window": WINDOW,
    "bos_token_id": 1, "eos_token_id": 130,
}  # fmt: skip


@pytest.fixture(scope="module")
def gemma_folder(make_model):
    """Every second layer has a window."""
    return make_model("gemma2", seed=3, **SIZES)


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def bundle(request, gemma_folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("bundles") / request.param
    return export_model(gemma_folder, output, precision=request.param).path


def test_the_view_shares_the_weights_and_declares_its_windows(bundle):
    manifest = Manifest.read(bundle)
    assert manifest.windows == (WINDOW, None, WINDOW, None)
    assert {path.name for path in (bundle / "onnx").iterdir()} == {
        "model.onnx", "model.onnx_data", "model_windowed.onnx",
    }  # fmt: skip
    view = onnx.load(bundle / VIEW, load_external_data=False)
    lengths = {
        value.name: value.type.tensor_type.shape.dim[2].dim_value
        for value in (*view.graph.input, *view.graph.output)
        if value.name.endswith((".key", ".value"))
    }
    assert all(length == (WINDOW if int(name.split(".")[1]) % 2 == 0 else 0) for name, length in lengths.items())


def test_memory_follows_the_window(bundle):
    model = load(bundle)
    per_token = 2 * 2 * 16 * (2 if model.manifest.plan.precision == "fp16" else 4)  # of one layer
    assert model.new_decoder(3, 100).cache.bytes == 3 * per_token * 2 * (WINDOW + 100)
    # A request shorter than the window takes no more than it needs.
    assert model.new_decoder(1, 5).cache.bytes == per_token * 4 * 5


def test_logits_past_the_window_are_those_of_whole_caches(bundle, gemma_folder):
    model = load(bundle)
    tokens = np.random.default_rng(0).integers(0, 131, 90)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        gemma_folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        expected = oracle(torch.from_numpy(tokens)[None]).logits[0].numpy()
    limit = {"fp32": 1e-5, "fp16": 5e-3}[model.manifest.plan.precision] * np.abs(expected).max()
    whole = open_session(bundle / "onnx/model.onnx")
    for session, chunk in itertools.product((model.session, whole), (1, 5, WINDOW, WINDOW + 1, 90)):
        model.session = session
        logits = model.new_decoder(1, len(tokens)).prefill_all(0, tokens, chunk=chunk)
        assert np.abs(logits - expected).max() <= limit, chunk


def test_a_batch_generates_what_its_rows_generate(bundle):
    model = load(bundle)
    prompts = [list(np.random.default_rng(row).integers(0, 130, length)) for row, length in enumerate((30, 3, 13))]
    together = model.generate(prompts, max_new_tokens=40)
    alone = [model.generate(prompt, max_new_tokens=40) for prompt in prompts]
    if model.manifest.plan.precision == "fp32":  # in fp16 rows may tie, and a batch adds in another order
        assert [each.token_ids for each in together] == [each.token_ids for each in alone]


def test_models_without_short_windows_have_no_view(make_model, tmp_path, llama_bundle):
    assert "windowed" not in Manifest.read(llama_bundle).graphs
    long = make_model("mistral", **(SIZES | {"sliding_window": CONTEXT}))
    assert export_model(long, tmp_path / "long", verify=None).manifest.windows == ()


def damage(bundle, change, names):
    """Change attention nodes of some graphs, and sign the result, so that only the maths is wrong."""
    for name in names:
        graph = onnx.load(bundle / name, load_external_data=False)
        for node in graph.graph.node:
            attributes = {attribute.name: attribute for attribute in node.attribute}
            if "local_window_size" in attributes:
                change(attributes)
        onnx.save(graph, bundle / name)
    import json

    path = bundle / "edgeformer.json"
    manifest = json.loads(path.read_text())
    for name in names:
        manifest["files"][name] = {"bytes": (bundle / name).stat().st_size, "sha256": sha256(bundle / name)}
    path.write_text(json.dumps(manifest))


def a_token_less(attributes):
    if attributes["local_window_size"].i > 0:
        attributes["local_window_size"].i -= 1


def not_at_all(attributes):
    attributes["local_window_size"].i = -1


@pytest.mark.parametrize(
    ("change", "names", "failing"),
    [
        (a_token_less, [VIEW], "windowed caches against whole ones"),
        (a_token_less, ["onnx/model.onnx", VIEW], "window: worst ratio"),
        (not_at_all, ["onnx/model.onnx"], "window: worst ratio"),
    ],
)
def test_a_wrong_window_is_found(gemma_folder, tmp_path, change, names, failing):
    path = export_model(gemma_folder, tmp_path / "bundle", verify=None).path
    assert verify(path, mode="quick").passed
    damage(path, change, names)
    report = verify(path, mode="quick")
    assert failing in [check.name for check in report.failures()], report.describe()


def test_a_window_longer_than_the_quick_texts_is_looked_past(make_model, tmp_path):
    """With a window of 60 tokens no text of a quick verification shows it; a synthetic past does."""
    folder = make_model("gemma2", **(SIZES | {"sliding_window": 60}))
    path = export_model(folder, tmp_path / "bundle", verify=None).path
    damage(path, a_token_less, ["onnx/model.onnx", VIEW])
    failing = [check.name for check in verify(path, mode="quick").failures()]
    assert failing
    assert all(name.startswith("window: ") for name in failing)
