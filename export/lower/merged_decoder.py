"""A merged decoder for clients that take one decoder graph only: transformers.js and Optimum.

    encoder_model.onnx   … → last_hidden_state → projections → present.{i}.encoder.key|value
    decoder_model.onnx   past_key_values.{i}.encoder.key|value → cross-attention → …

    decoder_model_merged.onnx
        If use_cache_branch:  past_key_values.{i}.encoder.key|value ─────────────────┐
        else:                 encoder_hidden_states → the encoder graph's projections ┴→ present.{i}.encoder.key|value
        present.{i}.encoder.key|value → cross-attention → …

Such clients pass encoder states to the decoder: its first run computes the keys and values of cross-attention from
them, and all other runs get these back. The clients have no mask of the decoder's tokens, since all of them count;
but a past that comes with `use_cache_branch` = False is a placeholder, in Optimum of length 1, and is cut off.
Everything else is the decoder graph's, so both graphs read the same weights and compute the same, in every precision.
"""

from collections.abc import Sequence

import onnx_ir as ir

from edgeformer.config import Seq2SeqConfig
from edgeformer.contract.tensors import merged_input_names, merged_output_names, past_names, present_names
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import producer, streamed
from edgeformer.export.graph.outlining import add_function

STATES, CACHED = "encoder_hidden_states", "use_cache_branch"
PREFIX = "source"
"""Prefix of values that come from the encoder graph, whose names the decoder graph also uses."""


def merged_decoder(encoder: ir.Model, decoder: ir.Model, config: Seq2SeqConfig) -> ir.Model:
    """Return the merged graph of two lowered ones, which stay as they are.

    Requires that the encoder graph computes keys and values from its last_hidden_state and the mask alone.
    """
    own, cross = config.decoder.cache_geometry, config.decoder.cross_geometry
    assert cross is not None
    merged = decoder.clone()
    graph, first = merged.graph, merged.graph[0]
    named = {value.name: value for value in graph.inputs}
    states = named[STATES] = _like(encoder.graph.outputs[0], STATES)
    cached = named[CACHED] = ir.Value(name=CACHED, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([1]))

    emit = NodeBuilder("masks")
    readers = {past: list(past.uses()) for past in (named[name] for name in past_names(own, "decoder."))}
    length = _past_length(emit, next(iter(readers)), cached)
    for past, uses in readers.items():
        cut = _cut(emit, past, length)
        for node, index in uses:
            node.replace_input_with(index, cut)
    tokens = emit("Add", emit("Shape", named["input_ids"]), emit("Concat", emit.constant([0]), length, axis=0))
    ir.convenience.replace_all_uses_with(named["decoder_attention_mask"], _ones(emit, tokens))
    mask, masked = named["encoder_attention_mask"], config.reads_text
    if not masked:
        ir.convenience.replace_all_uses_with(mask, _ones(emit, emit("Shape", states, start=0, end=2)))

    pasts = [named[name] for name in past_names(cross, "encoder.")]
    source_readers = [list(past.uses()) for past in pasts]
    choice = NodeBuilder(PREFIX)
    presents = choice.many(
        "If", cached, outputs=len(pasts),
        then_branch=_passed_on(pasts),
        else_branch=_projections(encoder.graph, merged, states, mask, present_names(cross, "encoder.")),
    )  # fmt: skip
    for function in encoder.functions.values():
        add_function(merged, function)
    for past, present, uses, name in zip(
        pasts, presents, source_readers, present_names(cross, "encoder."), strict=True
    ):
        present.name, present.type, present.shape = name, past.type, past.shape
        for node, index in uses:
            node.replace_input_with(index, present)
        assert past.shape is not None
        past.shape = ir.Shape([size if axis != 2 else "past_source_length" for axis, size in enumerate(past.shape)])

    graph.insert_before(first, [*emit.nodes, *choice.nodes])
    outputs = {value.name: value for value in (*graph.outputs, *presents)}
    graph.inputs[:] = [named[name] for name in merged_input_names(own, cross, masked)]
    graph.outputs[:] = [outputs[name] for name in merged_output_names(own, cross)]
    return merged


