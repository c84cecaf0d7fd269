"""Lower mixtures of experts to ONNX Runtime's MoE, or to QMoE where the quantization config has a format for them.

The kernel takes a softmax of its own over logits [N, X], and weighs the K largest. The logits of a plain softmax router
are given to it as they are. For any other router they are the logarithms of the weights of the chosen experts, and −∞
for the others: their softmax is the weights over their sum, by which the result is multiplied. That takes weights which
are not negative: those of our routers without scales of experts, and of routers in primitives where their ops show it.

SwiGLU wants gate and up in one tensor, in which their rows alternate. Requires (onnxruntime 1.31) weights that are
positive, and one of these networks: SwiGLU, also with limits, or relu, silu, gelu_tanh or identity without a gate; on
the CPU float32; on CUDA sizes in multiples of 8 from 16 on, and for integers of 64, and no gelu_tanh, since nobody has
compared its approximation there. Everything else is decomposed: to a loop over the chosen experts, or to products over
all of them where the provider has no loops.
"""

import math
from typing import Any

import onnx_ir as ir

from edgeformer.contract.ops import CONTRIB, DOMAIN, QUANTIZED_EXPERTS
from edgeformer.errors import ExportError
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
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
from edgeformer.export.graph.signs import never_negative
from edgeformer.export.graph.tensors import interleave
from edgeformer.export.lower.dense_experts import (
    ALL_EXPERTS,
    emit_dense_experts,
    format_of_dense,
    quantized_parts,
)
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.quantized import INT8_ACTIVATIONS
from edgeformer.export.lower.providers import ProviderRules
from edgeformer.manifest.quantization import Quantization, WeightFormat

UNGATED = {"relu": "relu", "silu": "silu", "gelu_tanh": "gelu", "identity": "identity"}
"""Names of the kernel for activations of networks without a gate; its gelu is the one by tanh."""

SMALLEST = 1e-30
"""Lower bound of a weight before its logarithm is taken: what such an expert adds is lost in float32."""


