"""Float64 that stays float64.

transformers rounds to float32 inside norms, softmax and rotary embeddings, whatever the dtype of the model. A reference
that is rounded so is no reference: `unrounded` lifts those roundings while the code itself runs as it is, so that
two float64 runs of the same formula agree to about 1e-13 instead of 1e-6.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# What says how bytes are to be read: how safetensors makes tensors of a file.
READS_BYTES = (Tensor.view, torch.frombuffer)


class _Float64ForFloat32(TorchFunctionMode):
    """Whoever asks torch for float32 is given float64."""

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
def unrounded() -> Iterator[None]:
    """Run code that asks for float32 in float64, for the length of a `with` block."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64ForFloat32():
            yield
    finally:
        torch.set_default_dtype(default)
