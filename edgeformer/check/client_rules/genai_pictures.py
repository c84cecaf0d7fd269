"""Pictures in onnxruntime-genai: the sections of genai_config.json for them, and why it reads those of a model or not.

Source: runs of onnxruntime-genai 0.18 on bundles of every family that sees, and on folders with one fault each.
"""

from collections.abc import Iterator
from typing import Any

from edgeformer.check.client_rules import genai_keys as keys
from edgeformer.check.finding import Finding, error, warning
from edgeformer.check.folder import CONFIG, GENAI_CONFIG, Folder
from edgeformer.check.graph_facts import GraphFacts
from edgeformer.manifest.graph_forms import BLOCK_GRAPH, FORMS

ROWS, STATES = "inputs_embeds", "image_features"
OTHER_TOWERS = {
    "gemma4": "It gives a tower of Gemma 4 positions of patches row by row, and the decoder rows of the per-layer "
    "embedding as an input of their own",
    "lfm2_vl": "It gives a tower of LFM2-VL padded patches row by row, in which squares do not stand together",
    "mistral3": "It gives a tower of Mistral 3 whole pictures and their sizes, and not patches",
}  # fmt: skip
"""Why it does not run towers of types that it has."""
NO_TYPE = "It has no type for the pictures of {}"
"""Why it runs no others: under a type of other towers, it takes the pictures or tiles of these for states."""


def text_findings(folder: Folder) -> Iterator[Finding]:
    """Yield why it reads the text of a model that sees or hears, and nothing else."""
    if FORMS["audio_encoder"].file in folder.graphs:
        yield warning("It reads text alone with this folder, and no recordings.")
    if FORMS["vision_encoder"].file not in folder.graphs:
        return
    named = str(folder.document(CONFIG).get("model_type"))
    why = OTHER_TOWERS.get(named) or NO_TYPE.format(named)
    if BLOCK_GRAPH in folder.graphs:
        why = f"It reads prompts causally, and what a {named} sees attends both ways"
    yield warning(f"It reads text alone with this folder, and no pictures. {why}.")


def picture_findings(folder: Folder, model: dict[str, Any], reader: GraphFacts) -> Iterator[Finding]:
    """Yield what is wrong with the graphs of a model that it knows to see. reader: the graph of its decoder."""
    for section, inputs, output in (
        ("vision", ("pixel_values", "image_grid_thw"), STATES),
        ("embedding", ("input_ids", STATES), ROWS),
    ):
        file = (model.get(section) or {}).get("filename")
        graph = folder.graphs.get(str(file))
        if graph is None:
            yield error(f"{GENAI_CONFIG} names no graph in model.{section}.filename that is there.")
            continue
        lacking = [name for name in (*inputs, output) if name not in {**graph.inputs, **graph.outputs}]
        if lacking:
            yield error(f"{file} has no {', '.join(lacking)}.", "Export the model again.")
        elif len(graph.outputs[output].dims) != (2 if output == STATES else 3):
            yield error(f"{file} returns {output} of {len(graph.outputs[output].dims)} axes.", "Export it again.")
    width, told = reader.inputs[ROWS].size(2) if ROWS in reader.inputs else None, model["decoder"].get("hidden_size")
    if width != told:
        yield error(
            f"{GENAI_CONFIG}: model.decoder.hidden_size is {told}, and {reader.file} reads embeddings of {width}.",
            f"Set it to {width}.",
        )


def is_seeing(model: dict[str, Any]) -> bool:
    """Return whether it runs a tower of pictures for this type."""
    return model.get("type") in keys.PICTURE_TYPES
