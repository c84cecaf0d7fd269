"""The files of a checkpoint, opened so that a tensor is read when it is asked for.

They are safetensors. A pickle (`pytorch_model.bin`) is read only where that is allowed, and by torch's unpickler for
tensors alone (`weights_only`), which calls nothing that the file names.
"""

import re
import zipfile
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgeformer.checkpoints.weight_map import read_weight_map
from edgeformer.errors import WeightsError

SAFETENSORS_INDEX = "model.safetensors.index.json"
PICKLES_INDEX = "pytorch_model.bin.index.json"
PICKLES = "pytorch_model*.bin"
"""Names of files with pickled weights, as transformers writes them."""


class TensorFile(Protocol):
    """An open file with tensors, as the package safetensors has it."""

    def get_slice(self, name: str) -> Any:
        """Return a tensor that has `get_shape`, and is read when it is indexed."""

    def get_tensor(self, name: str) -> Any:
        """Return a tensor."""


class PickledSlice:
    """A tensor of a pickle, which is copied when it is indexed, as safetensors does."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """Return the shape."""
        return list(self._tensor.shape)

    def __getitem__(self, index: Any) -> Tensor:
        return self._tensor[index].clone()


class PickledFile:
    """A pickle of tensors by name. Those of torch 1.6 and later stay mapped to their file.

    Raises WeightsError for a file that is none, or that would make anything but tensors.
    """

    def __init__(self, path: Path):
        try:
            # Files of the older format cannot be mapped.
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except FileNotFoundError:
            raise
        except Exception as error:  # of an unpickler, which a damaged file leads anywhere
            # torch's own message recommends to run whatever the file says.
            named = re.search(r"GLOBAL (\S+)", str(error))
            reason = f"it refers to {named[1]}" if named else "it cannot be read"
            raise WeightsError(
                f"{path} is no pickle of tensors alone: {reason}. Do not open it by other means unless you trust "
                "whoever made it; a model that you trust can be saved as safetensors."
            ) from None
        if not isinstance(found, dict):
            raise WeightsError(f"{path} holds no tensors by name. Save the model's state_dict as safetensors.")
        for name, tensor in found.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
                raise WeightsError(f"{path} holds more than tensors by name: {name!r}. Save it as safetensors.")
        self._tensors: dict[str, Tensor] = found

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self._tensors)

    def get_slice(self, name: str) -> PickledSlice:
        """Return a tensor that is read when it is indexed."""
        return PickledSlice(self._tensors[name].detach())

    def get_tensor(self, name: str) -> Tensor:
        """Return a copy of a tensor."""
        return self._tensors[name].detach().clone()


def open_tensors(folder: Path, allow_pickle: bool = False) -> dict[str, TensorFile]:
    """Return the open file of each stored tensor by the tensor's name.

    allow_pickle: whether pickles are read where there are no safetensors. Raises WeightsError for a folder without
    weights, and for a missing or damaged file.
    """
    index, paths = folder / SAFETENSORS_INDEX, _files(folder, SAFETENSORS_INDEX, "*.safetensors")
    pickled = pickled_files(folder) if not paths and allow_pickle else []
    if not paths and not pickled:
        others = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt*"))
        hint = "; tensors of a pytorch_model.bin are read on request: --allow-pickle" if pickled_files(folder) else ""
        hint = f" ({others[0].name} is a pickle, which is not read: save it as safetensors{hint})" if others else ""
        raise WeightsError(f"{folder} has no safetensors files{hint}.")
    if pickled:
        index, paths = folder / PICKLES_INDEX, pickled
    stored: dict[str, TensorFile] = {}
    for path in paths:
        try:
            file = PickledFile(path) if pickled else safe_open(path, framework="pt")
        except FileNotFoundError:
            raise WeightsError(f"{path} is missing; {index.name} lists it. Download the folder again.") from None
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path} is not a whole safetensors file ({error}). Download it again.") from None
        for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
            stored[name] = file
    return stored


def pickled_files(folder: Path) -> list[Path]:
    """Return the pickles of a folder that has no safetensors; none where it has some. Raises WeightsError."""
    return [] if _files(folder, SAFETENSORS_INDEX, "*.safetensors") else _files(folder, PICKLES_INDEX, PICKLES)


def _files(folder: Path, index: str, pattern: str) -> list[Path]:
    """Return the files that an index lists, else those whose names match a pattern."""
    if (folder / index).exists():
        return [folder / name for name in sorted(set(read_weight_map(folder / index).values()))]
    return sorted(folder.glob(pattern))
