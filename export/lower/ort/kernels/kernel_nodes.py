"""Functions of one node of onnxruntime, in domain `edgeformer`, for which kernels may stand in.

KERNELS has all of them; kernel_functions.py calls them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import onnx_ir as ir

from edgeformer.contract import ops
from edgeformer.contract.ops import CONTRIB, DOMAIN, INT8_CACHE, SCALES, Function
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dtype_of, same_type

MOST = {4: 256, 8: 65536}
"""The largest block of weights that the kernel takes, by the number of bits."""

OPSET = 20
"""The version of ONNX's ops in the functions' bodies; Gelu is there since 20."""

UNUSED = ("position_ids", *SCALES)
"""Inputs of GroupQueryAttention that kernels with caches of floats do not have."""


@dataclass(frozen=True)
class KernelFunction:
    """A function whose body begins with one node of onnxruntime.

    Attributes:
        function: what other layers know of it.
        outputs: names in the order of the node's, None for those that it never has; calls leave the last ones out.
        attributes: types of those that calls have. Others are the same in all calls, and stand in the body.
        unread: outputs that the node must have, and that calls do not have, since nothing reads them.
        of_kernel: attributes of calls that the kernel alone reads, and their values.
    """

    function: Function
    outputs: Sequence[str | None]
    attributes: Mapping[str, ir.AttributeType]
    fits: Callable[[ir.Node], bool]
    unread: Collection[str] = ()
    of_kernel: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.name

    @property
    def op(self) -> str:
        """The op of the node."""
        return self.function.body.name

    @property
    def inputs(self) -> Sequence[str | None]:
        """The names of the node's inputs, in order; None for those that it never has."""
        return self.function.body_inputs

    @property
    def declared(self) -> Mapping[str, ir.AttributeType]:
        """All attributes of calls, and their types."""
        return {**self.attributes, **dict.fromkeys(self.of_kernel, ir.AttributeType.INT)}

    def call(self, node: ir.Node) -> tuple[ir.Node, Sequence[ir.Attr]]:
        """Put a call in place of a node of onnxruntime; return it, and the attributes that its function's body has."""
        fixed = [each for name, each in node.attributes.items() if name not in self.attributes]
        given = [node.attributes[name] for name in self.attributes]
        given += [ir.AttrInt64(name, value) for name, value in self.of_kernel.items()]
        inputs = [value for name, value in zip(self.inputs, node.inputs, strict=False) if name is not None]
        outputs = zip(self.outputs, node.outputs, strict=True)
        old = [value for name, value in outputs if name is not None and name not in self.unread]
        call = ir.Node(
            DOMAIN, self.name, inputs, given,
            num_outputs=len(old), name=node.name, metadata_props=dict(node.metadata_props),
        )  # fmt: skip
        for value, replaced in zip(call.outputs, old, strict=True):
            same_type(value, replaced)
        assert node.graph is not None
        ir.convenience.replace_nodes_and_values(node.graph, node, [node], [call], old, call.outputs)
        return call, fixed

    def body(self, fixed: Sequence[ir.Attr]) -> ir.Node:
        """Return the node of the function's body. fixed: attributes that are the same in all calls."""
        inputs = [None if name is None else ir.Value(name=name) for name in self.inputs]
        attributes = [*(ir.RefAttr(name, name, kind) for name, kind in self.attributes.items()), *fixed]
        node = ir.Node(CONTRIB, self.op, inputs, attributes, num_outputs=len(self.outputs), name=self.op)
        for value, name in zip(node.outputs, self.outputs, strict=True):
            value.name = name or ""
        return node

    def definition(self, fixed: Sequence[ir.Attr]) -> ir.Function:
        """Return the function."""
        node = self.body(fixed)
        outputs = [value for value in node.outputs if value.name and value.name not in self.unread]
        return function_of(self.name, node.inputs, outputs, [node], self.declared)


class CastCacheFunction(KernelFunction):
    """A function whose node has a float32 cache, and whose calls have one of float16: casts are around the node.

    The shape of what is cast is hidden from onnxruntime's inference by a Reshape to itself. Its planner would else take
    the memory of a cast past for a present, which it infers to be as long, although it is longer in a dynamic cache.
    """

    def definition(self, fixed: Sequence[ir.Attr]) -> ir.Function:
        """Return the function."""
        node, emit = self.body(fixed), NodeBuilder("cache")
        formal, outputs = list(node.inputs), [node.outputs[0]]
        for place in (self.inputs.index(name) for name in ("past_key", "past_value")):
            past = formal[place]
            assert past is not None
            cast = emit("Cast", past, to=ir.DataType.FLOAT)
            node.replace_input_with(place, emit("Reshape", cast, emit("Shape", past)))
        before = len(emit.nodes)
        for present in node.outputs[1:]:
            name, present.name = present.name, f"{present.name}_float"
            outputs.append(emit("Cast", present, to=ir.DataType.FLOAT16))
            outputs[-1].name = name
        nodes = [*emit.nodes[:before], node, *emit.nodes[before:]]
        return function_of(self.name, formal, outputs, nodes, self.declared)


def function_of(
    name: str,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    nodes: Sequence[ir.Node],
    attributes: Mapping[str, ir.AttributeType],
) -> ir.Function:
    """Return a function of these nodes. attributes: types of those that calls have."""
    formal = [value for value in inputs if value is not None]
    opsets = {"": OPSET, CONTRIB: 1} if any(node.domain == "" for node in nodes) else {CONTRIB: 1}
    graph = ir.Graph(formal, outputs, nodes=nodes, opset_imports=opsets, name=name)
    declared = [ir.Attr(each, kind, None) for each, kind in attributes.items()]
    return ir.Function(DOMAIN, name, graph=graph, attributes=declared)


