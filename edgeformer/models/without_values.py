"""Modules without values: names and shapes of their parameters are wanted, or values come from somewhere else."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class NothingInitialized(TorchFunctionMode):
    """Parameters stay as they are allocated: torch's layers draw no values for them."""

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the tensor as it is for functions of `torch.nn.init`; run any other."""
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == torch.nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


@contextmanager
def without_values() -> Iterator[None]:
    """Build modules on the meta device, where tensors have shapes and no memory, and compute nothing for them."""
    with torch.device("meta"), NothingInitialized():
        yield
