"""Open a quantized checkpoint as one of plain weights."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from edgeformer.checkpoints.quantized.formats import check_quantization
from edgeformer.checkpoints.quantized.stored import File, Stored
from edgeformer.errors import WeightsError


class Dequantized:
    """The open file of all tensors of a checkpoint, whose quantized matrices are read as what they mean."""

    def __init__(self, stored: Stored, matrices: Mapping[str, Any]):
        self._stored, self._matrices = stored, matrices

    def get_slice(self, name: str) -> Any:
        """Return a tensor that is read when it is indexed."""
        found = self._matrices.get(name)
        return self._stored[name].get_slice(name) if found is None else found

    def get_tensor(self, name: str) -> Any:
        """Return a tensor."""
        tensor: Tensor = self.get_slice(name)[...]
        return tensor


def dequantized(stored: Stored, options: Any, described: str) -> dict[str, File]:
    """Return the files of a checkpoint in which quantized matrices have the name `X.weight` and are indexed as such.

    options: its `quantization_config`. described: the file that has it. Raises ConfigError for a format that is not
    read, and WeightsError for tensors that do not belong together, and where nothing is quantized.
    """
    form = check_quantization(options, described)
    module, function = form.reader
    reader = getattr(import_module(f"edgeformer.checkpoints.quantized.{module}"), function)
    matrices = {f"{name}.weight": each for name, each in reader(options, stored).items()}
    if not matrices:
        raise WeightsError(
            f"{described} says that weights are quantized, and the checkpoint has none that are. Take "
            "quantization_config out of config.json if its weights are plain numbers."
        )
    file = Dequantized(stored, matrices)
    beside = {name for name in stored if name.endswith(tuple(f".{last}" for last in form.tensors))}
    return dict.fromkeys([*(stored.keys() - beside - matrices.keys()), *matrices], file)
