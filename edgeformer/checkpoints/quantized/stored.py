"""The tensors of a quantized checkpoint: their names, shapes and numbers."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from edgeformer.errors import WeightsError


class File(Protocol):
    """A file of tensors; see `edgeformer.checkpoints.tensor_files.TensorFile`."""

    def get_slice(self, name: str) -> Any:
        """Return a tensor that has `get_shape`, and is read when it is indexed."""

    def get_tensor(self, name: str) -> Any:
        """Return a tensor."""


Stored = Mapping[str, File]
"""The open file of each tensor by its name."""


def matrices(stored: Stored, last: str) -> list[str]:
    """Return the modules that have a tensor with this last part of a name, sorted."""
    return sorted(name.removesuffix(f".{last}") for name in stored if name.endswith(f".{last}"))


def whole_shape(stored: Stored, name: str, expected: tuple[int, ...] | int) -> tuple[int, ...]:
    """Return the shape of a tensor. expected: this shape, or the number of axes. Raises WeightsError for another."""
    if name not in stored:
        raise WeightsError(f"the checkpoint lacks {name}, without which the integers mean nothing. Download it again.")
    shape = tuple(stored[name].get_slice(name).get_shape())
    if (len(shape) if isinstance(expected, int) else shape) != expected:
        wanted = f"{expected} axes" if isinstance(expected, int) else str(list(expected))
        raise WeightsError(
            f"{name} is {list(shape)}, and {wanted} follows from config.json's quantization_config. Check that both "
            "belong together."
        )
    return shape


def even_groups(name: str, columns: int, groups: int) -> None:
    """Raise WeightsError unless columns fall into groups of one size. name: the tensor whose columns these are."""
    if groups < 1 or columns % groups:
        raise WeightsError(
            f"{name} has {columns} inputs in {groups} groups, which are not of one size. Check that the checkpoint and "
            "its config.json belong together."
        )


def read(stored: Stored, name: str) -> Tensor:
    """Return a tensor."""
    tensor: Tensor = stored[name].get_slice(name)[...]
    return tensor
