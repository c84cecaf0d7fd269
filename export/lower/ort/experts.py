"""Lower mixtures of experts to ONNX Runtime's MoE.

The kernel takes a softmax of its own over logits [N, X], and weighs the K largest. The logits of a plain softmax router
are given to it as they are. For any other router they are the logarithms of the weights of the chosen experts, and −∞
for the others: their softmax is the weights over their sum, by which the result is multiplied.

SwiGLU wants gate and up in one tensor, in which their rows alternate. Requires (onnxruntime 1.31, CPU) float32, weights
that are positive, and one of these networks: SwiGLU, also with limits, or relu, silu, gelu_tanh or identity without a
gate. Everything else is decomposed.
"""

from typing import Any

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import DOMAIN, canonical_inputs
from edgeformer.export.graph.editing import (
    add_initializer,
    canonical_nodes,
    dim,
    dtype_of,
    producer,
    remove_if_unused,
    remove_initializer,
    streamed,
)
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.tensors import interleave
from edgeformer.export.lower.contrib import CONTRIB
from edgeformer.export.lower.options import LoweringOptions

UNGATED = {"relu": "relu", "silu": "silu", "gelu_tanh": "gelu", "identity": "identity"}
"""Names of the kernel for activations of networks without a gate; its gelu is the one by tanh."""

SMALLEST = 1e-30
"""Lower bound of a weight before its logarithm is taken: what such an expert adds is lost in float32."""


def lower_experts(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every mixture of experts that meets the requirements."""
    report = PassReport("MixtureOfExperts")
    for node in canonical_nodes(model, "MixtureOfExperts"):
        reason = _reason_against(node, lowering)
        if reason is not None:
            report.miss(node, reason)
            continue
        inputs = canonical_inputs(node)
        router = inputs["experts"].producer()
        emit = NodeBuilder.replacing(node, "emitted by lower/ort")
        logits, attributes, factor = _routing(emit, node)
        first, first_bias = _first_layer(model, node)
        options = {"k": dim(inputs.experts, -1), **attributes, **_network(node)}
        result = emit(
            "MoE", inputs.x, logits, first, first_bias, inputs.down, inputs.down_bias, domain=CONTRIB, **options
        )
        main = result.producer()
        if factor is not None:
            result = emit("Mul", result, factor)
        replace_node(node, emit, [result], main=main)
        remove_if_unused(model, router)
        report.fire(node)
    return report


def _reason_against(node: ir.Node, lowering: LoweringOptions) -> str | None:
    """Why the kernel cannot compute a node; None where it can."""
    inputs, attributes = canonical_inputs(node), node.attributes
    activation = attributes.get_string("activation")
    if lowering.provider != "cpu" or dtype_of(inputs.x) != ir.DataType.FLOAT:
        return "the layout that we write is that of the float32 CPU kernel"
    if attributes.get_int("weighted_input"):
        return "the kernel weighs outputs, and these are weighted inputs"
    router = producer(inputs.experts, "ExpertRouter", DOMAIN)
    if router is None or canonical_inputs(router).expert_scale is not None:
        return "the weights of experts may be negative, which the kernel does not allow"
    if inputs.gate is None:
        plain = activation in UNGATED and attributes.get_float("beta") == 1
        return None if plain else f"the kernel has no activation {activation}"
    if streamed(inputs.gate) is None or streamed(inputs.up) is None:
        return "gate and up are no tensors of their own, whose rows could be interleaved"
    other = attributes.get_string("up_activation")
    if (activation, other) != ("silu", "identity"):
        names = " and ".join([activation, *([] if other == "identity" else [other])])
        return f"the kernel has no gate with {names}"
    return None


def _network(node: ir.Node) -> dict[str, Any]:
    """Attributes of the kernel for the network of an expert."""
    attributes = node.attributes
    if canonical_inputs(node).gate is None:
        return {"activation_type": UNGATED[attributes.get_string("activation")]}
    limit = attributes.get_float("limit")
    return {
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": attributes.get_float("beta"),
        "activation_beta": attributes.get_float("up_offset"),
        **({"swiglu_limit": limit} if limit else {}),
    }


def _first_layer(model: ir.Model, node: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """Weight and bias of the layers before the activation, with those of a gate between the rows."""
    inputs = canonical_inputs(node)
    if inputs.gate is None:
        return inputs["up"], inputs.up_bias
    weight = _interleaved(model, node, inputs.gate, inputs["up"])
    if inputs.gate_bias is None or inputs.up_bias is None:
        return weight, None
    return weight, _interleaved(model, node, inputs.gate_bias, inputs.up_bias)


def _interleaved(model: ir.Model, node: ir.Node, gate: ir.Value, up: ir.Value) -> ir.Value:
    """Register the joined tensor, and remove those that it is joined from."""
    tensors = [streamed(gate), streamed(up)]
    assert all(tensor is not None for tensor in tensors), f"weights of {node.name} are computed"
    name = (up.name or "").replace(".up.", ".gate_up.")
    joined = add_initializer(model, interleave(name, [tensor for tensor in tensors if tensor is not None]))
    for value in (gate, up):
        remove_initializer(model, value)
    return joined


def _routing(emit: NodeBuilder, node: ir.Node) -> tuple[ir.Value, dict[str, Any], ir.Value | None]:
    """Logits for the kernel, its attributes for them, and the factor of its result [N, 1], None for 1."""
    inputs = canonical_inputs(node)
    experts, weights = inputs["experts"], inputs["weights"]
    router = producer(experts, "ExpertRouter", DOMAIN)
    assert router is not None
    logits, attributes = canonical_inputs(router)["logits"], router.attributes
    normalized = attributes.get_int("normalized")
    if attributes.get_float("scale") == 1 and is_plain_softmax(router):
        return logits, {"normalize_routing_weights": normalized}, None
    smallest, nothing = (emit.constant(each, ir.DataType.FLOAT) for each in (SMALLEST, float("-inf")))
    chosen = emit("Log", emit("Max", weights, smallest))
    hidden = emit("Expand", nothing, emit("Shape", logits))
    given = emit("ScatterElements", hidden, experts, chosen, axis=1)
    total = emit("ReduceSum", weights, emit.constant([-1]), keepdims=1)
    return given, {"normalize_routing_weights": 1}, total


def is_plain_softmax(router: ir.Node) -> bool:
    """Whether a router chooses by logits and weighs by their softmax, apart from its scale."""
    attributes, inputs = router.attributes, canonical_inputs(router)
    unchanged = not attributes.get_float("sum_epsilon") and not attributes.get_float("sum_floor")
    plain = inputs.choice_bias is None and inputs.expert_scale is None and attributes.get_int("groups") == 1
    return attributes.get_string("scoring") == "softmax" and unchanged and plain
