"""The graph's machinery: inputs by name, recorded origins of nodes, reports."""

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.contract.ops import ATTENTION, DOMAIN
from edgeformer.export.capture import capture_graph
from edgeformer.export.graph.canonical import INPUTS, OPS, canonical_inputs, translation_table
from edgeformer.export.graph.editing import canonical_nodes
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import UNRECORDED, NodeOrigin, origin_of
from edgeformer.export.lower import LoweringOptions, lower_captured
from edgeformer.export.passes import pack_qkv, transpose_weights
from edgeformer.families import read_model_config
from edgeformer.manifest.quantization import make_quantization
from edgeformer.models.model_spec import model_spec_of

SIZES = {
    "vocab_size": 31, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 32,
}  # fmt: skip
LLAMA = {"model_type": "llama", "num_key_value_heads": 2, **SIZES}
T5 = {
    "model_type": "t5", "vocab_size": 31, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4,
    "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def captured(data):
    """The canonical graphs of a random model, each with its spec."""
    config = read_model_config(data)[1]
    model_spec = model_spec_of(config)
    weights = RandomWeights(config, 0)
    return [(spec, capture_graph(model_spec, weights, "fp32", spec)) for spec in model_spec.graphs]


@pytest.fixture
def attention():
    ((_, graph),) = captured(LLAMA)
    return canonical_nodes(graph, "GroupQueryAttention")[0]


@pytest.mark.parametrize("op", OPS)
def test_inputs_are_named_by_the_schema(op):
    translation_table()  # registers the schemas
    assert INPUTS[op] == [each.name for each in onnx.defs.get_schema(op, domain=DOMAIN).inputs]


def test_inputs_are_read_by_name(attention):
    inputs = canonical_inputs(attention)
    assert inputs["attention_mask"] is attention.inputs[5] is inputs.attention_mask
    assert inputs["attention_mask"].name == "attention_mask"
    assert inputs.past_key.name == "past_key_values.0.key"
    assert inputs.sinks is None, "the node has fewer inputs"
    with pytest.raises(KeyError, match="has no input sinks"):
        inputs["sinks"]
    with pytest.raises(
        AttributeError, match="GroupQueryAttention has no input mask; its inputs are query, key, value, "
    ):
        _ = inputs.mask
    with pytest.raises(AssertionError, match="is no canonical op"):
        canonical_inputs(ir.Node("", "Add", []))


def test_inputs_are_set_by_name(attention):
    inputs, before = canonical_inputs(attention), list(attention.inputs)
    sinks = ir.Value(name="sinks")
    inputs.set(sinks=sinks, key=None)
    assert inputs.sinks is sinks is attention.inputs[9]
    assert [inputs.key, attention.inputs[8]] == [None, None]
    assert [inputs.query, *attention.inputs[2:6]] == [before[0], *before[2:6]]
    with pytest.raises(ValueError, match="not in list"):
        inputs.set(sink=None)


def test_inputs_of_the_kernel_are_those_of_a_written_graph():
    query, mask = ir.Value(name="query"), ir.Value(name="bias")
    listed = ATTENTION.ordered(query=query, attention_bias=mask, head_sink=None)
    assert listed == [query, *[None] * 9, mask, None]
    node = helper.make_node(ATTENTION.name, [each.name if each else "" for each in listed], ["output"])
    read = ATTENTION.named(node.input)
    assert {name: value for name, value in read.items() if value} == {"query": "query", "attention_bias": "bias"}
    with pytest.raises(ValueError, match="not in tuple"):
        ATTENTION.ordered(mask=mask)


@pytest.mark.parametrize("data", [LLAMA, T5], ids=["llama", "t5"])
@pytest.mark.parametrize("lowering", [
    LoweringOptions(),
    LoweringOptions(quantization=make_quantization("int4")),
    LoweringOptions(quantization=make_quantization("int8")),
    LoweringOptions(provider="cuda"),
    LoweringOptions(ops="standard", cache_form="dynamic"),
    LoweringOptions(ops="standard", cache_form="static"),
    LoweringOptions(ops="portable", cache_form="static"),
    LoweringOptions(ops="portable", cache_form="dynamic", functions=True),
], ids=lambda lowering: f"{lowering.ops} {lowering.cache_form} {lowering.quantization and 'quantized'}")  # fmt: skip
def test_every_node_of_a_lowered_graph_has_a_recorded_origin(data, lowering):
    for spec, graph in captured(data):
        assert all(origin_of(node).made_by == "captured from PyTorch" for node in graph.graph)
        origins = lower_captured(graph, spec, lowering).origins
        assert set(origins) == {node.name for node in graph.graph}
        assert [name for name, origin in origins.items() if origin.creator == UNRECORDED] == []


def test_a_lowered_graph_holds_no_origins():
    ((spec, graph),) = captured(LLAMA)
    for options in ({}, {"ops": "portable", "cache_form": "dynamic", "functions": True}):
        lowered = graph.clone()
        lower_captured(lowered, spec, LoweringOptions(**options))
        assert b"edgeformer.made_by" not in ir.to_proto(lowered).SerializeToString()
    assert b"edgeformer.made_by" in ir.to_proto(graph).SerializeToString(), "negative control"


def test_an_origin_lists_the_passes_in_order():
    ((_, graph),) = captured(LLAMA)
    transpose_weights(graph)
    products = {node.name: origin_of(node).made_by for node in graph.graph if node.op_type == "MatMul"}
    assert set(products.values()) == {"captured from PyTorch, weight transposed by transpose_weights"}
    origin = NodeOrigin("MatMul", "packed by pack_qkv", "read by a test")
    again = origin.replaced("emitted by lower/ort")
    assert again.made_by == "emitted by lower/ort for MatMul, packed by pack_qkv, read by a test"
    assert again.replaced("emitted by lower/ort") == again, "a node that a rule replaces twice"
    assert origin_of(ir.Node(DOMAIN, "RMSNorm", [])) == NodeOrigin(f"{DOMAIN}::RMSNorm", UNRECORDED)


def test_a_report_keeps_misses_as_nodes_and_reasons():
    ((_, graph),) = captured(LLAMA)
    report = pack_qkv(graph)
    name = "blocks.0.attention/GroupQueryAttention"
    reason = "query, key or value is not a plain projection"
    assert report.misses == [(name, reason)]
    assert (report.misses[0].node, report.misses[0].reason) == (name, reason)
    assert report.missed == [f"{name}: {reason}"]
    strange = PassReport("any")
    strange.miss(ir.Node("", "Add", [], name="a: b"), "c: d")
    assert strange.misses == [("a: b", "c: d")], "a colon in a name does not split it elsewhere"