def _like(value: ir.Value, name: str) -> ir.Value:
    return ir.Value(name=name, type=value.type, shape=value.shape)


def _cut(emit: NodeBuilder, past: ir.Value, end: ir.Value) -> ir.Value:
    """The first tokens of a past."""
    cut = emit("Slice", past, emit.constant([0]), end, emit.constant([2]))
    cut.type, cut.shape = past.type, past.shape
    return cut


def _past_length(emit: NodeBuilder, past: ir.Value, cached: ir.Value) -> ir.Value:
    """The length of a past that counts, [1]: 0 for a placeholder."""
    return emit("Mul", emit("Shape", past, start=2, end=3), emit("Cast", cached, to=ir.DataType.INT64))


def _ones(emit: NodeBuilder, shape: ir.Value) -> ir.Value:
    """A mask without padding."""
    return emit("ConstantOfShape", shape, value=ir.tensor([1], dtype=ir.DataType.INT64))


def _passed_on(pasts: Sequence[ir.Value]) -> ir.Graph:
    """The branch that passes on keys and values of an earlier run."""
    emit = NodeBuilder(f"{PREFIX}/past")
    outputs = [emit("Identity", past) for past in pasts]
    for output, past in zip(outputs, pasts, strict=True):
        output.name, output.type, output.shape = f"{PREFIX}/{past.name}", past.type, past.shape
    return ir.Graph([], outputs, nodes=emit.nodes, name="past")


def _projections(
    encoder: ir.Graph, merged: ir.Model, states: ir.Value, mask: ir.Value, presents: Sequence[str]
) -> ir.Graph:
    """The branch that computes keys and values from encoder states: the nodes behind the encoder's last_hidden_state.

    Their weights and constants become initializers of the merged graph, which a branch can read.
    """
    hidden = encoder.outputs[0]
    cast = producer(hidden, "Cast")  # float16 states leave the encoder graph as float32
    hidden = hidden if cast is None else cast.inputs[0]  # type: ignore[assignment]
    branch = ir.convenience.extract(encoder, [hidden, *encoder.inputs], presents)
    branch.name = "projections"
    for output in (output for node in branch for output in node.outputs):
        output.name = f"{PREFIX}/{output.name}"
    _move_initializers(branch, [name for name in encoder.initializers if name in branch.initializers], merged)
    inner, *inputs = branch.inputs
    if cast is not None:
        emit = NodeBuilder(PREFIX)
        states = emit("Cast", states, to=branch.outputs[0].dtype)
        states.name = f"{PREFIX}/{STATES}"
        branch.insert_before(branch[0], emit.nodes)
    ir.convenience.replace_all_uses_with(inner, states)
    for value in inputs:
        if value.name == "attention_mask":
            ir.convenience.replace_all_uses_with(value, mask)
            continue
        # Of tokens and recordings only sizes are read; those of a recording are constants, except for the rows.
        assert all(use.node.op_type == "Shape" for use in value.uses()), f"projections read {value.name}"
        ir.convenience.replace_all_uses_with(value, mask if value.name == "input_ids" else states)
    branch.inputs.clear()
    return branch


def _move_initializers(branch: ir.Graph, names: Sequence[str], merged: ir.Model) -> None:
    """Move the initializers of a branch to the merged graph; a weight that the merged graph has already is shared.

    names: all of them, in an order that is the same in every export (that of the branch is not).
    """
    for name in names:
        value = branch.initializers.pop(name)
        weight, known = streamed(value) is not None, merged.graph.initializers.get(name)
        if weight and known is not None:
            ir.convenience.replace_all_uses_with(value, known)
            continue
        value.name = name if weight else f"{PREFIX}/{name}"
        merged.graph.register_initializer(value)
