"""Tell onnxruntime-genai of a model that sees: the sections of genai_config.json, and its own image processor.

It counts states of pictures by the first axis of `image_features`, puts them between embeddings by a graph, and knows
by the type in genai_config.json which positions they have. Of the types that it knows, the towers of Qwen2.5-VL,
Qwen3-VL and Qwen3.5 read what its processor makes. Source: tested with onnxruntime-genai 0.18.
"""

from typing import Any

from edgeformer.config import PictureTextConfig
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.pictures.grid import GridProcessor
from edgeformer.manifest.pictures.processor import PictureProcessor

PROCESSOR = "genai_processor.json"
"""The file of its image processor; Hugging Face's own are named otherwise."""

TYPES = {
    "qwen2_5_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl", "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe",
}  # fmt: skip
"""Its types of models that see, by the model_type of config.json."""

TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id")


def picture_type(hf_config: dict[str, Any] | None, pictures: PictureProcessor | None) -> str | None:
    """Return its type of a model whose pictures it reads; None for others.

    It resizes by a bicubic filter as Pillow does, to one in 2,000,000 of the values.
    """
    fits = isinstance(pictures, GridProcessor) and pictures.resample == "bicubic" and None not in (
        pictures.scale, pictures.mean, pictures.std,
    )  # fmt: skip
    return TYPES.get(str((hf_config or {}).get("model_type"))) if fits else None


def picture_sections(manifest: Manifest, hf_config: dict[str, Any], session: dict[str, Any]) -> dict[str, Any]:
    """Return what genai_config.json has under `model` for pictures, beside the decoder. session: options of each."""
    pictures, graphs = manifest.pictures, manifest.graphs
    assert isinstance(pictures, GridProcessor)
    states, rows = "image_features", "inputs_embeds"
    values = {name: name for name in ("pixel_values", "image_grid_thw")}
    return {
        **{key: hf_config[key] for key in TOKENS if key in hf_config},
        "vision": {
            "filename": graphs["vision_encoder"].file,
            "config_filename": PROCESSOR,
            "patch_size": pictures.patch,
            "spatial_merge_size": pictures.square,
            "inputs": values,
            "outputs": {states: states},
            "session_options": session,
        },
        "embedding": {
            "filename": graphs["embedding"].file,
            "inputs": {"input_ids": "input_ids", states: states},
            "outputs": {rows: rows},
            "session_options": session,
        },
    }


def decoder_section(manifest: Manifest) -> dict[str, Any]:
    """Return what `model.decoder` has for pictures: the graph that reads embeddings, and how wide these are."""
    assert isinstance(manifest.model, PictureTextConfig)
    names = {name: name for name in ("inputs_embeds", "attention_mask", "position_ids")}
    file = manifest.graphs["embedding_decoder"].file
    return {"filename": file, "hidden_size": manifest.model.wide_size, "inputs": names}


def processor_file(pictures: GridProcessor) -> dict[str, Any]:
    """Return the content of its image processor's file."""
    sizes = {"patch_size": pictures.patch, "merge_size": pictures.square}
    limits = {"min_pixels": pictures.min_pixels, "max_pixels": pictures.max_pixels}
    means = {"mean": list(pictures.mean or ()), "std": list(pictures.std or ())}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("DecodeImage", {"color_space": "RGB"}),
        ("ConvertRGB", {}),
        ("Resize", {"width": pictures.side, "height": pictures.side, "smart_resize": 1, **sizes, **limits}),
        ("Rescale", {"rescale_factor": pictures.scale}),
        ("Normalize", {**means, "qwen2_5_vl": 1}),
        ("PatchImage", {**sizes, "temporal_patch_size": pictures.frames}),
    ]
    operations = [{"operation": {"name": kind.lower(), "type": kind, "attrs": attrs}} for kind, attrs in steps]
    return {"processor": {"name": "qwen2_5_image_processor", "transforms": operations}}
