"""Float16 scales: what is rounded, what is stored, and that graphs compute with the stored scales."""

import shutil
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto
from test_calibration import DOWN, correlated, gram, matrix

from edgeformer.errors import ConfigError, ExportError
from edgeformer.export import export_model
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.importers.opened_bundle import open_subject
from edgeformer.export.parity.trials.quantized_weights import judge_weights
from edgeformer.export.quantize.gptq import costs_of, round_for_inputs
from edgeformer.export.quantize.rounding import round_blocks
from edgeformer.manifest.quantization import QuantizationOverrides, WeightFormat, make_quantization

FORMATS = [
    WeightFormat(bits=bits, block=32, symmetric=symmetric, rounding=rounding, scales="fp16")
    for bits in (4, 8)
    for symmetric in (True, False)
    for rounding in ("nearest", "mse")
]


def one_doubled(scales):
    scales[5, 1] *= 2
    return scales


def a_block_late(scales):
    return np.roll(scales, 1, axis=1)


def squared_error(rounded, blocks):
    return float((rounded.weights().double() - blocks.double()).square().sum())


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_integers_are_those_of_the_stored_scales(form):
    """The control: scales that are rounded only once the integers are chosen err more in 8 bits."""
    blocks = torch.randn(64, 8, 32, generator=torch.Generator().manual_seed(0))
    rounded, wide = round_blocks(blocks, form), round_blocks(blocks, replace(form, scales="fp32"))
    assert torch.equal(rounded.scales, rounded.scales.half().float())
    assert not torch.equal(wide.scales, wide.scales.half().float())
    late = replace(wide, scales=wide.scales.half().float())
    assert squared_error(rounded, blocks) < squared_error(wide, blocks) * 1.01
    if form.bits == 8 and form.rounding == "nearest":
        assert squared_error(rounded, blocks) < squared_error(late, blocks)


def test_calibration_rounds_to_the_stored_scales():
    x, weights = correlated(), matrix()
    errors = {}
    for scales in ("fp32", "fp16"):
        form = WeightFormat(bits=4, block=32, rounding="gptq", scales=scales)
        rounded = round_for_inputs(weights, costs_of(gram(x)), form)
        assert torch.equal(rounded.scales, rounded.scales.half().float()) == (scales == "fp16")
        errors[scales] = float((x @ (rounded.weights().flatten(1) - weights).t()).square().sum())
    assert errors["fp16"] == pytest.approx(errors["fp32"], rel=0.05)


def graph_of(bundle):
    return onnx.load(bundle / "onnx" / "model.onnx", load_external_data=False).graph


@pytest.fixture(scope="module")
def checkpoint(make_llama):
    """A model whose queries are multiplied by 32 ** -0.5, which is no power of two: their scales are rounded again."""
    return make_llama(4, num_hidden_layers=2, max_position_embeddings=64, head_dim=32)


@pytest.fixture(scope="module")
def bundles(checkpoint, tmp_path_factory):
    """Two bundles by their scales. Read-only."""
    folder = tmp_path_factory.mktemp("half")
    return {
        scales: export_model(
            checkpoint, folder / scales, precision="int4", quantization=QuantizationOverrides(scales=scales)
        )
        for scales in ("fp32", "fp16")
    }


def test_scales_take_half_the_bytes_and_the_bundle_is_at_parity(bundles):
    half = bundles["fp16"]
    assert half.report.passed and "float16 scales" in str(half.manifest.plan.quantization)
    graph = graph_of(half.path)
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer if tensor.name.endswith(".scales")}
    assert set(stored.values()) == {TensorProto.FLOAT16} and len(stored) == 10
    assert len([node for node in graph.node if node.op_type == "Cast" and node.input[0] in stored]) == 10
    sizes = [{entry.key: entry.value for entry in tensor.external_data}.get("length") for scales in ("fp16", "fp32")
             for tensor in graph_of(bundles[scales].path).initializer if tensor.name == f"{DOWN}.scales"]  # fmt: skip
    assert 2 * int(sizes[0]) == int(sizes[1])


def test_a_session_casts_scales_once_when_it_is_opened(bundles, tmp_path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "opened.onnx")
    ort.InferenceSession(bundles["fp16"].path / "onnx" / "model.onnx", options, providers=["CPUExecutionProvider"])
    opened = onnx.load(tmp_path / "opened.onnx", load_external_data=False).graph
    constants = {tensor.name: tensor.data_type for tensor in opened.initializer}
    products = [node for node in opened.node if node.op_type == "MatMulNBits"]
    assert len(products) == 9 and all(constants[node.input[2]] == TensorProto.FLOAT for node in products)


@pytest.mark.parametrize("fault", [one_doubled, a_block_late], ids=lambda fault: fault.__name__)
def test_scales_that_are_off_are_found(bundles, checkpoint, tmp_path, fault):
    folder = tmp_path / "bundle"
    shutil.copytree(bundles["fp16"].path, folder)
    subject = open_subject(folder, checkpoint)

    def failed():
        stored = StoredWeights(folder, subject.manifest, subject.model_spec)
        return {check.name for check in judge_weights(subject.weights, stored) if not check.passed}

    assert failed() == set()
    (scales,) = [tensor for tensor in graph_of(folder).initializer if tensor.name == f"{DOWN}.scales"]
    place = {entry.key: entry.value for entry in scales.external_data}
    numbers = np.memmap(folder / "onnx" / place["location"], np.float16, "r+", int(place["offset"]), tuple(scales.dims))
    numbers[:] = fault(np.array(numbers))
    numbers.flush()
    assert failed() == {"weights: block error"}


def test_files_in_ort_format_have_wide_scales(checkpoint, tmp_path):
    """Nothing would fold their casts, and onnxruntime computes zeros where scales are no constants."""
    with pytest.raises(ExportError, match="float16 scales are widened .* Leave scales out for the deployment mobile"):
        export_model(checkpoint, tmp_path / "bundle", precision="int4", deployment="mobile",
                     quantization=QuantizationOverrides(scales="fp16"))  # fmt: skip
    texts = [np.random.default_rng(0).integers(0, 90, 60)]
    sized = export_model(checkpoint, tmp_path / "bundle", bits=6.0, deployment="mobile", calibration=texts, verify=None)
    assert {each.quantized.scales for each in sized.manifest.weights.values() if each.quantized} == {"fp32"}
    whole = export_model(checkpoint, tmp_path / "other", bits=6.0, calibration=texts, verify=None)
    assert {each.quantized.scales for each in whole.manifest.weights.values() if each.quantized} == {"fp16"}


def test_one_scale_for_each_output_stays_wide():
    with pytest.raises(ConfigError, match="scales.*fp32 for one scale per output"):
        WeightFormat(bits=8, block=None, scales="fp16")
    overrides = QuantizationOverrides(activations="per_token", scales="fp16")
    forms = {rule.format for rule in make_quantization("int8", overrides).rules if rule.format is not None}
    assert {(form.block, form.scales) for form in forms} == {(None, "fp32"), (128, "fp16")}
