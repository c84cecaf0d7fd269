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

from edgeformer.checkpoints.quantized.formats import check_quantization, read_config
from edgeformer.checkpoints.weight_map import find_weight_files
from edgeformer.documents.json_document import read_object
from edgeformer.errors import WeightsError


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
    weights, for a missing or damaged file, and where two files hold different tensors of one name.
    """
    files = find_weight_files(folder, allow_pickle)
    options = _quantization(folder)
    reason = "" if options is None else check_quantization(options, "config.json").pickled
    if reason and (files.pickled or not files.paths):
        raise WeightsError(f"{folder} has no safetensors files, and {reason}.")
    if not files.paths:
        raise WeightsError(f"{folder} has no safetensors files{_instead(folder)}.")
    if files.gguf:
        from edgeformer.checkpoints.gguf.tensors import open_gguf_tensors

        tensors = open_gguf_tensors(files.paths[0])
        return dict.fromkeys(tensors.keys(), tensors)
    stored: dict[str, TensorFile] = {}
    places: dict[str, Path] = {}
    for path in files.paths:
        try:
            file = PickledFile(path) if files.pickled else safe_open(path, framework="pt")
        except FileNotFoundError:
            listed = f"; {files.index.name} lists it" if files.index else ""
            raise WeightsError(f"{path} is missing{listed}. Download the folder again.") from None
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path} is not a whole safetensors file ({error}). Download it again.") from None
        for name in file.keys():  # noqa: SIM118 - safe_open is not a mapping
            if name in stored and not _same(stored[name].get_tensor(name), file.get_tensor(name)):
                said = (
                    f" {files.index.name} names {files.weight_map[name]}." if files.index and files.weight_map else ""
                )
                raise WeightsError(
                    f"{places[name]} and {path.name} both hold {name}, with different numbers, so that one of the two "
                    f"is left over from another save.{said} Download the folder again, or save the model anew."
                )
            stored[name], places[name] = file, path
    if options is None:
        return stored
    from edgeformer.checkpoints.quantized.opened import dequantized

    return dict(dequantized(stored, options, str(folder / "config.json")))


def _quantization(folder: Path) -> dict[str, Any] | None:
    """Return the `quantization_config` of a folder; None where its weights are plain."""
    return read_config(folder, str(folder))[1] if (folder / "config.json").is_file() else None


def open_pickle(path: Path) -> dict[str, TensorFile]:
    """Return the open file of each tensor in a pickle by the tensor's name. Raises WeightsError."""
    file = PickledFile(path)
    return dict.fromkeys(file.keys(), file)


def pickled_files(folder: Path) -> list[Path]:
    """Return the pickles that the weights of a folder are read from; none where it has safetensors.

    Raises WeightsError.
    """
    files = find_weight_files(folder, allow_pickle=True)
    return list(files.paths) if files.pickled else []


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _instead(folder: Path) -> str:
    """Return a hint, in brackets, about files with weights that are not read; nothing where there are none."""
    pickles = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt*"))
    if named := sorted(folder.glob("*.safetensors")):
        names = ", ".join(path.name for path in named[:3])
        return (
            f" that are named as a model's are: model.safetensors, or shards of it. It has {names}; if that is the "
            "model, rename it to model.safetensors"
        )
    if graphs := [path for place in (folder, folder / "onnx") for path in sorted(place.glob("*.onnx"))]:
        config = folder / "config.json"
        origin = read_object(config).get("_name_or_path") if config.is_file() else None
        given = f", {origin} by its config.json" if isinstance(origin, str) and origin else ""
        return (
            f" ({graphs[0].relative_to(folder)} is the graph of another exporter, whose weights have lost their names)."
            f" Give the model that it was made of{given}: a folder or hub id with model.safetensors"
        )
    if not pickles:
        return ""
    hint = "; tensors of a pytorch_model.bin are read on request: --allow-pickle" if pickled_files(folder) else ""
    return f" ({pickles[0].name} is a pickle, which is not read: save it as safetensors{hint})"
