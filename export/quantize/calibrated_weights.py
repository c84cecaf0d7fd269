"""Matrices that were quantized with a calibration text, kept on disk until the bundle is written."""

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file

from edgeformer.export.quantize.rounding import QuantizedBlocks
from edgeformer.manifest.quantization import WeightFormat

FOLDER = "rounded"
"""Folder for these files in a bundle that is being written. It is deleted before the bundle is complete."""


class Calibrated:
    """The quantized blocks of parameters [N, K] by name, and their formats.

    One file per parameter in `folder`, one byte per weight: those of a large model may not fit into memory.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.formats: dict[str, WeightFormat] = {}

    def add(self, parameter: str, blocks: QuantizedBlocks, form: WeightFormat) -> None:
        """Write a parameter's blocks."""
        save_file(vars(blocks), self._file(parameter))
        self.formats[parameter] = form

    def __getitem__(self, parameter: str) -> QuantizedBlocks:
        return QuantizedBlocks(**load_file(self._file(parameter)))

    def covers(self, parameters: Sequence[str], form: WeightFormat) -> bool:
        """Whether all of these parameters were quantized to a format."""
        return all(self.formats.get(name) == form for name in parameters)

    def _file(self, parameter: str) -> Path:
        return self._folder / f"{parameter}.safetensors"
