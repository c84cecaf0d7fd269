"""Quantized weights: how blocks are rounded and packed, what kernels make of it, what is quantized, what is written."""

import gc
import json
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import gguf
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from build_graph import build_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from safetensors.torch import load_file, save_file

from edgeformer.checkpoints import expert_weights
from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import DecoderConfig
from edgeformer.documents import schema
from edgeformer.errors import ConfigError, ExportError
from edgeformer.export import export_model, verify
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.bundle.writer import GraphWriter
from edgeformer.export.graph.tensors import StreamedTensor, TensorSource
from edgeformer.export.lower import LoweringOptions
from edgeformer.export.parity.trials.quantized_weights import BLOCK_ERROR_LIMIT, _block_error, judge_weights
from edgeformer.export.quantize import quantized_tensor as weights
from edgeformer.export.quantize import rounding
from edgeformer.export.quantize.packing import pack, unpack
from edgeformer.export.quantize.quantized_tensor import QuantizedMatrix, QuantizedTensor, by_matrix, dequantized
from edgeformer.export.quantize.rounding import in_blocks, ranges_of_least_cost, round_blocks
from edgeformer.families import read_model_config
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import (
    Quantization,
    QuantizationOverrides,
    QuantizationRule,
    WeightFormat,
    make_quantization,
)
from edgeformer.models.model_spec import model_spec_of

FORMATS = [
    WeightFormat(bits=bits, block=block, symmetric=symmetric)
    for bits in (4, 8)
    for block in (16, 32, 128)
    for symmetric in (True, False)
]
KINDS = ("normal", "zeros", "constant", "positive", "negative", "two values", "outlier")


