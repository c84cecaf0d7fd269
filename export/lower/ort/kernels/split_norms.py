"""Split a packed projection and norm its heads by one function of the model.

             ┌→ Reshape → SimplifiedLayerNormalization → Reshape → query
    A → Split┼→ Reshape → SimplifiedLayerNormalization → Reshape → key        becomes     A → SplitRMSNorm → all three
             └→ value

Its body is these nodes, with each norm in primitives: onnxruntime (1.32) crashes where a function has its own
norm, and makes that of the primitives. Requires float32, norms of single heads with one epsilon, and that nothing else
reads what is between. In a decode step each of the seven nodes takes as long as onnxruntime needs to call it.
"""

from dataclasses import dataclass

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN, RMS_NORM
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dim, dtype_of, same_type
from edgeformer.export.graph.provenance import origin_of
from edgeformer.export.lower.ort.kernels.epilogues import only_reader
from edgeformer.export.lower.ort.kernels.kernel_nodes import function_of
from edgeformer.export.passes.simplify_layout import constant_integers

NAME = "SplitRMSNorm"


@dataclass(frozen=True)
class _Normed:
    """The norm of heads of a part, and the Reshapes to single heads and back."""

    norm: ir.Node
    to_heads: ir.Node
    joined: ir.Node

    @property
    def gamma(self) -> ir.Value:
        """The weight of a head."""
        gamma = self.norm.inputs[1]
        assert gamma is not None
        return gamma


@dataclass(frozen=True)
class SplitNorms:
    """A Split of a packed projection, and what norms its first two parts."""

    split: ir.Node
    query: _Normed
    key: _Normed


def split_norms(model: ir.Model) -> list[SplitNorms]:
    """Return the splits of packed projections whose queries and keys are normed by heads."""
    found = []
    for split in model.graph:
        kind = split.domain, split.op_type, len(split.outputs), split.attributes.get_int("axis", 0)
        if kind != ("", "Split", 3, -1):
            continue
        widths = constant_integers(split.inputs[1]) if len(split.inputs) > 1 else None
        query, key = (_normed(part) for part in split.outputs[:2])
        if widths is None or query is None or key is None or dtype_of(split.inputs[0]) != ir.DataType.FLOAT:
            continue
        alike = [(dim(each.gamma, 0), each.norm.attributes.get_float("epsilon")) for each in (query, key)]
        if alike[0] == alike[1] and not any(width % alike[0][0] for width in widths[:2]):
            found.append(SplitNorms(split, query, key))
    return found


def _normed(part: ir.Value) -> _Normed | None:
    """Return what norms the heads of a part of a Split, if nothing else reads it."""
    to_heads = only_reader(part)
    norm = None if to_heads is None or to_heads.op_type != "Reshape" else only_reader(to_heads.outputs[0])
    joined = None if norm is None or norm.op_type != RMS_NORM.name else only_reader(norm.outputs[0])
    if to_heads is None or norm is None or joined is None or joined.op_type != "Reshape":
        return None
    x, gamma = norm.inputs[:2]
    ranks = [
        None if value is None or value.shape is None else len(value.shape) for value in (gamma, x, joined.outputs[0])
    ]
    return _Normed(norm, to_heads, joined) if ranks == [1, 4, 3] and dim(x, -1) == dim(gamma, 0) else None


def call_split_norm(model: ir.Model, found: SplitNorms) -> ir.Function:
    """Put one call in the place of what was found; return the function that it calls."""
    split, norm = found.split, found.query.norm
    emit = NodeBuilder(f"{norm.name}/split", origin_of(norm))
    heads = emit.constant([0, 0, -1, dim(found.query.gamma, 0)])
    call = ir.Node(
        DOMAIN, NAME, [split.inputs[0], found.query.gamma, found.key.gamma, split.inputs[1], heads],
        [norm.attributes["epsilon"]], num_outputs=3, name=norm.name, metadata_props=dict(norm.metadata_props),
    )  # fmt: skip
    old = [found.query.joined.outputs[0], found.key.joined.outputs[0], split.outputs[2]]
    for new, each in zip(call.outputs, old, strict=True):
        same_type(new, each)
    nodes = [part for each in (found.query, found.key) for part in (each.joined, each.norm, each.to_heads)]
    ir.convenience.replace_nodes_and_values(model.graph, split, [], [*emit.nodes, call], old, call.outputs)
    for node in (*nodes, split):
        model.graph.remove(node, safe=True)
    return split_norm_function()


def split_norm_function() -> ir.Function:
    """Return the function."""
    emit = NodeBuilder("split")
    formal = [ir.Value(name=name) for name in ("A", "query_gamma", "key_gamma", "split", "heads")]
    packed, *gammas, split, heads = formal
    epsilon = emit("Constant", value_float=ir.RefAttr("value_float", "epsilon", ir.AttributeType.FLOAT))
    two, last, joined = emit.constant(2.0, ir.DataType.FLOAT), emit.constant([-1]), emit.constant([0, 0, -1])
    *parts, value = emit.many("Split", packed, split, outputs=3, axis=-1)
    outputs = []
    for part, gamma in zip(parts, gammas, strict=True):
        x = emit("Reshape", part, heads)
        deviation = emit("Sqrt", emit("Add", emit("ReduceMean", emit("Pow", x, two), last), epsilon))
        outputs.append(emit("Reshape", emit("Mul", emit("Div", x, deviation), gamma), joined))
    outputs.append(value)
    for output, name in zip(outputs, ("query", "key", "value"), strict=True):
        output.name = name
    return function_of(NAME, formal, outputs, emit.nodes, {"epsilon": ir.AttributeType.FLOAT})
