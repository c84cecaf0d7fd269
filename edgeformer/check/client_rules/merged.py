"""decoder_model_merged.onnx, the decoder of an encoder-decoder for transformers.js and Optimum."""

from collections.abc import Iterator

from edgeformer.check.finding import Finding, error
from edgeformer.check.graph_facts import GraphFacts

GIVEN = ("input_ids", "encoder_hidden_states", "encoder_attention_mask", "use_cache_branch")


def merged_findings(graph: GraphFacts) -> Iterator[Finding]:
    """Yield inputs and outputs that a merged decoder lacks, and inputs that clients do not provide."""
    requires = [name for name in graph.inputs if name not in GIVEN and name not in graph.pasts]
    if requires:
        yield error(f"{graph.file} requires {', '.join(requires)}, which no client provides to a merged decoder.")
    presents = [name.replace("past_key_values", "present") for name in graph.pasts]
    lacks = [name for name in ("logits", *presents) if name not in graph.outputs]
    if lacks:
        yield error(f"{graph.file} does not return {', '.join(lacks)}.")
    if not graph.pasts or "encoder_hidden_states" not in graph.inputs:
        yield error(f"{graph.file} takes no caches or no encoder_hidden_states, so it is not a merged decoder.")
