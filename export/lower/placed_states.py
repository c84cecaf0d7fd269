"""Embeddings with the states of pictures in the places of placeholders, as onnxruntime-genai wants them of a graph.

    input_ids       [B, S] ─→ the graph of embeddings ────────────────┐
                    [B, S] ─→ is it a placeholder, and which one ──┐  │
    image_features  [N, W] ────────────────────→ Gather ───────────┴→ Where → inputs_embeds [B, S, W]

The first placeholder becomes the first state, and so on; those beyond the last state, as in text that the model wrote,
keep their embeddings. The weights are those of the graph of embeddings.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder

STATES = "image_features"


def with_states(embeddings: ir.Model, token: int) -> ir.Model:
    """Return the lowered graph of embeddings with states in the places of a token; it stays as it is."""
    placed = embeddings.clone()
    graph = placed.graph
    (ids,), (rows,) = graph.inputs, graph.outputs
    assert rows.shape is not None
    name, width, shape = rows.name, rows.shape[2], rows.shape
    rows.name = f"{name}/of_tokens"
    states = ir.Value(name=STATES, type=rows.type, shape=ir.Shape(["num_image_tokens", width]))
    emit = NodeBuilder("placed")
    flat = emit("Reshape", ids, emit.constant([-1]))
    seen = emit("Equal", flat, emit.constant(token))
    number = emit("CumSum", emit("Cast", seen, to=ir.DataType.INT64), emit.constant(0))
    there = emit("And", seen, emit("LessOrEqual", number, emit("Shape", states, start=0, end=1)))
    nothing = emit("ConstantOfShape", emit.constant([1, width]))  # a row for all tokens that are no placeholders
    index = emit("Where", there, number, emit.constant(0))
    found = emit("Gather", emit("Concat", nothing, states, axis=0), index, axis=0)
    mask = emit("Reshape", there, emit("Concat", emit("Shape", ids), emit.constant([1]), axis=0))
    result = emit("Where", mask, emit("Reshape", found, emit("Shape", rows)), rows)
    result.name, result.type, result.shape = name, rows.type, shape
    for node in emit.nodes:
        graph.append(node)
    graph.inputs.append(states)
    graph.outputs[:] = [result]
    return placed