def lower_experts(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every mixture of experts that meets the requirements."""
    report = PassReport("MixtureOfExperts")
    for node in canonical_nodes(model, "MixtureOfExperts"):
        form = None if lowering.quantization is None else format_of_experts(node, lowering.quantization)
        reason = _reason_against(node, lowering, form)
        emit = NodeBuilder.replacing(node, "emitted by lower/ort")
        if reason is not None:
            dense = None if lowering.rules.loops else format_of_dense(node, form)
            reason = reason if dense == form else f"{reason}; these experts are not quantized"
            report.miss(node, reason if lowering.rules.loops else f"{reason}; {ALL_EXPERTS}")
            if not lowering.rules.loops:
                replace_node(node, emit, [emit_dense_experts(emit, model, node, dense)])
            continue
        router = canonical_inputs(node)["experts"].producer()
        if form is None:
            result, main = _emit_float(emit, model, node, lowering.rules)
        elif lowering.rules.routes_by_logits:
            result, main = _emit_quantized_by_logits(emit, model, node, form, lowering.rules)
        else:
            result, main = _emit_quantized(emit, model, node, form)
        replace_node(node, emit, [result], main=main)
        remove_if_unused(model, router)
        report.fire(node)
    return report


def _emit_float(
    emit: NodeBuilder, model: ir.Model, node: ir.Node, rules: ProviderRules
) -> tuple[ir.Value, ir.Node | None]:
    """Emit MoE, and return its result and its node."""
    inputs = canonical_inputs(node)
    logits, attributes, factor = _logits(emit, node, rules)
    first, first_bias = _first_layer(model, node)
    options = {"k": dim(inputs.experts, -1), **attributes, **_network(node)}
    result = emit("MoE", inputs.x, logits, first, first_bias, inputs.down, inputs.down_bias, domain=CONTRIB, **options)
    return result if factor is None else emit("Mul", result, factor), result.producer()


def _emit_quantized(
    emit: NodeBuilder, model: ir.Model, node: ir.Node, form: WeightFormat
) -> tuple[ir.Value, ir.Node | None]:
    """Emit QMoE over a choice of experts and their weights, and return its result and its node."""
    choice, weights = _choice_and_weights(emit, node)
    options = {"normalize_routing_weights": int(weights is None), "accuracy_level": INT8_ACTIVATIONS}
    result = _emit_integers(emit, model, node, form, choice, weights, options)
    return result, result.producer()


def _emit_quantized_by_logits(
    emit: NodeBuilder, model: ir.Model, node: ir.Node, form: WeightFormat, rules: ProviderRules
) -> tuple[ir.Value, ir.Node | None]:
    """Emit QMoE for a kernel that routes as MoE does and lays its weights out when it is loaded."""
    logits, attributes, factor = _logits(emit, node, rules)
    result = _emit_integers(emit, model, node, form, logits, None, {**attributes, "weights_prepacked": 0})
    return result if factor is None else emit("Mul", result, factor), result.producer()


def _emit_integers(
    emit: NodeBuilder,
    model: ir.Model,
    node: ir.Node,
    form: WeightFormat,
    choice: ir.Value,
    weights: ir.Value | None,
    options: dict[str, Any],
) -> ir.Value:
    """Emit QMoE over integers of the weights. options: attributes that the provider decides."""
    inputs = canonical_inputs(node)
    layers = [_first_layer(model, node), (inputs["down"], inputs.down_bias)]
    (first, first_bias), (last, last_bias) = layers
    (first_parts, last_parts) = (quantized_parts(model, weight, form) for weight in (first, last))
    parts = ("experts_weights", "scales", "zero_points")
    given = {"input": inputs.x, "router_probs": choice, "fc1_experts_bias": first_bias, "fc2_experts_bias": last_bias}
    given |= {f"fc1_{name}": part for name, part in zip(parts, first_parts, strict=True)}
    given |= {f"fc2_{name}": part for name, part in zip(parts, last_parts, strict=True)}
    given["router_weights"] = weights
    return emit(
        QUANTIZED_EXPERTS.name,
        *QUANTIZED_EXPERTS.ordered(**{name: value for name, value in given.items() if value is not None}),
        domain=QUANTIZED_EXPERTS.domain,
        k=dim(inputs.experts, -1),
        expert_weight_bits=form.bits,
        block_size=form.block,
        **options,
        **_network(node),
    )


def format_of_experts(node: ir.Node, quantization: Quantization) -> WeightFormat | None:
    """Return the format that all layers of the experts of a canonical node can have, or None.

    Per-channel formats are left to the next rule: the kernel lacks them. Raises ExportError where the config has
    different formats for the layers, because the kernel has one for all.
    """
    inputs = canonical_inputs(node)
    weights = [weight for weight in (inputs.gate, inputs.up, inputs.down) if weight is not None]
    forms = {quantization.format_of(weight.name or "", gathered=True) for weight in weights}
    if len(forms) > 1:
        raise ExportError(
            f"the quantization config has different formats for {', '.join(str(weight.name) for weight in weights)}, "
            "which one op of onnxruntime multiplies with. Write a pattern that fits all of them."
        )
    form = forms.pop()
    fitted = form and form.fitted(math.gcd(dim(inputs.up, -1), dim(inputs.down, -1)))
    return fitted and fitted.without_calibration()


def _reason_against(node: ir.Node, lowering: LoweringOptions, form: WeightFormat | None) -> str | None:
    """Why the kernel cannot compute a node; None where it can."""
    inputs, attributes = canonical_inputs(node), node.attributes
    activation = attributes.get_string("activation")
    if reason := lowering.rules.experts(node, form):
        return reason
    if attributes.get_int("weighted_input"):
        return "the kernel weighs outputs, and these are weighted inputs"
    router = producer(inputs.experts, "ExpertRouter", DOMAIN)
    scaled = router is not None and canonical_inputs(router).expert_scale is not None
    if scaled or (router is None and not never_negative(inputs.weights)):
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


def _choice_and_weights(emit: NodeBuilder, node: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """Two numbers for each token and expert: QMoE takes the experts of the largest first, and weighs by the second.

    Without the second, it weighs by a softmax over the first ones of the chosen experts.
    """
    inputs = canonical_inputs(node)
    router = producer(inputs.experts, "ExpertRouter", DOMAIN)
    if router is not None and router.attributes.get_int("normalized") and is_plain_softmax(router):
        return canonical_inputs(router)["logits"], None
    zeros = emit("ConstantOfShape", _shape_of_logits(emit, node), value=ir.tensor([0.0], dtype=ir.DataType.FLOAT))
    ones = emit("ConstantOfShape", emit("Shape", inputs.experts), value=ir.tensor([1.0], dtype=ir.DataType.FLOAT))
    chosen, weighed = (emit("ScatterElements", zeros, inputs.experts, each, axis=1) for each in (ones, inputs.weights))
    return chosen, weighed


def _logits(emit: NodeBuilder, node: ir.Node, rules: ProviderRules) -> tuple[ir.Value, dict[str, Any], ir.Value | None]:
    """Logits for the kernel, its attributes for them, and the factor of its result [N, 1], None for 1."""
    inputs = canonical_inputs(node)
    experts, weights = inputs["experts"], inputs["weights"]
    router = producer(experts, "ExpertRouter", DOMAIN)
    if router is not None and is_plain_softmax(router):
        normalized = router.attributes.get_int("normalized")
        return canonical_inputs(router)["logits"], {"normalize_routing_weights": normalized}, None
    dtype, relative = dtype_of(inputs.x), weights
    smallest, nothing = SMALLEST, emit.constant(float("-inf"), dtype)
    total = emit("ReduceSum", weights, emit.constant([-1]), keepdims=1)
    if rules.smallest_ratio is not None:
        smallest = rules.smallest_ratio
        # All weights of a token may be 0.
        relative = emit("Div", weights, emit("Max", total, emit.constant(smallest, dtype)))
    chosen = emit("Log", emit("Max", relative, emit.constant(smallest, dtype)))
    hidden = emit("Expand", nothing, _shape_of_logits(emit, node))
    given = emit("ScatterElements", hidden, experts, chosen, axis=1)
    return given, {"normalize_routing_weights": 1}, total


def _shape_of_logits(emit: NodeBuilder, node: ir.Node) -> ir.Value:
    """The numbers of tokens and of all experts."""
    inputs = canonical_inputs(node)
    router = producer(inputs.experts, "ExpertRouter", DOMAIN)
    if router is not None:
        return emit("Shape", canonical_inputs(router)["logits"])
    return emit("Concat", emit("Shape", inputs.x, start=0, end=1), emit.constant([dim(inputs.up, 0)]), axis=0)


def is_plain_softmax(router: ir.Node) -> bool:
    """Whether a router chooses by logits and weighs by their softmax."""
    attributes, inputs = router.attributes, canonical_inputs(router)
    unchanged = not attributes.get_float("sum_epsilon") and not attributes.get_float("sum_floor")
    plain = inputs.choice_bias is None and inputs.expert_scale is None and attributes.get_int("groups") == 1
    unscaled = attributes.get_float("scale") == 1
    return attributes.get_string("scoring") == "softmax" and unscaled and unchanged and plain
