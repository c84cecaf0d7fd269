"""NVIDIA Model Optimizer: float8 with scales, and NVFP4.

    FP8     X.weight  float8 [N, K]        X.weight_scale  [], or of outputs [N]
    MXFP8   X.weight  float8 [N, K]        X.weight_scale  uint8 [N, K / 32], exponents
    MXFP4   X.weight  uint8 [N, K / 2]     X.weight_scale  uint8 [N, K / 32], exponents
    NVFP4   X.weight  uint8 [N, K / 2]     X.weight_scale  float8 [N, K / 16]
            X.weight_scale_2  float32 [], by which scales are multiplied

Scales of inputs are left out, as those of compressed-tensors.
Source: nvidia-modelopt 0.47, torch/export/quant_utils.py.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.checkpoints.quantized.float8 import ScaledSlice
from edgeformer.checkpoints.quantized.microscaling import EXPONENTS, Float4Numbers, in_nvfp4, with_exponents
from edgeformer.checkpoints.quantized.stored import Stored, matrices, read, whole_shape


def modelopt_matrices(options: Mapping[str, Any], stored: Stored) -> dict[str, ScaledSlice]:
    """Return the matrices of a checkpoint by the names of their modules. Raises WeightsError for other shapes."""
    return {module: _matrix(stored, module) for module in matrices(stored, "weight_scale")}


def _matrix(stored: Stored, module: str) -> ScaledSlice:
    name = f"{module}.weight"
    whole_shape(stored, name, 2)
    numbers, scales = stored[name].get_slice(name), read(stored, f"{module}.weight_scale")
    packed = numbers.get_dtype() == "U8"
    if scales.dtype in EXPONENTS:
        return with_exponents(name, Float4Numbers(numbers) if packed else numbers, scales)
    if not packed:
        return ScaledSlice(name, numbers, scales)
    whole_shape(stored, f"{module}.weight_scale_2", ())
    return in_nvfp4(name, numbers, scales.float() * read(stored, f"{module}.weight_scale_2").float())
