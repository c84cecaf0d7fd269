"""The alignment graph of a speech model: how much each token reads each position of the recording.

    decoder_model.onnx            … query, key → CrossAttention → … → logits
    decoder_model_alignment.onnx  … query, key → Softmax → weights → alignment heads of all layers → cross_attentions
                                                    └→ MatMul(value) → …

It is the decoder's graph with the same inputs, weights and presents. In layers with an alignment head, cross-attention
is decomposed, because no kernel returns its weights; what only the logits need is left out once the graph is lowered,
so that every weight is stored as in the decoder's graph. It runs once on the tokens of a finished text.
"""

from collections.abc import Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from edgeformer.config import Seq2SeqConfig
from edgeformer.contract.tensors import CROSS_ATTENTIONS, past_names
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import canonical_nodes, dtype_of
from edgeformer.export.lower.job import GraphJob
from edgeformer.export.lower.lowering import Lowered, lower_captured
from edgeformer.manifest.graph_forms import AlignmentHead
from edgeformer.models.graph_specs import GraphSpec


def alignment_graph(job: GraphJob, spec: GraphSpec) -> tuple[ir.Model, Lowered]:
    """Return the lowered alignment graph of a job. spec: the graph of its decoder."""
    assert job.alignment is not None and isinstance(job.model_spec.config, Seq2SeqConfig)
    model = job.captured(spec)
    weights = _with_weights(model, job.model_spec.config, job.alignment.heads)
    lowered = lower_captured(model, spec, job.lowering)
    # Where presents are no outputs, onnxruntime puts them into the pasts of float16, whatever their length.
    model.graph.outputs[:] = [weights, *(output for output in model.graph.outputs if "present" in (output.name or ""))]
    common_passes.RemoveUnusedNodesPass()(model)
    return model, job.with_half_weights(model, lowered)


def _with_weights(model: ir.Model, config: Seq2SeqConfig, heads: Sequence[AlignmentHead]) -> ir.Value:
    """Add the weights of the heads to the outputs of a captured graph: float32 [B, heads, S, T], in their order."""
    source = config.decoder.cross_geometry
    assert source is not None
    keys = past_names(source, "encoder.")[::2]
    layers = sorted({head.layer for head in heads})
    nodes = {canonical_inputs(node)["key"].name: node for node in canonical_nodes(model, "CrossAttention")}
    chosen = [_return_weights(nodes[keys[layer]]) for layer in layers]
    count = config.decoder.blocks[0].cross_attention.num_heads  # type: ignore[union-attr]
    emit = NodeBuilder("alignment")
    places = [layers.index(head.layer) * count + head.head for head in heads]
    picked = emit("Gather", emit("Concat", *chosen, axis=1), emit.constant(places), axis=1)
    output = emit("Cast", picked, to=ir.DataType.FLOAT)
    output.name, output.type = CROSS_ATTENTIONS, ir.TensorType(ir.DataType.FLOAT)
    output.shape = ir.Shape(["batch_size", len(heads), "sequence_length", "source_length"])
    model.graph.extend(emit.nodes)
    model.graph.outputs.append(output)
    return output


def _return_weights(node: ir.Node) -> ir.Value:
    """Give a cross-attention a second output, the weights [B, H, S, T]; `lower` decomposes it then."""
    inputs = canonical_inputs(node)
    node.resize_outputs(2)
    weights = node.outputs[1]
    weights.name, weights.type = f"{node.name}/weights", ir.TensorType(dtype_of(inputs.query))
    return weights
