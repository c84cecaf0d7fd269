"""Matrices that a calibration text has rounded, waiting for the bundle to be written."""

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file

from edgeformer.export.quantize.rounding import Rounded
from edgeformer.quantization import WeightFormat

FOLDER = "rounded"
"""In a bundle that is being written; none keeps it."""


class Calibrated:
    """What became of parameters [N, K], by their names, and the format of each.

    They lie in files of `folder`, a byte a weight: those of a large model would not fit into memory.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.formats: dict[str, WeightFormat] = {}

    def add(self, parameter: str, rounded: Rounded, form: WeightFormat) -> None:
        """Keep a parameter's blocks."""
        save_file(vars(rounded), self._file(parameter))
        self.formats[parameter] = form

    def __getitem__(self, parameter: str) -> Rounded:
        return Rounded(**load_file(self._file(parameter)))

    def covers(self, parameters: Sequence[str], form: WeightFormat) -> bool:
        """Whether it has all parameters of a matrix in a format."""
        return all(self.formats.get(name) == form for name in parameters)

    def _file(self, parameter: str) -> Path:
        return self._folder / f"{parameter}.safetensors"
