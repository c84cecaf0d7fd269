"""Experts in int4 and int8: QMoE, its integers, what verification says of them, and how they are written."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from test_expert_lowering import lowered

sys.path.insert(0, str(Path(__file__).parents[1] / "families"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from op_set_kinds import GROUPED, expert, experts, routed
from op_set_models import relative_error
from verification.false_positive_rate import export_random

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.errors import ExportError
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.graph.tensors import StreamedTensor, TensorSource
from edgeformer.export.parity import verify_graph
from edgeformer.export.quantize import quantized_experts
from edgeformer.export.quantize.quantized_experts import QuantizedExperts
from edgeformer.export.quantize.quantized_tensor import by_matrix
from edgeformer.export.reference.reference import references
from edgeformer.layers.experts import StackedFeedForward
from edgeformer.manifest.quantization import QuantizationOverrides, WeightFormat, make_quantization
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime.sessions.session import open_session

NETWORK = expert(intermediate_size=64)
OF_GPT_OSS = expert(intermediate_size=64, bias=True, beta=1.702, limit=0.5, up_offset=1.0)
MODELS = {
    "softmax": routed(experts({}, NETWORK), experts({"normalized": False}, NETWORK)),
    "gpt-oss": routed(experts({"bias": True}, OF_GPT_OSS)),
    "deepseek": routed(experts({**GROUPED, "scale": 2.5, "sum_epsilon": 1e-6}, NETWORK, shared=NETWORK, used=3)),
    "not gated": routed(experts({}, replace(NETWORK, activation="relu", gated=False, bias=True))),
}
FORMATS = {
    "int4": make_quantization("int4"),
    "int8": make_quantization("int8"),
    "int4 with zero points": make_quantization("int4", QuantizationOverrides(symmetric=False)),
    "int8 with zero points": make_quantization("int8", QuantizationOverrides(symmetric=False)),
}
PREFIX = "blocks.0.feed_forward.experts"


def quantized(name="softmax", precision="int4"):
    return lowered(MODELS[name], quantization=FORMATS[precision])


def node_of(graph):
    return next(node for node in graph.graph if node.op_type == "QMoE")


def exported(name, folder, precision="int4"):
    config = MODELS[name]
    return export_random(model_spec_of(config), RandomWeights(config, 0), precision, folder)


def verified(name, bundle):
    config = MODELS[name]
    return verify_graph(bundle.path, bundle.manifest, model_spec_of(config), RandomWeights(config, 0))


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_the_integers_are_those_of_the_weights(name, precision):
    graph, reports = quantized(name, precision)
    node, form = node_of(graph), FORMATS[precision].format_of("a.weight")
    attributes = {key: attribute.value for key, attribute in node.attributes.items()}
    assert (attributes["expert_weight_bits"], attributes["accuracy_level"]) == (form.bits, 4)
    assert attributes["block_size"] == form.fitted(32).block
    assert reports.fallbacks == []
    inputs = [value and value.name for value in node.inputs]
    first = "gate_up" if name != "not gated" else "up"
    assert [inputs[2], inputs[3], inputs[5], inputs[6]] == [
        f"{PREFIX}.{layer}.weight.{part}" for layer in (first, "down") for part in ("integers", "scales")
    ]
    assert (len(inputs) > 11 and inputs[11] is not None) == (not form.symmetric)
    assert (len(inputs) == 15) == (name == "deepseek"), "weights beside a choice"
    sizes = node.inputs[2].const_value.sizes
    assert sizes == [6, 64 if name == "not gated" else 128, 32 * form.bits // 8]
    assert f"{PREFIX.replace('experts', 'router')}.projection.weight" in graph.graph.initializers


@pytest.mark.parametrize("precision", ["int4", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_a_quantized_bundle_is_at_parity(name, precision, tmp_path):
    """With the integers taken at their word, and as onnxruntime uses them, with rounded inputs of every layer."""
    report = verified(name, exported(name, tmp_path, precision))
    assert report.passed, report.describe()
    names = {check.name for check in report.checks}
    assert "weights: block error" in names
    assert any(each.startswith("int8 activations, ") for each in names)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int4"])
def test_large_stacks_are_exported_and_verified_expert_by_expert(precision, tmp_path, monkeypatch):
    monkeypatch.setattr("edgeformer.checkpoints.expert_weights.LARGE", 100)
    report = verified("softmax", exported("softmax", tmp_path, precision))
    assert report.passed, report.describe()


def test_the_kernel_rounds_the_inputs_of_every_layer(tmp_path):
    """Logits of the graph as it is used are those of PyTorch that rounds alike; without rounding they differ."""
    bundle = exported("gpt-oss", tmp_path)
    model_spec = model_spec_of(MODELS["gpt-oss"])
    stored = StoredWeights(bundle.path, bundle.manifest, model_spec)
    ids = torch.randint(0, 61, (1, 9), generator=torch.Generator().manual_seed(0))
    _, eager = references(model_spec, stored, torch.float32, stored.formats)
    empty = np.zeros((1, 2, 0, 8), np.float32)
    feeds = {"input_ids": ids.numpy(), "attention_mask": np.ones((1, 9), np.int64)}
    feeds |= {f"past_key_values.0.{name}": empty for name in ("key", "value")}
    logits = open_session(bundle.path / "onnx" / "model.onnx").run(["logits"], feeds)[0]
    assert relative_error(logits, eager.run(ids)[0].numpy()) < 1e-5
    for module in eager.module.modules():
        if isinstance(module, StackedFeedForward):
            module.rounded = None
    assert relative_error(logits, eager.run(ids)[0].numpy()) > 1e-4


def test_integers_of_another_expert_fail_the_check(tmp_path):
    bundle = exported("softmax", tmp_path)
    graph = ir.load(bundle.path / "onnx" / "model.onnx")
    value = graph.graph.initializers[f"{PREFIX}.down.weight.integers"].const_value
    data = value.numpy().copy()
    with (bundle.path / "onnx" / value.location).open("r+b") as file:
        file.seek(value.offset)
        file.write(data[[1, 0, *range(2, len(data))]].tobytes())
    failed = {check.name for check in verified("softmax", bundle).failures()}
    assert "weights: block error" in failed


def test_stored_experts_are_read_back_one_at_a_time(tmp_path):
    bundle = exported("softmax", tmp_path)
    stored = StoredWeights(bundle.path, bundle.manifest, model_spec_of(MODELS["softmax"]))
    original = RandomWeights(MODELS["softmax"], 0)
    for name in ("gate", "up", "down"):
        parameter = f"{PREFIX}.{name}.weight"
        whole = stored[parameter]
        assert torch.equal(torch.stack([stored.read_expert(parameter, index) for index in range(6)]), whole)
        assert float((whole - original[parameter]).abs().max()) < 0.1 * float(whole.abs().max())
        assert stored.experts_of(parameter) == 6


def test_layers_of_different_formats_are_refused():
    config = MODELS["softmax"]
    quantization = make_quantization("int4", QuantizationOverrides(keep=("*experts.down.weight",)))
    with pytest.raises(ExportError, match=r"different formats for blocks\.0\.feed_forward\.experts\.gate\.weight, blo"):
        lowered(config, quantization=quantization)


def test_experts_may_stay_floats_beside_integers():
    quantization = make_quantization("int4", QuantizationOverrides(keep=("*experts.*",)))
    graph, _ = lowered(MODELS["softmax"], quantization=quantization)
    ops = {node.op_type for node in graph.graph}
    assert {"MoE", "MatMulNBits"} <= ops
    assert "QMoE" not in ops


def test_what_the_kernel_cannot_compute_is_not_quantized():
    config = routed(experts({}, expert("gelu_tanh", intermediate_size=64)))
    graph, reports = lowered(config, quantization=FORMATS["int4"])
    (told,) = reports.fallbacks
    assert told.endswith("the kernel has no gate with gelu_tanh; these experts are not quantized")
    assert any(node.op_type == "Loop" for node in graph.graph)


def test_each_expert_is_rounded_once_for_all_of_its_parts(monkeypatch):
    calls = []
    rounding = quantized_experts.round_blocks
    monkeypatch.setattr(quantized_experts, "round_blocks", lambda *args: calls.append(args) or rounding(*args))
    source = StreamedTensor(
        "w", ir.DataType.FLOAT, ir.Shape([3, 4, 32]), TensorSource(("w",)), {"w": torch.randn(3, 4, 32)}
    )
    stack = QuantizedExperts(source, WeightFormat(bits=4, block=16, symmetric=False))
    parts = {part.name: part for part in stack.parts()}
    written = {name: torch.stack(list(part.chunks())) for name, part in by_matrix(parts)}
    assert len(calls) == 3
    assert {name: list(part.shape) for name, part in written.items()} == {
        "w.integers": [3, 4, 16], "w.scales": [3, 4, 2], "w.zero_points": [3, 4, 1],
    }  # fmt: skip
    assert all(torch.equal(part.read(), written[name]) for name, part in parts.items())
