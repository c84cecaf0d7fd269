"""Tables of rotary embeddings that a graph with float16 scales computes when it is opened."""

from importlib import import_module

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper

from edgeformer.config import RotaryConfig, YarnScaling
from edgeformer.errors import ParityError
from edgeformer.export import export_model
from edgeformer.export.graph.tensors import StreamedTensor, TensorSource
from edgeformer.layers.position import rotary_table
from edgeformer.manifest.quantization import QuantizationOverrides

tables = import_module("edgeformer.export.passes.storage.compute_tables")  # the package has a function of this name
CONTEXT = 100
"""Positions of the model: no multiple of a block."""
YARN = YarnScaling(
    factor=4.0, original_context_length=2048, beta_fast=32.0, beta_slow=1.0, attention_factor=1.14, truncate=True
)


def rotary(**changes):
    return RotaryConfig(**{"interleaved": False, "scaling": None} | changes)


def joined(parts, positions):
    return [each.flatten(0, 1)[:positions] for each in tables._joined(*parts)]


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (rotary(base=1e5, rotary_dim=64), 8192),
        (rotary(base=1e4, rotary_dim=32), 5000),
        (rotary(base=1e4, rotary_dim=16, scaling=YARN), 8192),
        (rotary(base=1e4, rotary_dim=16, backward=True), 40),
    ],
    ids=["8,192", "no multiple of a block", "with a factor", "backward"],
)
def test_small_tables_make_the_large_ones(config, positions):
    exact = rotary_table(config, positions)
    parts = tables.parts_of(*exact)
    assert sum(part.numel() for part in parts) < exact[0].numel() or positions == 40
    for made, stored in zip(joined(parts, positions), exact, strict=True):
        assert (made - stored).abs().max() <= tables.SAME
        assert (made.float() - stored.float()).abs().max() <= 2.0**-24


def test_tables_that_are_made_otherwise_are_stored():
    cos, sin = rotary_table(rotary(base=1e4, rotary_dim=32), 256)
    of_two = [torch.cat((each[:100], each)) for each in (cos, sin)]  # of short and of long requests
    assert tables.parts_of(*of_two) is None
    wrong = sin.clone()
    wrong[200, 3] += 1e-7
    assert tables.parts_of(cos, wrong) is None
    assert tables.parts_of(*rotary_table(rotary(base=1e4, rotary_dim=128), 8192)) is not None
    assert tables.parts_of(*rotary_table(rotary(base=1e4, rotary_dim=128), 8193)) is None, "too large"


def export(checkpoint, folder, scales):
    return export_model(checkpoint, folder, precision="int4", quantization=QuantizationOverrides(scales=scales))


@pytest.fixture(scope="module")
def checkpoint(make_llama):
    return make_llama(num_hidden_layers=1, max_position_embeddings=CONTEXT)


def opened(bundle):
    """Return the tables of a graph as onnxruntime has them when it has opened it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(bundle / "onnx" / "opened.onnx")
    ort.InferenceSession(bundle / "onnx" / "model.onnx", options, providers=["CPUExecutionProvider"])
    graph = onnx.load(bundle / "onnx" / "opened.onnx").graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    [attention] = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    return [constants[name] for name in attention.input[7:9]]


def test_runtimes_find_the_tables_that_other_bundles_store(checkpoint, tmp_path):
    small, _ = (export(checkpoint, tmp_path / scales, scales) for scales in ("fp16", "fp32"))
    assert small.report.passed and any(each.name == "compute_tables" for each in small.lowered.passes)
    stored = {
        scales: {tensor.name: numpy_helper.to_array(tensor)
                 for tensor in onnx.load(tmp_path / scales / "onnx" / "model.onnx").graph.initializer
                 if tensor.name in ("rotary.0.cos", "rotary.0.sin")}
        for scales in ("fp16", "fp32")
    }  # fmt: skip
    assert not stored["fp16"] and len(stored["fp32"]) == 2
    for name, table in zip(("rotary.0.cos", "rotary.0.sin"), opened(small.path), strict=True):
        assert table.shape == (CONTEXT, 8) and np.abs(table - stored["fp32"][name]).max() <= 2.0**-24


def test_tables_that_are_computed_wrong_are_found(checkpoint, tmp_path, monkeypatch):
    right = tables.parts_of

    def a_position_late(cos, sin):
        cos_a, sin_a, cos_b, sin_b = right(cos, sin)
        return cos_a, sin_a, cos_b.roll(1, 1), sin_b.roll(1, 1)

    monkeypatch.setattr(tables, "parts_of", a_position_late)
    with pytest.raises(ParityError, match="prefill"):
        export(checkpoint, tmp_path / "bundle", "fp16")


def test_only_tables_of_the_model_are_computed():
    """Their names alone do not make them tables."""
    cos, sin = rotary_table(rotary(base=1e4, rotary_dim=8), 128)
    kinds = {
        "computed": (cos, sin, {}),
        "of one axis": (cos[:, 0], sin[:, 0], {}),
        "trained": (cos.float(), sin.float(), {}),
        "transposed": (cos, sin, {"transposed": True}),
    }
    for kind, (*stored, source) in kinds.items():
        names = ("rotary.0.cos", "rotary.0.sin")
        values = dict(zip(names, stored, strict=True))
        initializers = [
            ir.Value(
                name=name, const_value=StreamedTensor(
                    name, ir.DataType.FLOAT, ir.Shape(values[name].shape), TensorSource((name,), **source), values
                ), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(values[name].shape),
            )
            for name in names
        ]  # fmt: skip
        product = ir.node("Mul", initializers)
        graph = ir.Graph([], product.outputs, nodes=[product], initializers=initializers, opset_imports={"": 21})
        assert tables.compute_tables(ir.Model(graph, ir_version=10)).changed == (kind == "computed"), kind


def test_a_target_size_counts_no_table_that_is_computed():
    config = rotary(base=1e4, rotary_dim=32)
    names = ("cos", "sin")
    constants = {f"rotary.0.{name}": table for name, table in zip(names, rotary_table(config, 256), strict=True)}
    constants |= {f"rotary.1.{name}": torch.randn(9, 4).double() for name in names} | {"distances": torch.ones(3)}
    assert tables.computed_tables(constants) == {"rotary.0.cos", "rotary.0.sin"}