def drawn(kind: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Blocks of one kind."""
    blocks = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    match kind:
        case "zeros":
            return torch.zeros(shape)
        case "constant":
            return blocks[..., :1].expand(shape).contiguous()
        case "positive":
            return blocks.abs() + 0.1
        case "negative":
            return -blocks.abs() - 0.1
        case "two values":
            return blocks.sign()
        case "outlier":
            blocks[..., 3] = 50.0
    return blocks


@st.composite
def some_blocks(draw):
    """Blocks [N, B, L] float32, half of them of one kind, half of another, and a format for them."""
    form = WeightFormat(
        bits=draw(st.sampled_from((4, 8))),
        block=draw(st.sampled_from((16, 32, 64))),
        symmetric=draw(st.booleans()),
    )
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 3)), form.block
    kinds, seed = draw(st.tuples(*[st.sampled_from(KINDS)] * 2)), draw(st.integers(0, 2**20))
    blocks = torch.cat([drawn(kind, shape, seed + place) for place, kind in enumerate(kinds)])
    return blocks * 2.0 ** draw(st.integers(-60, 60)), form


def with_rounding(form, name):
    return WeightFormat(bits=form.bits, block=form.block, symmetric=form.symmetric, rounding=name)


def squared_error(blocks, form):
    return (round_blocks(blocks, form).weights().double() - blocks.double()).square().sum(-1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(some_blocks())
def test_nearest_errs_by_at_most_half_a_step_within_the_range(drawn_blocks):
    """There it has one integer less, so what is as far out as the largest weight of the other sign is off by a step."""
    blocks, form = drawn_blocks
    rounded = round_blocks(blocks, form)
    assert rounded.integers.dtype == rounded.zeros.dtype == torch.uint8
    assert int(rounded.integers.max()) < 2 * form.zero and int(rounded.zeros.max()) < 2 * form.zero
    steps = rounded.scales.double().abs()[..., None]
    errors = (rounded.weights().double() - blocks.double()).abs()
    in_steps = torch.where(steps == 0, errors, errors / steps)
    assert in_steps.max() <= 1 + 1e-4
    allowed = torch.full_like(in_steps, 0.5)
    if form.symmetric:
        beyond = blocks.double() / rounded.scales.double()[..., None] - (form.zero - 1)
        allowed = beyond.nan_to_num(0, 0, 0).clamp(min=0.5)
        assert (rounded.zeros == form.zero).all()
    assert (in_steps <= allowed + 1e-4).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nearest_symmetric_int4_is_q4_0_of_gguf(dtype):
    """Bfloat16 has blocks with extremes of both signs, and halves of steps."""
    weights = torch.randn(512, 256, generator=torch.Generator().manual_seed(3)).mul(0.05).to(dtype).float()
    stored = gguf.quantize(weights.numpy(), gguf.GGMLQuantizationType.Q4_0).reshape(512, -1, 18)
    halves = np.concatenate([stored[..., 2:] & 15, stored[..., 2:] >> 4], -1)
    found = round_blocks(weights.unflatten(1, (-1, 32)), WeightFormat(bits=4, block=32, rounding="nearest"))
    np.testing.assert_array_equal(found.integers.numpy(), halves)
    np.testing.assert_array_equal(found.scales.half().numpy(), stored[..., :2].copy().view(np.float16)[..., 0])


def test_half_a_step_is_not_met_where_a_symmetric_range_ends():
    """The control: without the allowance the property above does not hold."""
    form = WeightFormat(bits=4, block=16)
    rounded = round_blocks(drawn("two values", (1, 1, 16), 0), form)
    assert (rounded.weights() - drawn("two values", (1, 1, 16), 0)).abs().max() == rounded.scales.abs().max()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(some_blocks())
def test_mse_never_errs_more_than_nearest_in_any_block(drawn_blocks):
    blocks, form = drawn_blocks
    power = blocks.double().square().sum(-1)
    nearest, mse = (squared_error(blocks, with_rounding(form, name)) for name in ("nearest", "mse"))
    # The search compares in float32 how much of a block's power integers explain, and tells no less apart.
    assert (mse <= nearest * (1 + 1e-5) + power * 2**-24).all()


def test_mse_errs_less_on_what_weights_look_like():
    blocks = drawn("normal", (64, 4, 32), 0)
    for bits, gain in ((4, 0.92), (8, 1)):
        form = WeightFormat(bits=bits, block=32)
        assert squared_error(blocks, with_rounding(form, "mse")).sum() < gain * squared_error(blocks, form).sum()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(some_blocks(), st.sampled_from(("nearest", "mse")))
def test_magnitudes_do_not_matter(drawn_blocks, name):
    """A power of two more or less gives the same integers, as far as float32 reaches."""
    blocks, form = drawn_blocks
    form = with_rounding(form, name)
    largest = float(blocks.abs().max()) or 1.0
    blocks = blocks / largest
    plain = round_blocks(blocks, form)
    for power in (2.0**-110, 2.0**127):
        scaled = round_blocks(blocks * power, form)
        assert torch.equal(scaled.integers, plain.integers) and torch.equal(scaled.zeros, plain.zeros)
        assert torch.equal(scaled.scales, plain.scales * power)


@pytest.mark.parametrize("name", ["nearest", "mse"])
@pytest.mark.parametrize("form", [form for form in FORMATS if form.block == 32], ids=str)
def test_nearly_infinite_weights_survive_as_their_scales_do(form, name):
    blocks = drawn("normal", (3, 2, 32), 0) * 1e-39
    errors = (round_blocks(blocks, with_rounding(form, name)).weights() - blocks).abs()
    smallest = 2.0**-149  # scales are no finer
    assert errors.max() <= float(blocks.abs().max()) / form.zero + form.zero * smallest
    assert torch.isfinite(round_blocks(blocks * 1e-6, with_rounding(form, name)).weights()).all()


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_zeros_stay_zeros(form):
    for name in ("nearest", "mse"):
        blocks = torch.cat([torch.zeros(1, 2, form.block), drawn("normal", (1, 2, form.block), 0)])
        rounded = round_blocks(blocks, with_rounding(form, name))
        assert not rounded.weights()[0].any() and not rounded.scales[0].any()
        assert (rounded.integers[0] == rounded.zeros[0][..., None]).all()


def test_asymmetric_blocks_hold_constants_and_pairs_exactly():
    for bits in (4, 8):
        for kind in ("constant", "two values", "zeros"):
            blocks = drawn(kind, (4, 3, 32), 1)
            form = WeightFormat(bits=bits, block=32, symmetric=False, rounding="mse")
            assert (round_blocks(blocks, form).weights() - blocks).abs().max() <= 1e-6


@pytest.mark.parametrize("scales", ["fp32", "fp16"])
@pytest.mark.parametrize("bits", [4, 8])
def test_what_was_rounded_symmetrically_before_stays(bits, scales):
    """As blocks of GGUF's Q8_0 are: a float16 scale of the largest magnitude over 127. The control is `nearest`."""
    form = WeightFormat(bits=bits, block=32, rounding="mse", scales=scales)
    blocks = drawn("normal", (64, 4, 32), 3)
    scale = (blocks.abs().amax(-1, keepdim=True) / (form.zero - 1)).half().float()
    blocks = (blocks / scale).round().clamp(1 - form.zero, form.zero - 1) * scale
    of_mse, of_nearest = (squared_error(blocks, replace(form, rounding=name)).sum() for name in ("mse", "nearest"))
    costs = torch.ones(4, 32)
    ranges, _ = ranges_of_least_cost(blocks, costs, form)
    assert of_mse < 1e-10 * blocks.square().sum() < of_nearest
    torch.testing.assert_close(ranges.abs(), scale[..., 0])


@pytest.mark.parametrize("form", [WeightFormat(bits=4, block=32, rounding="mse"), WeightFormat(bits=8, block=32)])
def test_the_size_of_the_pieces_that_are_rounded_changes_nothing(form, monkeypatch):
    blocks = drawn("normal", (23, 3, 32), 0)
    whole = round_blocks(blocks, form)
    for size in (1, 3 * 32, 3 * 32 * 7, 3 * 32 * 23 + 1):
        monkeypatch.setattr(rounding, "CHUNK", size)
        pieces = round_blocks(blocks, form)
        for part in ("integers", "scales", "zeros"):
            assert torch.equal(getattr(pieces, part), getattr(whole, part))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(some_blocks(), st.sampled_from(("nearest", "mse")))
def test_the_check_of_block_errors_lets_every_right_block_pass(drawn_blocks, name):
    blocks, form = drawn_blocks
    form = with_rounding(form, name)
    rounded = round_blocks(blocks, form).weights()
    assert _block_error(blocks.flatten(1), rounded.flatten(1), form) <= BLOCK_ERROR_LIMIT
    if blocks.any():
        other = round_blocks(drawn("normal", tuple(blocks.shape), 99) * blocks.abs().amax(), form).weights()
        assert _block_error(blocks.flatten(1), other.flatten(1), form) > BLOCK_ERROR_LIMIT  # the control: other weights


def test_the_check_of_block_errors_finds_one_block_of_many():
    form = WeightFormat(bits=8, block=32)
    blocks = torch.cat([drawn("normal", (5, 4, 32), 0), torch.zeros(1, 4, 32)])
    for row in (2, 5):
        rounded = round_blocks(blocks, form).weights()
        rounded[row, 1] += 0.05
        assert _block_error(blocks.flatten(1), rounded.flatten(1), form) > BLOCK_ERROR_LIMIT
    assert _block_error(blocks.flatten(1), torch.full_like(blocks, torch.nan).flatten(1), form) == torch.inf


def test_zeros_that_fill_a_block_hide_no_error():
    form, weight = WeightFormat(bits=8, block=32), drawn("normal", (5, 1, 36), 0).flatten(1)
    rounded = round_blocks(in_blocks(weight, 32), form).weights().flatten(1)
    assert not rounded[:, 36:].any()
    rounded = rounded[:, :36]
    assert _block_error(weight, rounded, form) <= BLOCK_ERROR_LIMIT
    steps = weight[:, 32:].abs().amax(1, keepdim=True) / form.zero
    assert _block_error(weight, torch.cat([rounded[:, :32], weight[:, 32:] + 0.6 * steps], 1), form) > BLOCK_ERROR_LIMIT


# Bytes.

PACKED = [
    (4, [1, 2], [0x21]),
    (4, [15, 0, 3, 12], [0x0F, 0xC3]),
    (4, [7, 8, 9], [0x87, 0x09]),
    (8, [7, 255, 0], [7, 255, 0]),
]


@pytest.mark.parametrize(("bits", "integers", "packed"), PACKED)
def test_integers_lie_in_bytes_low_half_first(bits, integers, packed):
    found = pack(torch.tensor([integers], dtype=torch.uint8), bits)
    assert found.tolist() == [packed]
    assert unpack(found, bits, len(integers)).tolist() == [integers]


def streamed(matrix, dtype=ir.DataType.FLOAT):
    return StreamedTensor("w", dtype, ir.Shape(matrix.shape), TensorSource(("w",)), {"w": matrix})


def parts_of(matrix, form, columns=False, flat=False):
    """The stored parts of a matrix as numpy arrays, in the order in which kernels read them."""
    tensors = QuantizedMatrix(streamed(matrix), form, columns=columns).parts(flat=flat)
    return [tensor.read().reshape(tensor.sizes).numpy() for tensor in tensors]


def meant(parts, form, high_half_first=False):
    """What stored parts mean, by numpy: integer by integer as ONNX Runtime's documentation lays them out."""
    outputs, blocks = parts[1].shape
    taken = [value.reshape(outputs, -1) for value in (parts[0], *parts[2:])]
    if form.bits == 4:
        halves = [(value >> 4, value & 15) if high_half_first else (value & 15, value >> 4) for value in taken]
        taken = [np.stack(half, -1).reshape(outputs, -1) for half in halves]
    steps = taken[0].reshape(outputs, blocks, -1).astype(np.float64)
    zeros = taken[1][:, :blocks, None].astype(np.float64) if len(taken) > 1 else form.zero
    return ((steps - zeros) * parts[1][..., None]).reshape(outputs, -1)


def session_of(op_type, x_type, x_dims, parts, attributes):
    """A graph of one node over stored parts, with products in float32: nothing is prepacked."""
    names = ["integers", "scales", "zero_points"][: len(parts)]
    first, second = ("x", "integers") if op_type == "MatMulNBits" else ("integers", "x")
    node = helper.make_node(op_type, [first, second, *names[1:]], ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", x_type, x_dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(part, name) for part, name in zip(parts, names, strict=True)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(model.SerializeToString(), options)


OUTPUTS = 24


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_product_with_stored_parts_is_one_with_what_they_mean(form, blocks):
    torch.manual_seed(0)
    inputs = blocks * form.block
    matrix = torch.randn(inputs, OUTPUTS)
    parts = parts_of(matrix, form, columns=True)
    attributes = {"K": inputs, "N": OUTPUTS, "bits": form.bits, "block_size": form.block, "accuracy_level": 4}
    session = session_of("MatMulNBits", TensorProto.FLOAT, [5, inputs], parts, attributes)
    x = np.random.default_rng(0).normal(size=(5, inputs)).astype(np.float32)
    expected = x @ meant(parts, form).T
    scale = np.abs(expected).max()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=0, atol=1e-5 * scale)
    if form.bits == 4:
        assert np.abs(x @ meant(parts, form, high_half_first=True).T - expected).max() > 0.1 * scale
    tensors = dict(zip(("integers", "scales", "zero_points"), map(torch.from_numpy, parts), strict=False))
    np.testing.assert_allclose(dequantized(tensors, form), meant(parts, form), rtol=1e-6)
    steps = np.abs(parts[1]).repeat(form.block, 1)
    assert np.abs(meant(parts, form) - matrix.numpy().T).max() <= steps.max()


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_lookup_in_stored_parts_finds_what_they_mean(form, blocks):
    torch.manual_seed(0)
    parts = parts_of(torch.randn(OUTPUTS, blocks * form.block), form, flat=True)
    attributes = {"bits": form.bits, "block_size": form.block, "gather_axis": 0, "quantize_axis": 1}
    session = session_of("GatherBlockQuantized", TensorProto.INT64, [2, 3], parts, attributes)
    ids = np.array([[0, 7, OUTPUTS - 1], [7, 7, 1]])
    np.testing.assert_allclose(session.run(None, {"x": ids})[0], meant(parts, form)[ids], rtol=1e-5, atol=1e-6)
    if form.bits == 4:
        assert np.abs(meant(parts, form, high_half_first=True) - meant(parts, form)).max() > 0.1


def test_parts_by_rows_and_by_columns_are_the_same():
    matrix, form = drawn("normal", (6, 64), 0), WeightFormat(bits=4, block=32, symmetric=False)
    for by_rows, by_columns in zip(parts_of(matrix, form), parts_of(matrix.t(), form, columns=True), strict=True):
        assert np.array_equal(by_rows, by_columns)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_format_knows_what_a_matrix_takes(form):
    parts = parts_of(torch.randn(OUTPUTS, 3 * form.block), form)
    assert sum(part.nbytes for part in parts) == form.bytes_of(OUTPUTS, 3 * form.block)


class Rows(dict):
    """Weights of which only rows are read, a given number of elements at most."""

    def __init__(self, weights, most):
        super().__init__(weights)
        self.most = most

    def __getitem__(self, name):
        raise AssertionError(f"{name} is read as a whole")

    def read_rows(self, name, rows):
        part = self.get(name)[rows]
        assert part.numel() <= self.most
        return part


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("form", [*FORMATS, None], ids=str)
def test_a_large_table_is_written_some_rows_at_a_time(form, flat, monkeypatch):
    """Each piece is quantized once for all parts, and the bytes are those of a table that is read as a whole."""
    matrix = drawn("normal", (OUTPUTS, 96 if form is None else 3 * form.block), 0)
    whole = streamed(matrix)
    expected = [whole] if form is None else QuantizedMatrix(whole, form, columns=False).parts(flat=flat)
    expected = [tensor.read() for tensor in expected]
    monkeypatch.setattr(expert_weights, "LARGE", 5 * matrix.shape[1])
    rounded = []
    monkeypatch.setattr(weights, "round_blocks", lambda *args: rounded.append(0) or round_blocks(*args))
    table = whole.of(Rows({"w": matrix}, 5 * matrix.shape[1]))
    parts = [table] if form is None else QuantizedMatrix(table, form, columns=False).parts(flat=flat)
    chunks = [list(part.chunks()) for _, part in by_matrix(dict(enumerate(parts)))]
    assert {len(each) for each in chunks} == {5}
    assert all(torch.equal(torch.cat(found), value) for found, value in zip(chunks, expected, strict=True))
    assert len(rounded) == (0 if form is None else 5)


def test_a_bundle_with_a_large_table_reads_and_verifies_rows(monkeypatch, make_model, tmp_path):
    """The file is that of small tables; a wrong row of the table in the last piece fails its check."""
    sizes = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    folder = make_model("llama", **sizes, num_attention_heads=4, max_position_embeddings=128)
    export_model(folder, tmp_path / "whole", precision="int4", verify=None)
    monkeypatch.setattr(expert_weights, "LARGE", 512)
    bundle = export_model(folder, tmp_path / "rows", precision="int4", verify=None)
    for name in ("model.onnx", "model.onnx_data"):
        assert (tmp_path / "rows/onnx" / name).read_bytes() == (tmp_path / "whole/onnx" / name).read_bytes()
    report = verify(tmp_path / "rows", folder, mode="quick")
    assert report.passed, report.describe()
    original = dict(open_source(folder).weights())
    changed = original | {"embedding.weight": original["embedding.weight"].clone()}
    changed["embedding.weight"][-1] += 0.5
    stored = StoredWeights(tmp_path / "rows", bundle.manifest, model_spec_of(bundle.manifest.model))
    assert all(check.passed for check in judge_weights(original, stored))
    assert not all(check.passed for check in judge_weights(changed, stored))


def test_float16_scales_that_overflow_are_refused_by_name():
    tensor, form = streamed(torch.randn(16, 32) * 1e7, ir.DataType.FLOAT16), WeightFormat(bits=4, block=32)
    with pytest.raises(ExportError, match="w holds values whose scales are beyond float16's 65504. Export with"):
        QuantizedTensor(QuantizedMatrix(tensor, form, columns=False), "scales").read()


# What is quantized.


def test_the_first_rule_that_fits_decides():
    small, large = WeightFormat(bits=4, block=32), WeightFormat(bits=8, block=128)
    rules = Quantization(
        rules=(
            QuantizationRule(pattern="blocks.0.*", format=large),
            QuantizationRule(pattern="*.down.weight", format=None),
            QuantizationRule(pattern="blocks.*", format=small),
        )
    )
    assert rules.format_of("blocks.0.feed_forward.down.weight") == large
    assert rules.format_of("blocks.1.feed_forward.down.weight") is None
    assert rules.format_of("blocks.1.feed_forward.up.weight") == small
    assert rules.format_of("embedding.weight") is None
    shown = "blocks.0.* int8 in blocks of 128; *.down.weight not quantized; blocks.* int4 in blocks of 32"
    assert str(rules) == shown
    assert schema.from_json(Quantization, json.loads(json.dumps(schema.to_json(rules)))) == rules


def test_a_quantization_is_made_of_overrides():
    options = make_quantization(
        "int4", QuantizationOverrides(block=64, symmetric=False, rounding="nearest", head="int8", keep=("blocks.0.*",))
    )
    assert options.format_of("blocks.0.attention.query.weight") is None
    asymmetric = {"symmetric": False, "rounding": "nearest", "block": 64}
    assert options.format_of("blocks.1.attention.query.weight") == WeightFormat(bits=4, **asymmetric)
    assert options.format_of("head.weight") == options.format_of("embedding.weight")
    assert options.format_of("head.weight") == WeightFormat(bits=8, **asymmetric)
    assert make_quantization("int4", QuantizationOverrides(head="fp32")).format_of("encoder.embedding.weight") is None
    assert make_quantization("int4").format_of("blocks.1.feed_forward.up.weight") == WeightFormat(
        bits=4, block=32, rounding="mse"
    )
    assert make_quantization("int8").format_of("blocks.1.feed_forward.up.weight") == WeightFormat(bits=8, block=128)


@pytest.mark.parametrize(
    "name",
    [
        "position_embedding.weight", "encoder.token_type_embedding.weight", "encoder.relative.0.weight",
        "rotary.0.cos", "encoder.positions.table", "blocks.0.attention.key_relations", "blocks.0.attention.query.bias",
    ],
)  # fmt: skip
def test_tables_are_left_as_they_are(name):
    assert make_quantization("int4").format_of(name) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 48}, "^block is 48; it must be one of 16, 32, 64, 128, 256, or None."),
        ({"rounding": "up"}, "^rounding is 'up'; it must be one of nearest, mse"),
        ({"head": "fp16"}, "^head is 'fp16'; it must be one of fp32, int4, int8"),
    ],
)
def test_overrides_that_cannot_be_are_said(options, message):
    with pytest.raises(ConfigError, match=message):
        make_quantization("int4", QuantizationOverrides(**options))