def _product_fits(node: ir.Node) -> bool:
    bits, block = node.attributes.get_int("bits"), node.attributes.get_int("block_size")
    is_float = dtype_of(node.inputs[0]) == ir.DataType.FLOAT
    return is_float and len(node.inputs) <= len(PRODUCT.inputs) and block <= MOST.get(bits, 0)


def _attention_fits(node: ir.Node, *, outputs: int = 3, cache: ir.DataType = ir.DataType.FLOAT) -> bool:
    inputs, attributes = ops.ATTENTION.named(node.inputs), set(node.attributes)
    quantized = cache == ir.DataType.INT8
    return (
        inputs["past_key"] is not None
        and dtype_of(inputs["past_key"]) == cache
        and dtype_of(inputs["query"]) == ir.DataType.FLOAT
        and len(node.outputs) == outputs
        and all(bool(inputs.get(name)) == quantized for name in SCALES)
        and not inputs.get("position_ids")
        and attributes == ATTENTION.attributes.keys() | (INT8_CACHE.keys() if quantized else set())
    )


def _self_attention_fits(node: ir.Node, *, causal: bool) -> bool:
    inputs = ops.ATTENTION.named(node.inputs)
    said = set() if causal else {"causal"}
    return (
        inputs["past_key"] is None
        and dtype_of(inputs["query"]) == ir.DataType.FLOAT
        and len(node.outputs) == len(ATTENTION.outputs)
        and not any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
        and not any(inputs.get(name) for name in UNUSED)
        and node.attributes.keys() == ATTENTION.attributes.keys() | said
        and node.attributes.get_int("causal", 1) == causal
    )


def _source_attention_fits(node: ir.Node) -> bool:
    return (
        dtype_of(node.inputs[0]) == ir.DataType.FLOAT
        and [value is not None for value in node.inputs] == [name is not None for name in SOURCE_ATTENTION.inputs]
        and node.attributes.keys() == {"num_heads", "scale", "mask_filter_value"}
    )


def _norm_fits(node: ir.Node, *, inputs: int, keeps_sum: bool) -> bool:
    # onnxruntime infers types of all outputs that a function has, so a call must have them.
    return (
        dtype_of(node.inputs[2]) == ir.DataType.FLOAT
        and len(node.inputs) <= inputs
        and node.attributes.keys() == {"epsilon"}
        and bool(node.outputs[3].name) == keeps_sum
    )


_INT, _FLOAT = ir.AttributeType.INT, ir.AttributeType.FLOAT

_FUNCTIONS = {each.name: each for each in ops.FUNCTIONS}

PRODUCT = KernelFunction(
    _FUNCTIONS["MatMulNBits"],
    outputs=("Y",),
    attributes=dict.fromkeys(("K", "N", "bits", "block_size"), _INT),
    fits=_product_fits,
)

ATTENTION = KernelFunction(
    ops.CACHED_ATTENTION,
    outputs=ops.ATTENTION.outputs,
    attributes=dict.fromkeys(
        ("num_heads", "kv_num_heads", "local_window_size", "do_rotary", "rotary_interleaved"), _INT
    )
    | dict.fromkeys(("scale", "softcap"), _FLOAT),
    fits=_attention_fits,
)

FP16_ATTENTION = CastCacheFunction(
    ops.FP16_CACHED_ATTENTION,
    ATTENTION.outputs,
    ATTENTION.attributes,
    partial(_attention_fits, cache=ir.DataType.FLOAT16),
)

INT8_ATTENTION = replace(
    ATTENTION, function=ops.INT8_CACHED_ATTENTION, fits=partial(_attention_fits, cache=ir.DataType.INT8)
)

SHARED_ATTENTION = replace(
    ATTENTION, function=ops.SHARED_CACHE_ATTENTION, outputs=("output",), fits=partial(_attention_fits, outputs=1)
)

SELF_ATTENTION, CAUSAL_SELF_ATTENTION = (
    replace(
        ATTENTION,
        function=function,
        unread=("present_key", "present_value"),
        fits=partial(_self_attention_fits, causal=causal),
    )
    for function, causal in ((ops.SELF_ATTENTION, False), (ops.CAUSAL_SELF_ATTENTION, True))
)

SOURCE_ATTENTION = KernelFunction(
    _FUNCTIONS["SourceAttention"],
    outputs=("output",),
    attributes={"num_heads": _INT, "scale": _FLOAT},
    fits=_source_attention_fits,
)

RMS_NORM, LAYER_NORM, POST_LAYER_NORM = (
    KernelFunction(
        _FUNCTIONS[name],
        outputs=("output", None, None, "input_skip_bias_sum" if keeps_sum else None),
        attributes={"epsilon": _FLOAT},
        fits=partial(_norm_fits, inputs=inputs, keeps_sum=keeps_sum),
    )
    for name, inputs, keeps_sum in (("AddRMSNorm", 3, True), ("AddLayerNorm", 4, True), ("PostLayerNorm", 4, False))
)

KERNELS = (
    PRODUCT, ATTENTION, FP16_ATTENTION, INT8_ATTENTION, SHARED_ATTENTION, SELF_ATTENTION, CAUSAL_SELF_ATTENTION,
    SOURCE_ATTENTION, RMS_NORM, LAYER_NORM, POST_LAYER_NORM,
)  # fmt: skip
"""All functions of one node."""
