"""Op set `ort`: the contrib ops of ONNX Runtime (domain com.microsoft).

| canonical           | emitted                                     | where there is no kernel |
|---------------------|---------------------------------------------|--------------------------|
| RMSNorm             | SimplifiedLayerNormalization                |                          |
| SkipRMSNorm         | SkipSimplifiedLayerNormalization            |                          |
| SkipLayerNorm       | SkipLayerNormalization                      |                          |
| GroupQueryAttention | GroupQueryAttention, RoPE and packed QKV in | its body                 |
| CrossAttention      | MultiHeadAttention                          | its body                 |
| RotaryEmbedding     | its body (only what could not be folded)    |                          |
| tied head           | FusedMatMul over the embedding, transposed  |                          |

Kernels of GroupQueryAttention (onnxruntime 1.31): CPU float32 and float16; CUDA float16 and bfloat16, no float32;
head_dim a multiple of 8; with rotation inside, head_dim and rotary_dim multiples of 16. Of MultiHeadAttention: CPU
float32; CUDA float32 and float16.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from edgeformer.errors import ExportError
from edgeformer.export.bodies import write_out, write_out_all
from edgeformer.export.emit import Emitter, replace_node
from edgeformer.export.graph import canonical_nodes, dim, dtype_of, head_dim_of, producer, remove_initializer, streamed
from edgeformer.export.passes import PassReport, fold_rotary, fuse_skip_norm, pack_qkv, transpose_weights
from edgeformer.export.tensors import StreamedTensor
from edgeformer.manifest import Provider

CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class Lowered:
    """What was done to a graph on its way to an op set.

    passes: what each pass changed. fallbacks: canonical ops that were written out in primitives, and why.
    """

    passes: list[PassReport]
    fallbacks: list[str]


def joined(graphs: Sequence[Lowered]) -> Lowered:
    """What was done to several graphs, as if they were one."""
    reports: dict[str, PassReport] = {}
    for done in (report for each in graphs for report in each.passes):
        total = reports.setdefault(done.name, PassReport(done.name))
        total.changed += done.changed
        total.missed += done.missed
    return Lowered(list(reports.values()), [fallback for each in graphs for fallback in each.fallbacks])


def lower_ort(model: ir.Model, provider: Provider, expected: dict[str, int] | None = None) -> Lowered:
    """Rewrite a canonical graph in place for ONNX Runtime.

    provider: whose kernels must exist. expected: how often each pass must fire for this model; fewer is an ExportError,
    so that a model never silently loses a fusion (a pass that says why it missed a place is excused).
    """
    reports = [
        transpose_weights(model),
        fold_rotary(model, accepts=lambda head_dim, rotary_dim: head_dim % 16 == 0 and rotary_dim % 16 == 0),
        pack_qkv(model),
        fuse_skip_norm(model),
    ]
    for report in reports:
        wanted = (expected or {}).get(report.name, report.changed)
        if report.changed + len(report.missed) < wanted:
            raise ExportError(
                f"pass {report.name} changed {report.changed} places where this model has {wanted}. "
                "This is a bug in edgeformer; please report it with the model's config.json."
            )

    fallbacks = _lower_attention(model, provider) + _lower_cross_attention(model, provider)
    for node in canonical_nodes(model, "RMSNorm", "SkipRMSNorm", "SkipLayerNorm"):
        _lower_norm(node)
    for node in list(model.graph):
        if node.domain == "" and node.op_type == "MatMul":
            _lower_tied_product(node)
    write_out_all(model)
    for value in (output for node in model.graph for output in node.outputs):
        if not value.is_graph_output():
            value.shape = value.type = None  # inferred again by whoever loads the graph
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _share_constants(model)
    for clean_up in (
        common_passes.CommonSubexpressionEliminationPass(),
        common_passes.RemoveUnusedNodesPass(),
    ):
        clean_up(model)
    model.opset_imports[CONTRIB] = 1
    return Lowered(reports, fallbacks)


def _share_constants(model: ir.Model) -> None:
    """Keep one initializer of each constant. Weights are left alone: comparing them would read them."""
    first: dict[tuple[ir.DataType, bytes, tuple[int, ...]], ir.Value] = {}
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or isinstance(tensor, StreamedTensor):
            continue
        kept = first.setdefault((tensor.dtype, tensor.tobytes(), tuple(tensor.shape.numpy())), value)
        if kept is not value:
            ir.convenience.replace_all_uses_with(value, kept)
            remove_initializer(model, value)


def _lower_attention(model: ir.Model, provider: Provider) -> list[str]:
    fallbacks: dict[str, int] = {}
    lengths: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    for node in canonical_nodes(model, "GroupQueryAttention"):
        reason = _no_attention_kernel(node, provider)
        if reason is not None:
            fallbacks[reason] = fallbacks.get(reason, 0) + 1
            write_out(node)
            continue
        mask = node.inputs[5]
        assert mask is not None
        if mask not in lengths:
            emit = Emitter("lengths")
            lengths[mask] = _lengths(emit, mask)
            first = next(iter(model.graph))
            model.graph.insert_before(first, emit.nodes)
        _emit_attention(node, *lengths[mask])
    return [f"GroupQueryAttention written out in {count} layers: {reason}" for reason, count in fallbacks.items()]


def _no_attention_kernel(node: ir.Node, provider: Provider) -> str | None:
    head_dim = head_dim_of(node)
    if head_dim % 8:
        return f"the kernel takes head_dim in multiples of 8, and this is {head_dim}"
    if len(node.inputs) > 10 and node.inputs[10] is not None:
        return "no kernel adds relation vectors to values"
    if provider == "cuda" and dtype_of(node.inputs[0]) == ir.DataType.FLOAT:
        return "there is no float32 CUDA kernel (float16 has one)"
    return None


def _lengths(emit: Emitter, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """seqlens_k, int32 [B]: valid tokens of each row less one; total_sequence_length, int32 scalar."""
    valid = emit("ReduceSum", mask, emit.constant([1]), keepdims=0)
    seqlens_k = emit("Cast", emit("Sub", valid, emit.constant(1)), to=ir.DataType.INT32)
    total = emit("Squeeze", emit("Shape", mask, start=1, end=2))
    return seqlens_k, emit("Cast", total, to=ir.DataType.INT32)


def _emit_attention(node: ir.Node, seqlens_k: ir.Value, total: ir.Value) -> None:
    query, key, value, past_key, past_value, _, cos, sin, bias, sinks = [*node.inputs, *[None] * 10][:10]
    attributes = node.attributes
    emit = Emitter(node.name or "")
    outputs = emit.many(
        "GroupQueryAttention", query, key, value, past_key, past_value, seqlens_k, total, cos, sin, None, bias, sinks,
        outputs=3,
        domain=CONTRIB,
        num_heads=attributes.get_int("num_heads"),
        kv_num_heads=attributes.get_int("num_kv_heads"),
        scale=attributes.get_float("scale"),
        softcap=attributes.get_float("softcap"),
        local_window_size=attributes.get_int("window") or -1,
        do_rotary=int(cos is not None),
        rotary_interleaved=attributes.get_int("rotary_interleaved"),
        causal=attributes.get_int("causal"),
    )  # fmt: skip
    replace_node(node, emit, outputs)


def _lower_cross_attention(model: ir.Model, provider: Provider) -> list[str]:
    """The kernel takes keys and values [B, H, T, D] as they are, and masks padding."""
    masks: dict[ir.Value, ir.Value] = {}
    written_out = 0
    for node in canonical_nodes(model, "CrossAttention"):
        query, key, value, mask = node.inputs
        assert mask is not None
        dtype = dtype_of(query)
        if provider == "cpu" and dtype != ir.DataType.FLOAT:
            written_out += 1
            write_out(node)
            continue
        if mask not in masks:
            emit = Emitter("source_mask")
            masks[mask] = emit("Cast", mask, to=ir.DataType.INT32)
            model.graph.insert_before(next(iter(model.graph)), emit.nodes)
        emit = Emitter(node.name or "")
        attended = emit(
            "MultiHeadAttention", query, key, value, None, masks[mask],
            domain=CONTRIB,
            num_heads=dim(key, 1),
            scale=node.attributes.get_float("scale"),
            # Added to the scores of padding. The default, −10000, hides nothing from scores of that size.
            mask_filter_value=float(np.finfo(dtype.numpy()).min),
        )  # fmt: skip
        replace_node(node, emit, [attended])
    reason = "there is no float16 CPU kernel"
    return [f"CrossAttention written out in {written_out} places: {reason}"] if written_out else []


def _lower_norm(node: ir.Node) -> None:
    emit = Emitter(node.name or "")
    epsilon = node.attributes.get_float("epsilon")
    if node.op_type == "RMSNorm":
        x, weight = [*node.inputs, None][:2]
        if weight is None:
            weight = emit.constant([1.0] * dim(x, -1), dtype_of(x))
        # ONNX Runtime keeps this op in the default domain.
        replace_node(node, emit, [emit("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=epsilon)])
        return
    op = "SkipLayerNormalization" if node.op_type == "SkipLayerNorm" else "SkipSimplifiedLayerNormalization"
    outputs = emit.many(op, *node.inputs, outputs=4, domain=CONTRIB, epsilon=epsilon)
    replace_node(node, emit, [outputs[0], outputs[3]])
    # Outputs 1 and 2 are statistics for training; 3 is the sum, which nothing reads behind a post-norm.
    for output in outputs[1:]:
        if not output.uses() and not output.is_graph_output():
            output.name = ""


def _lower_tied_product(node: ir.Node) -> None:
    """MatMul(x, Transpose(W)) whose weight is stored untransposed: read it transposed instead of copying it."""
    transpose = producer(node.inputs[1], "Transpose")
    if transpose is None or streamed(transpose.inputs[0]) is None:
        return
    emit = Emitter(node.name or "")
    replace_node(
        node, emit, [emit("FusedMatMul", node.inputs[0], transpose.inputs[0], domain=CONTRIB, transA=0, transB=1)]
    )
