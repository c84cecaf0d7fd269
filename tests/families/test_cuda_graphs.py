"""Graphs for CUDA of all that differ and of every kind of block: onnxruntime runs all nodes of their layers on the GPU.

The audit compares the files with the kernels that onnxruntime's CUDA provider lists; no GPU is needed.
`test_op_sets.py` has the same for float32, and runs float32 twins of these graphs.
"""

import functools

import onnx_ir as ir
import pytest
import torch
from op_set_kinds import KINDS
from op_set_models import ENCODERS, FAMILIES, PAIRS, family_config
from rows import WITH_ALL_OPS
from slow_rows import slow_after, slow_unless

from edgeformer.check.providers.audit import audit_graph
from edgeformer.check.providers.kernel_table import kernel_table
from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.export.capture.trace import capture
from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.export.lower import LoweringOptions, lower
from edgeformer.export.reference.reference import CastWeights
from edgeformer.manifest.quantization import make_quantization
from edgeformer.models.model_spec import model_spec_of

LOWERINGS = {
    "ort": LoweringOptions(provider="cuda"),
    "ort, int4": LoweringOptions(provider="cuda", quantization=make_quantization("int4")),
    "ort, int8": LoweringOptions(provider="cuda", quantization=make_quantization("int8")),
    "standard": LoweringOptions(provider="cuda", ops="standard", cache_form="dynamic"),
    "standard static": LoweringOptions(provider="cuda", ops="standard", cache_form="static"),
    "portable": LoweringOptions(provider="cuda", ops="portable", cache_form="dynamic"),
    "portable static": LoweringOptions(provider="cuda", ops="portable", cache_form="static"),
}
FAST = {"llama", "bert", "t5-bias", "chunk", "experts of gpt-oss", "experts in groups"}
"""Models that have between them the ops that differ on CUDA; the others are slow."""
NAMES = [*FAMILIES, *PAIRS, *ENCODERS, *KINDS]
DIFFERENT = [name for name in NAMES if name in WITH_ALL_OPS or name in KINDS]
"""The families whose graphs differ, and every kind of block: variants have the same ops."""
MODELS = slow_unless(FAST, DIFFERENT)


@functools.lru_cache(maxsize=1)
def captured(name, dtype):
    """The canonical graphs of a model."""
    config = KINDS[name] if name in KINDS else family_config(name)
    spec, weights = model_spec_of(config), CastWeights(RandomWeights(config, 0), dtype)
    return [capture(each, spec, weights, dtype) for each in spec.graphs]


HALF, BRAIN = ir.DataType.FLOAT16, ir.DataType.BFLOAT16


def in_bfloat16(graph):
    """Return what a trace in bfloat16 gives: the graph in float16 with another type. Tracing takes most of the time."""
    graph = graph.clone()
    for node in graph.graph.all_nodes():
        for name in ("to", "dtype"):
            if name in node.attributes and node.attributes[name].value == HALF:
                node.attributes[name] = ir.AttrInt64(name, BRAIN.value)
        assert all(
            each.value.dtype != HALF for each in node.attributes.values() if each.type == ir.AttributeType.TENSOR
        )
    made = (output for node in graph.graph.all_nodes() for output in node.outputs)
    for value in (*graph.graph.inputs, *graph.graph.initializers.values(), *made):
        if value.dtype == HALF:
            value.type = ir.TensorType(BRAIN)  # a clone shares the old one with its original
        tensor = value.const_value
        if isinstance(tensor, StreamedTensor) and tensor.dtype == HALF:
            value.const_value = StreamedTensor(tensor.name, BRAIN, tensor.shape, tensor.source, tensor.values)
        elif tensor is not None and tensor.dtype == HALF:
            value.const_value = ir.tensor(tensor.numpy().astype(BRAIN.numpy()), name=tensor.name)
    return graph


def findings(name, lowering, dtype=torch.float16, device="cuda"):
    """The audit of a model's graphs in a lowering, for a device."""
    found = []
    for graph in captured(name, torch.float16):
        graph = graph.clone() if dtype == torch.float16 else in_bfloat16(graph)
        lower(graph, lowering)
        found += audit_graph(name, ir.serde.serialize_model(graph), kernel_table(device)).findings
    return [str(each) for each in found]


@pytest.mark.parametrize("name", MODELS)
def test_no_node_of_a_layer_runs_on_the_cpu(name):
    found = {title: findings(name, lowering) for title, lowering in LOWERINGS.items()}
    assert {title: each for title, each in found.items() if each} == {}


BFLOAT16 = {"llama", "experts in groups"}
"""Models whose graphs in bfloat16 are audited by default: the other one has ops without kernels."""


@pytest.mark.parametrize(
    "name",
    slow_unless(BFLOAT16, DIFFERENT),
)
def test_no_node_of_a_layer_lacks_a_bfloat16_kernel(name):
    titles = ("ort", "ort, int4", "ort, int8", "standard static")
    found = {title: findings(name, LOWERINGS[title], torch.bfloat16) for title in titles}
    assert {title: each for title, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "name",
    slow_after(2, ["gemma2", "experts of gpt-oss", "t5-bias", "chunk", "qwen3_next"]),
)
def test_a_trace_in_bfloat16_has_another_type_alone(name):
    def said(graph):
        model = ir.serde.serialize_model(graph)
        weights = [(each.name, each.data_type, *each.dims) for each in model.graph.initializer]
        return [model.graph.node, model.graph.input, model.graph.output, model.graph.value_info, weights]

    traced, retyped = captured(name, torch.bfloat16), map(in_bfloat16, captured(name, torch.float16))
    assert [said(graph) for graph in traced] == [said(graph) for graph in retyped]


def test_a_graph_for_the_cpu_is_found():
    """Its attention has a bias of scores beside sinks, which the CUDA kernel does not take."""
    (found,) = findings("t5-bias", LoweringOptions())
    assert "it has a bias of scores and a sink, of which the kernel takes one" in found
