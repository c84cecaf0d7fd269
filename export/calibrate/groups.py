"""Groups of matrices that have one format, and the file that keeps what an export measured of them.

The file is JSON: `of`, a fingerprint of what divergences depend on; `nats`, divergences by the names of a group;
`errors_of`, a fingerprint of what errors depend on besides; `groups`, the errors of all groups. Divergences take most
of the time and are written one by one; errors come from one run, and are written together.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeformer.errors import ExportError
from edgeformer.manifest.quantization import Bits, WeightFormat

INTEGERS: tuple[tuple[Bits, bool], ...] = ((3, True), (4, True), (4, False), (5, True), (6, True), (8, True))
"""Bits, and whether there are no zero points, which gain nothing in 8 bits."""
FORMATS = tuple(
    WeightFormat(bits=bits, block=block, symmetric=symmetric, rounding="gptq", scales="fp16")
    for bits, symmetric in INTEGERS
    for block in (128, 64, 32)
)
"""Formats that a matrix may have, where their blocks divide its inputs."""


@dataclass
class Group:
    """Matrices that have one format, and what is known of them.

    sizes: outputs and inputs of each. errors: by format, the squared error of the products; crude: that of the crude
    rounding whose divergence is measured. divergence: in nats; None before it is measured.
    """

    names: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    errors: dict[WeightFormat, float] = field(default_factory=dict)
    crude: float = 0.0
    divergence: float | None = None

    @property
    def key(self) -> str:
        """The name of the group in a file."""
        return " ".join(self.names)

    def loss(self, form: WeightFormat) -> float:
        """Return the expected divergence, in nats, when the group has a format."""
        assert self.divergence is not None
        return self.divergence * self.errors[form] / self.crude if self.crude else 0.0

    def fitted(self, name: str, form: WeightFormat) -> WeightFormat:
        """Return a format with blocks that divide the inputs of one of the matrices."""
        fitted = form.fitted(self.sizes[self.names.index(name)][1])
        assert fitted is not None, "others are no candidates"
        return fitted

    def bytes_of(self, form: WeightFormat, stored: Callable[[int], int]) -> int:
        """Return the bytes that the group takes in a format. stored: returns those that a tensor takes in a file."""
        total = 0
        for name, (outputs, inputs) in zip(self.names, self.sizes, strict=True):
            total += sum(map(stored, self.fitted(name, form).part_bytes(outputs, inputs)))
        return total

    def errors_to_json(self) -> dict[str, Any]:
        """Return all but the divergence; errors are in the order of FORMATS."""
        errors = [self.errors[form] for form in FORMATS]
        return {"names": self.names, "sizes": self.sizes, "crude": self.crude, "errors": errors}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Group":
        """Return a group without a divergence. Other data raise KeyError, TypeError or ValueError."""
        names, sizes = [str(name) for name in data["names"]], [(int(rows), int(width)) for rows, width in data["sizes"]]
        errors = dict(zip(FORMATS, map(float, data["errors"]), strict=True))
        return cls(names, sizes, errors, float(data["crude"]))


class SensitivityFile:
    """Measurements of a model, in a file that is written after each of them; without a file, in memory alone.

    divergences: by the key of a group. groups: with their errors, or none before these are measured.

    of, errors_of: fingerprints of what divergences and errors depend on. Raises ExportError for a file with another
    `of`, and for a file of something else. Errors of another text or of other matrices are left out: measuring them
    again takes one run.
    """

    def __init__(self, file: Path | None, of: str, errors_of: str):
        self._file, self._of, self._errors_of = file, of, errors_of
        self.divergences: dict[str, float] = {}
        self.groups: list[Group] = []
        if file is not None and file.exists():
            self._read(file)

    def _read(self, file: Path) -> None:
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            measured_on, divergences = found["of"], {str(key): float(value) for key, value in found["nats"].items()}
            groups = found["groups"] if found.get("errors_of") == self._errors_of else []
            read = [Group.from_json(each) for each in groups]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise ExportError(
                f"{file} has no sensitivities that an export measured. Name another file, or delete it."
            ) from None
        if measured_on != self._of:
            raise ExportError(
                f"the sensitivities in {file} are those of another model, another calibration text or another version "
                "of edgeformer. Name another file, or delete it."
            )
        self.divergences, self.groups = divergences, read

    def add_groups(self, groups: Sequence[Group]) -> None:
        """Keep the errors of all groups."""
        self.groups = list(groups)
        self._write()

    def add_divergence(self, key: str, divergence: float) -> None:
        """Keep a divergence."""
        self.divergences[key] = divergence
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        content: dict[str, Any] = {"of": self._of, "nats": self.divergences, "errors_of": self._errors_of}
        content["groups"] = [group.errors_to_json() for group in self.groups]
        partial_file = self._file.with_name(f"{self._file.name}.partial")
        partial_file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(partial_file, self._file)
