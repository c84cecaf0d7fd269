"""How large an export is to be: bytes of weights in all, or bits per weight."""

import re
from dataclasses import dataclass

from edgeformer.errors import ExportError

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
"""Bytes of a unit, in capitals."""


@dataclass(frozen=True)
class TargetSize:
    """The largest size of the weights; one of the two is given.

    Attributes:
        bytes: of the file of weights.
        bits: per weight of a matrix that is quantized, its scales included.
    """

    bytes: int | None = None
    bits: float | None = None

    def __str__(self) -> str:
        return f"{self.bits:g} bits per weight" if self.bytes is None else f"{self.bytes / 1e6:,g} MB"


def target_size(size: str | int | None, bits: float | None) -> TargetSize | None:
    """Return the target size of the two options of an export, None where neither is given.

    size: bytes, or a number and its unit. Raises ExportError for both, and for what is not a size.
    """
    if size is not None and bits is not None:
        raise ExportError("target_size and bits say the same in two ways. Leave one of them out.")
    if size is None:
        return None if bits is None else TargetSize(bits=bits)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", size) if isinstance(size, str) else None
    if isinstance(size, str) and (found is None or found[2].upper() not in UNITS):
        raise ExportError(f"target_size is {size!r}; it must be a number and one of {', '.join(UNITS)}, such as 75MB.")
    count = size if found is None else int(float(found[1]) * UNITS[found[2].upper()])
    assert isinstance(count, int)
    if count <= 0:
        raise ExportError(f"target_size is {size!r}; it must be above 0.")
    return TargetSize(bytes=count)
