"""Run code of transformers in float64 where it asks for float32.

transformers rounds to float32 inside norms, softmax and rotary embeddings, whatever the dtype of the model. Without
these roundings two float64 runs of the same formula agree to about 1e-13 instead of 1e-6.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

READS_BYTES = (Tensor.view, torch.frombuffer)
"""Functions whose dtype says how bytes are to be read. safetensors makes tensors of a file with them."""


class _Float64ForFloat32(TorchFunctionMode):
    """Replace float32 by float64 in every call of torch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in READS_BYTES:
            return func(*args, **kwargs or {})
        kwargs = {name: _wider(value) for name, value in (kwargs or {}).items()}
        func = Tensor.double if func is Tensor.float else func
        return func(*(_wider(value) for value in args), **kwargs)


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def computing_in_float64() -> Iterator[None]:
    """Compute in float64 whatever asks for float32, for the length of a `with` block."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64ForFloat32():
            yield
    finally:
        torch.set_default_dtype(default)


def agree(actual: Any, expected: Tensor, tolerance: float) -> bool:
    """Return whether `actual` is a tensor of the same shape within `tolerance` · max |expected| of `expected`."""
    if not isinstance(actual, Tensor) or actual.shape != expected.shape:
        return False
    return bool((actual - expected).abs().max() <= tolerance * expected.abs().max())