@pytest.mark.parametrize(
    ("inputs", "block", "fitted"), [(576, 128, 64), (96, 128, 32), (256, 256, 256), (40, 32, None), (48, 32, 16)]
)
def test_a_block_is_the_largest_that_divides_the_inputs(inputs, block, fitted):
    found = WeightFormat(bits=4, block=block, symmetric=False, rounding="mse").fitted(inputs)
    assert found == (None if fitted is None else WeightFormat(bits=4, block=fitted, symmetric=False, rounding="mse"))


@pytest.mark.parametrize(
    ("inputs", "block", "fitted"),
    [
        (576, 128, 64), (4304, 128, 128), (4304, 64, 64), (3420, 32, 32), (4320, 32, 32), (96, 128, 32), (40, 32, None),
        (4304, None, None),
    ],
)  # fmt: skip
def test_zeros_may_fill_the_last_block_of_a_product(inputs, block, fitted):
    """Blocks of 16 divide SigLIP's 4,304 inputs, and no block divides the 3,420 of Qwen2.5-VL's tower."""
    form = WeightFormat(bits=8, block=block, rounding="mse" if block else "nearest")
    found = form.fitted_to_product(inputs)
    assert found == (None if fitted is None and block else WeightFormat(bits=8, block=fitted, rounding=form.rounding))
    calibrated = WeightFormat(bits=4, block=32, rounding="gptq")
    assert calibrated.fitted_to_product(inputs) == calibrated.fitted(inputs)


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_filled_block_is_stored_whole_on_cpus_alone(symmetric):
    quantization = make_quantization("int4", QuantizationOverrides(block=64, symmetric=symmetric))
    for provider, block, blocks in (("cpu", 64, 16), ("webgpu", 16, 63)):
        model = config(intermediate_size=1008)
        lowering = LoweringOptions(quantization=quantization, provider=provider)
        graph, _ = build_graph(model_spec_of(model), RandomWeights(model, 0), lowering=lowering)
        name = "blocks.0.feed_forward.down.weight"
        sizes = [graph.graph.initializers[f"{name}.{part}"].shape.numpy() for part in ("integers", "scales")]
        assert sizes == [(64, blocks, block // 2), (64, blocks)]
        form = quantization.format_of(name)
        stored = graph.graph.initializers.values()
        content = [each.const_value.nbytes for each in stored if each.name.startswith(f"{name}.")]
        assert sum(content) == replace(form, block=block).bytes_of(64, 1008)


def config(**options) -> DecoderConfig:
    data = {
        "model_type": "llama", "vocab_size": 31, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 32,
    }  # fmt: skip
    return read_model_config(data | options)[1]


def lowered(model, quantization, weights=None):
    """The graph of a model for `ort`, and the report of the pass that quantized it."""
    values = weights or RandomWeights(model, 0)
    graph, how = build_graph(model_spec_of(model), values, lowering=LoweringOptions(quantization=quantization))
    return graph, next(done for done in how.passes if done.name == "quantize_weights")


def ops(graph):
    return [node.op_type for node in graph.graph]


def test_biases_and_gelu_are_done_with_their_products():
    graph, _ = lowered(
        config(model_type="starcoder2", use_bias=True, tie_word_embeddings=True), make_quantization("int8")
    )
    found = Counter(ops(graph))
    assert {name: found[name] for name in found if "MatMul" in name} == {
        "MatMulNBitsBias": 2 * 2,
        "MatMulNBitsFeedForward": 2,
        "MatMulNBits": 1,
    }
    assert found["Gelu"] == 0 and found["Add"] == 0
    bodies = {function.name: [node.op_type for node in function] for function in graph.functions.values()}
    assert bodies["MatMulNBitsBias"] == ["MatMulNBits", "Add"]
    assert bodies["MatMulNBitsBiasGelu"] == ["MatMulNBits", "Add", "Gelu"]
    assert bodies["MatMulNBitsFeedForward"] == bodies["MatMulNBitsBiasGelu"] + bodies["MatMulNBitsBias"]


@pytest.mark.parametrize(("precision", "block", "of_tower"), [("int4", 64, 128), ("int4", None, 128), ("int8", 64, 64)])
def test_a_block_is_of_matrices_of_the_precision(precision, block, of_tower):
    """Small blocks of int4 would make a tower in int8 slower, and no better."""
    found = make_quantization(precision, QuantizationOverrides(tower="int8", block=block), tower=True)
    form = found.format_of("tower.blocks.0.feed_forward.up.weight")
    assert (form.bits, form.block) == (8, of_tower)


def test_every_product_and_gather_is_quantized_if_blocks_fit():
    graph, report = lowered(config(), make_quantization("int8"))
    assert (report.changed, report.missed) == (2 * 5 + 2, [])
    assert (ops(graph).count("MatMulNBits"), ops(graph).count("MatMulNBitsSwiGLU")) == (2 * 3 + 1, 2)
    assert (ops(graph).count("GatherBlockQuantized"), ops(graph).count("MatMul")) == (1, 0)
    attributes = {
        node.name: {name: node.attributes.get_int(name) for name in ("K", "N", "bits", "block_size")}
        for node in graph.graph
        if node.op_type == "MatMulNBits"
    }
    down = attributes["blocks.1.feed_forward.down/MatMul"]
    assert down == {"K": 96, "N": 64, "bits": 8, "block_size": 32}
    packed = next(found for name, found in attributes.items() if name.startswith("blocks.0.attention.qkv/"))
    assert packed == {"K": 64, "N": 128, "bits": 8, "block_size": 64}
    bodies = {function.name: [node.op_type for node in function] for function in graph.functions.values()}
    assert bodies == {
        "MatMulNBits": ["MatMulNBits"],
        "MatMulNBitsSwiGLU": ["MatMulNBits", "Split", "Sigmoid", "Mul", "Mul"],
        "CachedAttention": ["GroupQueryAttention"],
        "AddRMSNorm": ["SkipSimplifiedLayerNormalization"],
    }
    (body,) = next(function for function in graph.functions.values() if function.name == "MatMulNBits")
    assert (body.domain, body.op_type, body.attributes.get_int("accuracy_level")) == ("com.microsoft", "MatMulNBits", 4)


def test_a_matrix_that_no_block_divides_is_left_and_said():
    graph, report = lowered(config(intermediate_size=40), make_quantization("int4"))
    reason = "blocks.{}.feed_forward.down.weight has 40 inputs, which no block of 16 or more fits"
    assert report.missed == [f"blocks.{layer}.feed_forward.down/MatMul: {reason.format(layer)}" for layer in range(2)]
    assert ops(graph).count("MatMul") == 2
    assert "blocks.0.feed_forward.down.weight" in graph.graph.initializers


def test_products_with_a_sum_stay_and_it_is_said():
    """Of one vector a text; in float32 they are one op with their bias."""
    data = {
        "model_type": "bert", "vocab_size": 31, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "max_position_embeddings": 32, "architectures": ["BertForSequenceClassification"],
    }  # fmt: skip
    graph, report = lowered(read_model_config(data)[1], make_quantization("int4"))
    assert report.missed == [
        f"classifier.{name}/Gemm: classifier.{name}.weight is in a product with a sum, a Gemm"
        for name in ("dense", "output")
    ]
    assert [ops(graph).count(name) for name in ("Gemm", "MatMulNBitsBias", "MatMulNBitsFeedForward")] == [2, 2, 1]


def test_kept_parameters_and_a_head_in_float32_stay():
    graph, _ = lowered(config(), make_quantization("int4", QuantizationOverrides(head="fp32", keep=("blocks.0.*",))))
    stored = [name for name in graph.graph.initializers if name.endswith(".integers")]
    assert sorted(stored) == [
        f"blocks.1.{name}.weight.integers"
        for name in ("attention.output", "attention.qkv", "feed_forward.down", "feed_forward.gate_up")
    ]
    assert "Gather" in ops(graph) and "head.weight" in graph.graph.initializers
    tied, _ = lowered(config(tie_word_embeddings=True), make_quantization("int4", QuantizationOverrides(head="fp32")))
    assert "FusedMatMul" in ops(tied)


def test_parameters_of_one_matrix_want_one_format():
    message = (
        "the quantization config has different formats for blocks.0.attention.query.weight, "
        "blocks.0.attention.key.weight, blocks.0.attention.value.weight, which are stored as one matrix. "
        "Write a pattern that fits all of them."
    )
    with pytest.raises(ExportError, match=message):
        lowered(config(), make_quantization("int4", QuantizationOverrides(keep=("*.query.weight",))))


def test_tables_of_positions_and_distances_are_not_quantized(make_model, tmp_path):
    sizes = {"vocab_size": 131, "d_model": 64, "decoder_start_token_id": 0}
    t5 = {"d_kv": 8, "d_ff": 96, "num_layers": 1, "num_heads": 16}
    marian = {
        "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64, "pad_token_id": 1,
    }  # fmt: skip
    tables = {
        "t5": {f"{half}.relative.0.weight" for half in ("encoder", "decoder")},
        "marian": {f"{half}.position_embedding.table" for half in ("encoder", "decoder")},
    }
    for family, options in (("t5", t5), ("marian", marian)):
        folder = make_model(family, auto="AutoModelForSeq2SeqLM", **sizes, **options)
        found = export_model(folder, tmp_path / family, precision="int4", context_length=64, verify=None)
        kept = {name for name, stored in found.manifest.weights.items() if stored.quantized is None}
        assert kept >= tables[family]
        assert sum(stored.part == "integers" for stored in found.manifest.weights.values()) > 10


# What is written.


@pytest.fixture(scope="module")
def exported(make_llama, tmp_path_factory):
    """Bundles by name, none of them verified, and the folders that they were made from."""
    folders = {
        "tied": make_llama(num_hidden_layers=2, tie_word_embeddings=True),
        "free": make_llama(num_hidden_layers=2),
    }
    place = tmp_path_factory.mktemp("bundles")
    made = {}
    for name, folder in folders.items():
        for precision in ("int4", "int8"):
            options = make_quantization(precision, QuantizationOverrides(symmetric=name == "free"))
            result = export_model(
                folder, place / f"{name}-{precision}", precision=precision, quantization=options, verify=None
            )
            made[name, precision] = result.path
    return made, folders


def external(bundle, graph="onnx/model.onnx"):
    """Where the graph's initializers lie in the file of weights: offset and length by name."""
    model = onnx.load(bundle / graph, load_external_data=False)
    entries = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in model.graph.initializer
    }
    return {name: (int(entry["offset"]), int(entry["length"])) for name, entry in entries.items() if entry}


@pytest.mark.parametrize("precision", ["int4", "int8"])
@pytest.mark.parametrize("head", ["tied", "free"])
def test_a_bundle_is_as_large_as_its_formats_say(exported, head, precision):
    bundle = exported[0][head, precision]
    manifest, places = Manifest.read(bundle), external(bundle)
    shapes = model_spec_of(manifest.model).parameter_shapes()
    formats = {
        stored.parameters: stored.quantized for stored in manifest.weights.values() if stored.quantized is not None
    }
    quantized = 0
    for parameters, form in formats.items():
        quantized += form.bytes_of(sum(shapes[name][0] for name in parameters), shapes[parameters[0]][1])
    others = {places[name] for name, stored in manifest.weights.items() if stored.quantized is None}
    assert sum(length for _, length in {*places.values()}) == quantized + sum(length for _, length in others)
    last = max(offset + length for offset, length in places.values())
    assert (bundle / "onnx" / "model.onnx_data").stat().st_size == last
    assert {name for parameters in formats for name in parameters} == {
        name for name, shape in shapes.items() if len(shape) == 2
    }


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_a_tied_embedding_is_stored_once_and_read_by_two_nodes(exported, precision):
    bundle = exported[0]["tied", precision]
    places = external(bundle)
    assert places["embedding.weight.integers"] == places["embedding.weight.integers.flat"]
    model = onnx.load(bundle / "onnx" / "model.onnx", load_external_data=False)
    readers = {node.op_type: list(node.input) for node in model.graph.node if "embedding.weight.scales" in node.input}
    assert readers.keys() == {"GatherBlockQuantized", "MatMulNBits"}
    assert set(readers["GatherBlockQuantized"]) & set(readers["MatMulNBits"]) == {
        "embedding.weight.scales", "embedding.weight.zero_points",
    }  # fmt: skip
    free = external(exported[0]["free", precision])
    assert free["embedding.weight.integers.flat"] != free["head.weight.integers"]


def test_the_manifest_keeps_the_quantization(exported):
    for (head, precision), bundle in exported[0].items():
        manifest = Manifest.read(bundle)
        assert manifest.plan.quantization == make_quantization(
            precision, QuantizationOverrides(symmetric=head == "free")
        )
        assert (manifest.plan.precision, manifest.plan.arithmetic) == (precision, "fp32")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_other_precisions_are_written_as_ever(exported, tmp_path, precision):
    folder = exported[1]["tied"]
    result = export_model(folder, tmp_path / "bundle", precision=precision, verify=None)
    assert result.manifest.plan.quantization is None
    original, places = open_source(folder).weights(), external(result.path)
    data = (result.path / "onnx" / "model.onnx_data").read_bytes()
    for name, stored in result.manifest.weights.items():
        assert (stored.quantized, stored.part, stored.columns) == (None, None, False)
        if name.startswith("rotary"):
            continue
        parameters = [
            original[parameter].to(torch.float16 if precision == "fp16" else torch.float32)
            for parameter in stored.parameters
        ]
        whole = torch.cat([each.t() if stored.transposed else each for each in parameters], -1)
        if stored.scaled is not None:
            whole[..., : stored.scaled.outputs] *= stored.scaled.factor
        assert (stored.scaled is not None) == (precision == "fp32" and ".qkv." in name)
        expected = whole.numpy().tobytes()
        offset, length = places[name]
        assert data[offset : offset + length] == expected, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"precision": "fp32", "quantization": make_quantization("int4")},
            r"a quantization config and its overrides \(--block.*\) are for int4 and int8, and the precision is fp32",
        ),
        ({"precision": "int4", "ops": "standard"}, "quantized products are ops of onnxruntime's own. Leave ops stand"),
        ({"precision": "int8", "ops": "portable"}, "quantized products are ops of onnxruntime's own. Leave ops porta"),
        ({"precision": "int2"}, "precision is 'int2'; it must be one of fp32, fp16, bf16, int8, int4, or None."),
    ],
)
def test_options_that_exclude_each_other_are_refused_early(llama_folder, tmp_path, options, message):
    with pytest.raises(ExportError, match=message):
        export_model(llama_folder, tmp_path / "bundle", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named(exported, tmp_path, value):
    parameters = load_file(exported[1]["free"] / "model.safetensors")
    parameters["model.layers.1.mlp.down_proj.weight"][3, 7] = value
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((exported[1]["free"] / "config.json").read_text())
    save_file(parameters, broken / "model.safetensors")
    message = "blocks.1.feed_forward.down.weight holds values that are not finite; they cannot be quantized. Export wi"
    with pytest.raises(ExportError, match=message):
        export_model(broken, tmp_path / "bundle", precision="int4", verify=None)
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


class Watched(Mapping):
    """Weights that remember which of them were read, and which are still in memory."""

    def __init__(self, weights):
        self.weights = weights
        self.read, self.alive, self.most = [], set(), set()

    def __getitem__(self, name):
        value = self.weights[name].clone()
        self.read.append(name)
        self.alive.add(name)
        weakref.finalize(value, self.alive.discard, name)
        self.most.add(frozenset(self.alive))
        return value

    def __contains__(self, name):
        return name in self.weights

    def __iter__(self):
        return iter(self.weights)

    def __len__(self):
        return len(self.weights)


def test_one_matrix_at_a_time_is_in_memory_and_rounded_once(tmp_path, monkeypatch):
    model = config(tie_word_embeddings=True)
    watched, rounded, left = Watched(RandomWeights(model, 0)), [], []

    def watching(blocks, form):
        left.append(sum(result() is not None for result in rounded))
        result = round_blocks(blocks, form)
        rounded.append(weakref.ref(result))
        return result

    monkeypatch.setattr(weights, "round_blocks", watching)
    graph, _ = lowered(model, make_quantization("int4", QuantizationOverrides(symmetric=False)), watched)
    assert watched.read == []
    GraphWriter(tmp_path, lambda what, part: None).write(graph, "onnx/model.onnx")
    assert sorted(watched.read) == sorted(watched.weights), "each is read once"
    assert len(rounded) == 2 * 4 + 1, "and each matrix rounded once, for all of its parts"
    joined = [
        {f"blocks.{layer}.{part}.weight" for layer in (0, 1) for part in parts}
        for parts in (
            ("attention.query", "attention.key", "attention.value"),
            ("feed_forward.gate", "feed_forward.up"),
        )
    ]
    assert all(len(alive) == 1 or any(alive <= names for names in joined) for alive in watched.most)
    assert not any(left), "what is written is let go before the next matrix is rounded"
    gc.collect()
    assert not watched.alive and not any(result() for result in rounded)


@pytest.mark.parametrize("key", ["integers", "zero_points"])
def test_one_matrix_at_a_time_is_in_memory(key, monkeypatch):
    """Parts of a matrix are far from each other, with `key` last; a part that is read alone leaves nothing behind."""
    alive, most = set(), []

    def watching(blocks, form):
        result = round_blocks(blocks, form)
        number = len(most)
        alive.add(number)
        weakref.finalize(result, alive.discard, number)
        most.append(len(alive))
        return result

    monkeypatch.setattr(weights, "round_blocks", watching)
    graph, _ = lowered(config(), make_quantization("int4", QuantizationOverrides(symmetric=False)))
    tensors = {name: value.const_value for name, value in graph.graph.initializers.items()}
    parts = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, QuantizedTensor)}
    shuffled = dict(sorted(parts.items(), key=lambda item: (item[1].part == key, item[1].part, item[0])))
    read = {name: part.read() for name, part in by_matrix(shuffled)}
    matrices = len({id(part.matrix) for part in parts.values()})
    assert len(most) == matrices and len(parts) == 3 * matrices
    assert read.keys() == parts.keys() and set(most) == {1} and not alive
    assert all(torch.equal(read[name], part.read()) for name, part in parts.items())
    assert len(most) == matrices + len(parts) and set(most) == {1} and not alive
