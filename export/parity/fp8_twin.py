"""Let the twin of a graph with an fp8 cache run on the CPU, whose attention has no such cache.

    GroupQueryAttention over float8     becomes     past · scale → attention, for its presents alone
                                                    presents / scale → float8: the presents of the graph
                                                    presents · scale → attention without new keys: the output

The first attention rotates and appends the new keys and values; the second one reads what was cached of them, too, as
the kernel does. Everything else of the op (windows, soft-caps, sinks, rotation of either kind) is the CPU kernel's.
"""

from pathlib import Path

import onnx_ir as ir

from edgeformer.contract.ops import ATTENTION, FP8_CACHE, SCALES
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import dim
from edgeformer.manifest.cache_scales import LARGEST

KEPT = "past_key", "past_value"
FLOAT, FLOAT8 = ir.DataType.FLOAT, ir.DataType.FLOAT8E4M3FN


def attend_in_float32(path: Path) -> int:
    """Replace every attention over float8 in the float32 graph of a file; return how many there were."""
    model = ir.load(path)
    found = [node for node in model.graph if (node.domain, node.op_type) == ATTENTION.key]
    found = [node for node in found if node.attributes.get_string("k_quant_type", "") == FP8_CACHE["k_quant_type"]]
    _widen_pasts(model)
    for node in found:
        _replace(node)
    ir.save(model, path)
    return len(found)


def _widen_pasts(model: ir.Model) -> None:
    """Cast the pasts to float32 before all else: other nodes read their shapes, for which the CPU has no float8."""
    emit = NodeBuilder("pasts")
    first = model.graph[0]
    for past in model.graph.inputs:
        if past.dtype == FLOAT8:
            readers = list(past.uses())
            wide = emit("Cast", past, to=FLOAT)
            wide.shape, wide.type = past.shape, ir.TensorType(FLOAT)
            for node, place in readers:
                node.replace_input_with(place, wide)
    model.graph.insert_before(first, emit.nodes)


def _replace(node: ir.Node) -> None:
    inputs = ATTENTION.named(node.inputs)
    attributes = {name: each.value for name, each in node.attributes.items() if name not in FP8_CACHE}
    scales = [inputs.pop(name) for name in SCALES]
    emit = NodeBuilder(node.name or "")
    past = [emit("Mul", inputs[name], scale) for name, scale in zip(KEPT, scales, strict=True)]

    def attention(**changed: ir.Value | None) -> list[ir.Value]:
        given = ATTENTION.ordered(**{**inputs, **changed})
        return list(emit.many(ATTENTION.name, *given, outputs=3, domain=ATTENTION.domain, **attributes))

    appended = attention(**dict(zip(KEPT, past, strict=True)))[1:]
    presents = [_float8(emit, part, scale) for part, scale in zip(appended, scales, strict=True)]
    read = [_numbers(emit, part, scale) for part, scale in zip(presents, scales, strict=True)]
    width = attributes["kv_num_heads"] * dim(inputs["past_key"], 3)
    nothing = _no_tokens(emit, inputs["seqlens_k"], width)
    query = _query(emit, inputs, attributes["num_heads"] * dim(inputs["past_key"], 3), width)
    output = attention(query=query, key=nothing, value=nothing, **dict(zip(KEPT, read, strict=True)))[0]
    replace_node(node, emit, [output, *presents], main=output.producer())


def _numbers(emit: NodeBuilder, stored: ir.Value, scale: ir.Value | None) -> ir.Value:
    """Return what float8 stands for, in float32."""
    return emit("Mul", emit("Cast", stored, to=FLOAT), scale)


def _float8(emit: NodeBuilder, x: ir.Value, scale: ir.Value | None) -> ir.Value:
    """Round as CUDA's kernel does: multiply by 1 / scale in float32, clamp, cast."""
    least, most = (emit.constant(sign * LARGEST["fp8"], FLOAT) for sign in (-1, 1))
    return emit("Cast", emit("Clip", emit("Mul", x, emit("Reciprocal", scale)), least, most), to=FLOAT8)


def _no_tokens(emit: NodeBuilder, rows: ir.Value | None, width: int) -> ir.Value:
    """Return keys or values of no token, float32 [B, 0, width]. rows: any tensor [B]."""
    shape = emit("Concat", emit("Shape", rows), emit.constant([0, width]), axis=0)
    return emit("ConstantOfShape", shape, value=ir.tensor([0.0], dtype=FLOAT))


def _query(emit: NodeBuilder, inputs: dict[str, ir.Value | None], width: int, kept: int) -> ir.Value | None:
    """Return the queries [B, S, width], which keys and values may be packed behind."""
    if inputs["key"] is not None:
        return inputs["query"]
    return emit.many("Split", inputs["query"], emit.constant([width, kept, kept]), outputs=3, axis=-1)[0]
