"""The exports that quantization_loss.py measures: a row of its table is a name and the options of an export."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
import torch

from edgeformer.checkpoints.source import ModelSource
from edgeformer.export.importers.opened_bundle import open_subject
from edgeformer.export.parity.twin import replace_fp8_attention, write_twin
from edgeformer.export.progress import no_progress
from edgeformer.manifest.deployment import DeploymentName
from edgeformer.manifest.quantization import (
    MATRICES,
    VOCABULARY,
    Quantization,
    QuantizationOverrides,
    QuantizationRule,
    Rounding,
    WeightFormat,
    make_quantization,
)

Options = dict[str, Any]


def blocks(precision: Any, rounding: Rounding, **changes: Any) -> Options:
    """Return export options for integers in blocks, with the defaults of an export except for what is given."""
    return {
        "precision": precision,
        "quantization": make_quantization(precision, QuantizationOverrides(rounding=rounding, **changes)),
    }


def per_token(rounding: Rounding) -> Options:
    """Return export options for int8 × int8: per-channel weights, per-token activations."""
    form, table = WeightFormat(bits=8, block=None, rounding=rounding), WeightFormat(bits=8, block=128)
    vocabulary = [QuantizationRule(pattern=pattern, format=table) for pattern in VOCABULARY]
    own = QuantizationRule(pattern=MATRICES, format=form)
    return {"precision": "int8", "quantization": Quantization(rules=(*vocabulary, own))}


def deployed(name: str) -> Callable[[], Options]:
    """Return a function that returns export options for a deployment, with what it proposes."""
    return lambda: {"deployment": name}


FP8_CACHE: Options = {"cache_precision": "fp8", "provider": "cuda", "precision": "fp16"}

CONFIGS: dict[str, Callable[[], Options]] = {
    "bf16": lambda: {"precision": "bf16"},
    "float32, int8 cache": lambda: {"cache_precision": "int8"},
    "float32, int8 cache, calibrated": lambda: {"cache_precision": "int8"},
    "float32, fp8 cache": lambda: FP8_CACHE,
    "float32, fp8 cache, calibrated": lambda: FP8_CACHE,
    "int8 in blocks of 128, nearest": lambda: blocks("int8", "nearest"),
    "int8 in blocks of 128, gptq": lambda: blocks("int8", "gptq"),
    "int8 × int8, nearest": lambda: per_token("nearest"),
    "int8 × int8, gptq": lambda: per_token("gptq"),
    "int4 in blocks of 32, nearest": lambda: blocks("int4", "nearest"),
    "int4 in blocks of 32, mse": lambda: blocks("int4", "mse"),
    "int4 in blocks of 32, gptq": lambda: blocks("int4", "gptq", block=32),
    "int4 in blocks of 64, gptq": lambda: blocks("int4", "gptq", block=64),
    "int4 in blocks of 128, gptq": lambda: blocks("int4", "gptq", block=128),
    "int4 in blocks of 32, nearest, int8 head": lambda: blocks("int4", "nearest", head="int8"),
    "int4 in blocks of 32, mse, int8 head": lambda: blocks("int4", "mse", head="int8"),
    "int4 in blocks of 32, gptq, int8 head": lambda: blocks("int4", "gptq", block=32, head="int8"),
    "int4 in blocks of 64, gptq, int8 head": lambda: blocks("int4", "gptq", block=64, head="int8"),
    "int4 in blocks of 128, gptq, int8 head": lambda: blocks("int4", "gptq", block=128, head="int8"),
    "int8 in blocks of 32, nearest": lambda: blocks("int8", "nearest", block=32),
    "int8 in blocks of 32, gptq": lambda: blocks("int8", "gptq", block=32),
    **{f"deployment {name}": deployed(name) for name in get_args(DeploymentName)},
}


def sized(target: Options, sensitivities: Path) -> Options:
    """Return export options for a target: `target_size` or `bits`."""
    return {**target, "sensitivities": sensitivities}


def calibrated(name: str) -> bool:
    """Return whether a config reads a calibration text."""
    return "gptq" in name or "calibrated" in name


def write_rounded(source: ModelSource, kind: str, folder: Path) -> Path:
    """Write the checkpoint whose matrices mean what blocks of a GGUF file mean; return a file as large as these.

    Raises ClickException where the package `gguf` does not write such blocks.
    """
    import gguf
    from safetensors.torch import load_file, save_file

    shutil.copytree(source.folder, folder)
    kinds, size = gguf.GGMLQuantizationType, 0
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            used = kinds["Q8_0"] if "embed" in name else kinds[kind]
            size += 4 * tensor.numel()
            if tensor.dim() != 2 or tensor.shape[1] % gguf.GGML_QUANT_SIZES[used][0]:
                continue
            try:
                raw = gguf.quantize(tensor.float().numpy(), used)
            except NotImplementedError:
                raise click.ClickException(f"the package gguf does not write {kind}.") from None
            size += raw.nbytes - 4 * tensor.numel()
            tensors[name] = torch.from_numpy(gguf.dequantize(raw, used).reshape(tensor.shape))
        save_file(tensors, file, metadata={"format": "pt"})
    blocks = folder / "blocks"
    blocks.touch()
    os.truncate(blocks, size)
    return blocks


def twin_of(bundle: Path, model: str, folder: Path) -> Path:
    """Write the float32 twin of a bundle for CUDA into a folder, as a bundle that the CPU runs; return it."""
    folder.mkdir()
    twin = replace_fp8_attention(write_twin(open_subject(bundle, model), folder, no_progress))
    twin.manifest.write(folder)
    return folder
