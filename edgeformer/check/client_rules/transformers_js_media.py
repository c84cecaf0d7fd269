"""Models that read pictures or sound, and text, in transformers.js: three graphs, and what it gives to each.

Source: transformers.js 4.3.2, `src/models/session_config.js`, `src/models/modeling_utils.js` and the classes of models.
`tests/families/test_picture_clients.py` runs it with bundles of every family that sees.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from edgeformer.check.client_rules import transformers_js_types as types
from edgeformer.check.finding import Finding, error, warning
from edgeformer.check.folder import Folder
from edgeformer.check.graph_facts import GraphFacts
from edgeformer.contract.tensors import AUDIO_VALUES
from edgeformer.manifest.graph_forms import BLOCK_GRAPH, FORMS

EMBED, DECODER = "embed_tokens", "decoder_model_merged"
GIVEN_TO_READER = ("inputs_embeds", "attention_mask", "position_ids", "num_logits_to_keep")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
TILED = ("idefics3", "smolvlm")


class Tower(NamedTuple):
    """The graph of a tower: its name, the inputs that it is given, and the output that is read."""

    name: str
    given: tuple[str, ...]
    output: str


def tower_of(folder: Folder, config: dict[str, Any]) -> Tower | None:
    """Return the tower of a folder, as it is run; None for a folder of a model without one."""
    model_type = config.get("model_type")
    if FORMS["vision_encoder"].file in folder.graphs:
        more = {
            **dict.fromkeys(QWEN, ("image_grid_thw",)), "qwen2_vl": ("grid_thw",),
            **dict.fromkeys(TILED, ("pixel_attention_mask",)), "gemma4": ("pixel_position_ids",),
            "lfm2_vl": ("pixel_attention_mask", "spatial_shapes"),
        }.get(str(model_type), ())  # fmt: skip
        return Tower("vision_encoder", ("pixel_values", *more), "image_features")
    if FORMS["audio_encoder"].file in folder.graphs:
        return Tower("audio_encoder", (AUDIO_VALUES,), "audio_features")
    return None


def is_known(config: dict[str, Any], tower: Tower) -> bool:
    """Return whether it has a class for the type of a model that sees or hears."""
    return config.get("model_type") in (types.IMAGE_TEXT if tower.name == "vision_encoder" else types.AUDIO_TEXT)


def type_findings(folder: Folder, config: dict[str, Any], tower: Tower) -> Iterator[Finding]:
    """Yield what it does wrong with models of a type that see or hear."""
    model_type = config.get("model_type")
    of_pictures = tower.name == "vision_encoder"
    if not is_known(config, tower):
        what = "pictures" if of_pictures else "sound"
        yield error(f"It has no model_type {model_type!r} among its models of {what} and text (in {types.VERSION}).")
    elif BLOCK_GRAPH in folder.graphs:
        yield error(
            f"It reads a prompt over one causal graph, and what a {model_type} sees attends both ways, which "
            f"{BLOCK_GRAPH} does; it finds no {DECODER}.onnx, which would compute something else.",
            "For text alone, export with --text-only.",
        )
    elif model_type in ("gemma3n", "gemma4"):
        yield error(
            f"It wants an audio_encoder.onnx of a {model_type}, and rows of the per-layer embedding as an output and "
            "an input of their own (per_layer_inputs), which follow those of tokens here.",
            "For text alone, export with --text-only.",
        )
    elif model_type == "llava_onevision":
        yield error(
            "It runs a llava_onevision as a LLaVA of one tile, and does not put the states of tiles together.",
            "Use edgeformer's runtime.",
        )
    elif of_pictures and model_type not in QWEN and "image_grid_thw" in _inputs(folder):
        yield error(
            f"It gives a tower of a {model_type} whole pictures, or padded patches row by row, and this one reads "
            "patches of one picture, in squares.",
            "Use edgeformer's runtime, or a program of your own over onnxruntime.",
        )
    elif of_pictures:
        if model_type in QWEN:
            yield warning(
                f"It gives the tower all pictures of a prompt at once, and {tower.name}.onnx reads one.",
                "Ask about one picture, or run the tower for each, as examples/node/picture.mjs does.",
            )
        yield warning(
            "It resizes pictures by filters of its own: pixel values are not those that the model was trained with.",
            "For the same answers as everywhere else, give it pixel_values of transformers' processor in Python.",
        )


def _inputs(folder: Folder) -> tuple[str, ...]:
    return tuple(folder.graphs[FORMS["vision_encoder"].file].inputs)


def states_findings(graph: GraphFacts, config: dict[str, Any]) -> Iterator[Finding]:
    """Yield an error where it counts states of pictures by another axis than the graph has for them."""
    rank = len(graph.outputs["image_features"].dims) if "image_features" in graph.outputs else 2
    if config.get("model_type") in QWEN and rank != 2:
        yield error(
            f"It counts states of pictures by the first of two axes, and {graph.name} returns {rank}.",
            "Export the model again.",
        )
