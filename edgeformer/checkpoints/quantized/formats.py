"""The formats of quantized checkpoints: what `quantization_config` may say, and what reads the weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeformer.documents.json_document import read_object
from edgeformer.errors import ConfigError, shown

Check = Callable[[Any], bool]


@dataclass(frozen=True)
class Format:
    """A format of quantized checkpoints.

    Attributes:
        reader: module and function that return the matrices of a checkpoint, of its options and its open files.
        tensors: last parts of the names of tensors that it stores beside a matrix, or in the place of one.
        options: what a field must be, and in words; fields that are not here decide about no number.
        dequantizes: whether transformers reads it as plain weights where it is told to.
        pickled: why pickles of it are not read, and what to do; empty where they are.
    """

    reader: tuple[str, str]
    tensors: tuple[str, ...]
    options: Mapping[str, tuple[Check, str]] = field(default_factory=dict)
    dequantizes: bool = False
    pickled: str = ""


def _one_of(*values: Any) -> tuple[Check, str]:
    return (lambda value: value in values), f"one of {', '.join(map(str, values))}"


def _size(value: Any) -> bool:
    return value is None or (type(value) is int and (value == -1 or value > 0))


GROUP = (_size, "a number of weights, or -1 for all of an output")
SCALES = (
    "input_scale",
    "input_global_scale",
    "output_scale",
    "input_zero_point",
    "output_zero_point",
    "k_scale",
    "v_scale",
    "q_scale",
)
"""Scales of activations and caches, which a bundle does not have."""
COMPRESSED = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
)  # fmt: skip
MODELOPT = (
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4", "NVFP4_AWQ", "W4A16_AWQ", "MXFP8", "mxfp4",
)  # fmt: skip
"""Algorithms of modelopt whose weights are read."""
MODELOPT_FILE = "hf_quant_config.json"
"""The file in which older versions of modelopt keep their options."""
FORMATS: dict[str, Format] = {
    "gptq": Format(
        ("gptq", "gptq_matrices"),
        ("qweight", "qzeros", "scales", "g_idx"),
        {
            "bits": _one_of(2, 4, 8),
            "group_size": GROUP,
            "checkpoint_format": _one_of("gptq", "gptq_v2", None),
        },
    ),
    "awq": Format(
        ("awq", "awq_matrices"),
        ("qweight", "qzeros", "scales"),
        {"bits": _one_of(4), "group_size": GROUP, "version": _one_of("gemm", "GEMM", None)},
    ),
    "compressed-tensors": Format(
        ("compressed", "compressed_matrices"),
        (
            "weight_packed", "weight_shape", "weight_scale", "weight_global_scale", "weight_zero_point", "weight_g_idx",
            *SCALES,
        ),
        {
            "format": _one_of(*COMPRESSED),
            "sparsity_config": (lambda value: not value or value.get("format") in (None, "dense"), "dense"),
            "transform_config": (lambda value: not value, "empty"),
        },
        dequantizes=True,
    ),
    "fp8": Format(
        ("float8", "float8_matrices"),
        ("weight_scale_inv", "weight_scale", *SCALES, "activation_scale"),
        {
            "weight_block_size": (
                lambda value: value is None or (isinstance(value, list) and len(value) == 2 and min(value) > 0),
                "two numbers",
            ),
        },
        dequantizes=True,
    ),
    "bitsandbytes": Format(
        ("bits_and_bytes", "bits_and_bytes_matrices"),
        (
            "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
            "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4", "SCB", "weight_format",
        ),
    ),
    "modelopt": Format(
        ("modelopt", "modelopt_matrices"),
        ("weight_scale", "weight_scale_2", "pre_quant_scale", *SCALES),
        {
            "quant_algo": _one_of(*MODELOPT, "MIXED_PRECISION"),
            "quantized_layers": (
                lambda layers: not layers or all(each.get("quant_algo") in MODELOPT for each in layers.values()),
                f"layers of quant_algo {', '.join(MODELOPT)}",
            ),
        },
    ),
    "torchao": Format(
        ("torchao", "torchao_matrices"),
        tuple(
            f"_weight_{part}"
            for part in (
                "qdata", "scale", "zero_point", "scale_and_zero", "per_tensor_scale",
                "act_quant_scale", "act_quant_zero_point", "act_per_tensor_scale",
            )
        ),
        pickled="pickles of torchao hold objects of its own classes. Load the model with transformers 5 and torchao "
        "0.15 or later, and save it again: save_pretrained then writes safetensors",
    ),
}  # fmt: skip
"""Formats by `quant_method`; MXFP4 of gpt-oss is read by its family (`mxfp4.py`)."""


def read_config(folder: Path, described: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return config.json of a folder without its quantization, and that, as `take_quantization` does.

    described: the folder, for people. Where config.json says nothing, that of modelopt's own file counts.
    """
    hf_config, own = read_object(folder / "config.json"), folder / MODELOPT_FILE
    if hf_config.get("quantization_config") or not own.is_file():
        return take_quantization(hf_config, f"config.json of {described}")
    options = read_object(own).get("quantization")
    if not isinstance(options, dict):
        raise ConfigError(f"{MODELOPT_FILE} of {described} has no object quantization. Download the folder again.")
    if options.get("quant_algo") is None:  # a cache alone is quantized
        return hf_config, None
    options = options | {"quant_method": "modelopt"}
    check_quantization(options, f"{MODELOPT_FILE} of {described}")
    return hf_config, options


def take_quantization(hf_config: dict[str, Any], described: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return a config.json without its `quantization_config`, and that; None where weights are plain, or MXFP4.

    Raises ConfigError as `check_quantization`.
    """
    options = hf_config.get("quantization_config")
    if not options or (isinstance(options, dict) and options.get("quant_method") == "mxfp4"):
        return hf_config, None
    check_quantization(options, described)
    return {name: value for name, value in hf_config.items() if name != "quantization_config"}, options


def check_quantization(options: Any, described: str) -> Format:
    """Return the format of a `quantization_config`. described: the file that has it.

    Raises ConfigError for a format, or a value of an option, that is not read.
    """
    method = options.get("quant_method") if isinstance(options, dict) else None
    if method is None and isinstance(options, dict) and {"load_in_4bit", "load_in_8bit"} & options.keys():
        method = "bitsandbytes"
    if method not in FORMATS:
        raise ConfigError(
            f"{described} has a quantization_config with quant_method = {shown(method)}; weights are read in "
            f"{', '.join(FORMATS)}, and as plain numbers. Give the model that it was made of, or one of these."
        )
    found = FORMATS[method]
    for name, (fits, words) in found.options.items():
        if name in options and not fits(options[name]):
            raise ConfigError(
                f"{described} has quantization_config.{name} = {shown(options[name])}, and edgeformer reads {method} "
                f"where it is {words}. Give the model that it was made of."
            )
    return found
