"""Lower linear attention to ONNX Runtime's LinearAttention.

The kernel takes no mask of padding, so keys, values, decays and updates of padding are set to 0 in front of it. It has
all four update rules, and lets heads share queries and keys. On the CPU it computes in float32, to which other types
are cast; CUDA has float16 and bfloat16, too, and a state of the type of its queries only. The kernel computes the
tokens of a prompt one after the other, the function body in chunks. For a prompt both take about the same time; for a
step the function body takes six times as long (onnxruntime 1.31).

There is no rule for the causal convolution. Its function body takes no longer than CausalConvWithState, which would
keep padding in its state: for 6144 channels on one thread 45 µs a step and 16 ms for 512 tokens, where the kernel takes
47 µs and 18 ms.
"""

import onnx_ir as ir

from edgeformer.contract.ops import CONTRIB, LINEAR_ATTENTION
from edgeformer.export.graph.builder import NodeBuilder, Outputs, replace_node
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dim, dtype_of
from edgeformer.export.graph.function_bodies import decompose
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions

RULE_NAMES = {(False, False): "linear", (True, False): "gated", (False, True): "delta", (True, True): "gated_delta"}
"""Names of the update rules, by whether there is a decay, and a beta."""


def lower_linear_attention(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Lower every linear attention that meets the requirements, and decompose the others."""
    report = PassReport("LinearAttention")
    for node in canonical_nodes(model, "LinearAttention"):
        reason = why_no_kernel(node)
        if reason is not None:
            report.miss(node, reason)
            decompose(node, lowering.cache_form)
            continue
        report.fire(node)
        emit = NodeBuilder.replacing(node, "emitted by lower/ort")
        outputs = emit_attention(emit, node, lowering)
        kernel = next(each for each in emit.nodes if each.op_type == LINEAR_ATTENTION.name)
        replace_node(node, emit, outputs, main=kernel)
    return report


def why_no_kernel(node: ir.Node) -> str | None:
    """Return why the kernel cannot compute a canonical node; None where it can."""
    if node.attributes.get_float("scale") == 0:
        return "the kernel takes a scale of 0 for another one"
    return None


def emit_attention(emit: NodeBuilder, node: ir.Node, lowering: LoweringOptions) -> Outputs:
    """Emit the kernel for a canonical node, with zeros for what padding has; return its output and present state."""
    inputs = canonical_inputs(node)
    past, dtype = inputs["past"], dtype_of(inputs.query)
    wide = ir.DataType.FLOAT if lowering.rules.float32_alone else dtype

    def cast(value: ir.Value, old: ir.DataType, new: ir.DataType) -> ir.Value:
        return value if old == new else emit("Cast", value, to=new)

    tokens, zero = emit("Unsqueeze", inputs["token_mask"], emit.constant([2])), emit.constant(0.0, wide)
    query = cast(inputs["query"], dtype, wide)
    key, value, decay, beta = (
        None if given is None else emit("Where", tokens, cast(given, dtype, wide), zero)
        for given in (inputs.key, inputs.value, inputs.decay, inputs.beta)
    )
    heads, key_dim = dim(past, 1), dim(past, 2)
    attended, present = emit.many(
        LINEAR_ATTENTION.name, query, key, value, cast(past, dtype_of(past), wide), decay, beta,
        outputs=2,
        domain=CONTRIB,
        update_rule=RULE_NAMES[decay is not None, beta is not None],
        q_num_heads=dim(inputs["query"], 2) // key_dim,
        kv_num_heads=heads,
        scale=node.attributes.get_float("scale"),
    )  # fmt: skip
    return [cast(attended, wide, dtype), cast(present, wide, dtype_of(past))]
