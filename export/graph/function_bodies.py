"""Function bodies: what each canonical op computes, in ONNX primitives of opset 18.

A lowering whose op set has no op for a canonical op, or none that fits, decomposes it into its body, which is slower
and always correct. Bodies also test passes: the graphs before and after a pass, both decomposed, must agree.

Each function takes a `NodeBuilder`, the node and the form of the graph's caches, emits the body and returns the values
of the node's outputs. Dimensions: B rows, S new tokens, T tokens in all, C slots of a cache, H heads, K key/value
heads, G = H / K, D head_dim, R rotated elements of a head.
"""

from collections.abc import Callable

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.contract.tensors import CacheForm
from edgeformer.export.graph import cache_forms
from edgeformer.export.graph.attention_bodies import (
    cross_attention,
    group_query_attention,
    length_of,
    rotary_embedding,
    shared_attention,
)
from edgeformer.export.graph.builder import NodeBuilder, Outputs, replace_each, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dtype_of
from edgeformer.export.graph.expert_bodies import expert_router, mixture_of_experts
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.recurrent_bodies import causal_conv, linear_attention


def rms_norm(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """x / sqrt(mean(x²) + ε) · weight."""
    return [_rms_norm(emit, canonical_inputs(node)["x"], node)]


def skip_rms_norm(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """rms_norm(x + skip), x + skip."""
    total = _sum(emit, node)
    return [_rms_norm(emit, total, node), total]


def skip_layer_norm(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """layer_norm(x + skip), x + skip."""
    inputs, total = canonical_inputs(node), _sum(emit, node)
    epsilon = emit.constant(node.attributes.get_float("epsilon"), dtype_of(inputs.x))
    centred = emit("Sub", total, emit("ReduceMean", total, emit.constant([-1]), keepdims=1))
    variance = emit("ReduceMean", emit("Mul", centred, centred), emit.constant([-1]), keepdims=1)
    normed = emit("Mul", emit("Div", centred, emit("Sqrt", emit("Add", variance, epsilon))), inputs.weight)
    return [normed if inputs.bias is None else emit("Add", normed, inputs.bias), total]


def _sum(emit: NodeBuilder, node: ir.Node) -> ir.Value:
    """x + skip of a norm with the residual addition inside."""
    inputs = canonical_inputs(node)
    total = emit("Add", inputs.x, inputs.skip)
    total.dtype = dtype_of(node.outputs[1])
    return total


def _rms_norm(emit: NodeBuilder, x: ir.Value, node: ir.Node) -> ir.Value:
    weight = canonical_inputs(node).weight
    epsilon = emit.constant(node.attributes.get_float("epsilon"), dtype_of(x))
    mean_square = emit("ReduceMean", emit("Mul", x, x), emit.constant([-1]), keepdims=1)
    normed = emit("Div", x, emit("Sqrt", emit("Add", mean_square, epsilon)))
    return normed if weight is None else emit("Mul", normed, weight)


def token_positions(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """max(length − S, 0) + [0 … S)."""
    inputs = canonical_inputs(node)
    new = length_of(emit, node, inputs["input_ids"])
    return [cache_forms.token_positions(emit, inputs["attention_mask"], new, form)]


def key_positions(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """[0 … T)."""
    return [cache_forms.key_positions(emit, canonical_inputs(node)["attention_mask"], form)]


def token_mask(emit: NodeBuilder, node: ir.Node, form: CacheForm) -> Outputs:
    """[0 … S) < length."""
    inputs = canonical_inputs(node)
    new = length_of(emit, node, inputs["input_ids"])
    return [cache_forms.token_mask(emit, inputs["attention_mask"], new, form)]


FUNCTION_BODIES: dict[str, Callable[[NodeBuilder, ir.Node, CacheForm], Outputs]] = {
    "RMSNorm": rms_norm,
    "SkipRMSNorm": skip_rms_norm,
    "SkipLayerNorm": skip_layer_norm,
    "RotaryEmbedding": rotary_embedding,
    "GroupQueryAttention": group_query_attention,
    "SharedAttention": shared_attention,
    "CrossAttention": cross_attention,
    "ExpertRouter": expert_router,
    "MixtureOfExperts": mixture_of_experts,
    "TokenPositions": token_positions,
    "KeyPositions": key_positions,
    "TokenMask": token_mask,
    "CausalConv": causal_conv,
    "LinearAttention": linear_attention,
}


CREATOR = "decomposed by graph/function_bodies"


def decompose(node: ir.Node, form: CacheForm = "any") -> None:
    """Replace a canonical op by its function body."""
    emit = NodeBuilder.replacing(node, CREATOR)
    replace_node(node, emit, FUNCTION_BODIES[node.op_type](emit, node, form))


def decompose_all(model: ir.Model, form: CacheForm = "any") -> PassReport:
    """Replace every canonical op by its function body; standard ONNX remains."""

    def body(emit: NodeBuilder, node: ir.Node) -> Outputs:
        return FUNCTION_BODIES[node.op_type](emit, node, form)

    report = replace_each("decompose", canonical_nodes(model, *FUNCTION_BODIES), CREATOR, body)
    if not any(identifier[0] == DOMAIN for identifier in model.functions):
        model.opset_imports.pop(DOMAIN, None)
    return report
