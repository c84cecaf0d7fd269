"""compressed-tensors (llm-compressor, vLLM): packed integers, int8 and float8 with scales.

    pack-quantized    X.weight_packed  int32 [N, K · bits / 32], integers + 2^(bits − 1)    X.weight_shape  [2]
                      X.weight_scale [N, G]   X.weight_zero_point  int32 [N · bits / 32, G]   X.weight_g_idx  [K]
    int-quantized     X.weight  int8 [N, K]       X.weight_scale [N, G], [N, 1] or [1]   X.weight_zero_point  the same
    float-quantized   X.weight  float8 [N, K]     X.weight_scale, as of float8 (`float8.py`)
    mxfp8-quantized   X.weight  float8 [N, K]     X.weight_scale  uint8 [N, K / 32], exponents
    mxfp4-pack-quantized   X.weight_packed  uint8 [N, K / 2]   X.weight_scale  uint8 [N, K / 32], exponents
    nvfp4-pack-quantized   X.weight_packed  uint8 [N, K / 2]   X.weight_scale  float8 [N, K / 16]
                           X.weight_global_scale  float32 [1], by which scales are divided (`microscaling.py`)

Scales of inputs, of outputs and of caches are left out: a bundle rounds activations as its precision says, or not.
Source: compressed_tensors 0.20, compressors/.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from edgeformer.checkpoints.quantized.float8 import ScaledSlice
from edgeformer.checkpoints.quantized.grouped_integers import Grouped, GroupedSlice, unpacked
from edgeformer.checkpoints.quantized.microscaling import EXPONENTS, Float4Numbers, in_nvfp4, with_exponents
from edgeformer.checkpoints.quantized.stored import Stored, even_groups, matrices, read, whole_shape
from edgeformer.errors import WeightsError

PACKED = (4, 8)
"""Bits of packed integers that are read."""


def compressed_matrices(options: Mapping[str, Any], stored: Stored) -> dict[str, Any]:
    """Return the matrices of a checkpoint by the names of their modules. Raises WeightsError for other shapes."""
    found: dict[str, Any] = {}
    for module in matrices(stored, "weight_packed"):
        name = f"{module}.weight_packed"
        if stored[name].get_slice(name).get_dtype() == "U8":
            found[module] = _float4(stored, module)
            continue
        whole_shape(stored, f"{module}.weight_shape", (2,))
        outputs, inputs = (int(size) for size in read(stored, f"{module}.weight_shape"))
        _, words = whole_shape(stored, f"{module}.weight_packed", 2)
        bits = next((bits for bits in PACKED if words == -(-inputs * bits // 32)), None)
        if bits is None:
            raise WeightsError(
                f"{module}.weight_packed has {words} words for {inputs} inputs; read here are integers of 4 and 8 bits."
            )
        groups = whole_shape(stored, f"{module}.weight_scale", 2)[1]
        whole_shape(stored, f"{module}.weight_scale", (outputs, groups))
        if f"{module}.weight_g_idx" not in stored:
            even_groups(f"{module}.weight_packed", inputs, groups)
        found[module] = GroupedSlice((outputs, inputs), bits, partial(_packed, stored, module, bits, inputs, outputs))
    for module in matrices(stored, "weight_scale"):
        if module in found:
            continue
        name = f"{module}.weight"
        outputs, inputs = whole_shape(stored, name, 2)
        matrix, scales = stored[name].get_slice(name), read(stored, f"{module}.weight_scale")
        if matrix.get_dtype() == "I8":
            even_groups(name, inputs, scales.shape[-1] if scales.dim() > 1 else 1)
            found[module] = GroupedSlice((outputs, inputs), 8, partial(_plain, stored, module))
        elif scales.dtype in EXPONENTS:
            found[module] = with_exponents(name, matrix, scales)
        else:
            found[module] = ScaledSlice(name, matrix, scales, _block(options))
    return found


def _float4(stored: Stored, module: str) -> ScaledSlice:
    name = f"{module}.weight_packed"
    if f"{module}.weight_zero_point" in stored:
        raise WeightsError(f"{name} has zero points, which float4 has not. Give the model that it was made of.")
    whole_shape(stored, f"{module}.weight_scale", 2)
    packed, scales = stored[name].get_slice(name), read(stored, f"{module}.weight_scale")
    if scales.dtype in EXPONENTS:
        return with_exponents(name, Float4Numbers(packed), scales)
    whole_shape(stored, f"{module}.weight_global_scale", (1,))
    return in_nvfp4(name, packed, scales.float() / read(stored, f"{module}.weight_global_scale").float())


def _block(options: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the rows and columns of blocks that have a scale, None where no group of modules has such blocks."""
    groups = (options.get("config_groups") or {}).values()
    sizes = [(group.get("weights") or {}).get("block_structure") for group in groups]
    return next(((size[0], size[1]) for size in sizes if isinstance(size, list) and len(size) == 2), None)


def _packed(stored: Stored, module: str, bits: int, inputs: int, outputs: int) -> Grouped:
    zeros = order = None
    if f"{module}.weight_zero_point" in stored:
        words = read(stored, f"{module}.weight_zero_point")
        zeros = unpacked(words.T.contiguous(), bits)[:, :outputs].T.contiguous()
    if f"{module}.weight_g_idx" in stored:
        order = read(stored, f"{module}.weight_g_idx").long()
    integers = unpacked(read(stored, f"{module}.weight_packed"), bits)[:, :inputs]
    return Grouped(integers, read(stored, f"{module}.weight_scale").float(), zeros, order)


def _plain(stored: Stored, module: str) -> Grouped:
    integers = _unsigned(read(stored, f"{module}.weight"))
    zeros = None
    if f"{module}.weight_zero_point" in stored:
        zeros = _columns(_unsigned(read(stored, f"{module}.weight_zero_point")), len(integers))
    return Grouped(integers, _columns(read(stored, f"{module}.weight_scale").float(), len(integers)), zeros)


def _unsigned(integers: Tensor) -> Tensor:
    """Return int8 as uint8, raised by 128."""
    return (integers.short() + 128).byte()


def _columns(values: Tensor, outputs: int) -> Tensor:
    """Return [N, G] of values for all outputs, or one for all."""
    return values.reshape(-1, 1).expand(outputs, 1).contiguous() if values.numel() == 1 else values
