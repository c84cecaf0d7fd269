"""Read the tensors of a checkpoint by the names that transformers' modules have, and by those of a patched module."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from edgeformer.errors import WeightsError
from edgeformer.export.adapters.transformers_backend.patch_plan import PatchPlan
from edgeformer.export.adapters.transformers_backend.transformers_shim import ignored_tensors, renamed_tensors
from edgeformer.weights import open_safetensors

SHOWN = 20
"""Problems that an error lists; the others are counted."""


class TransformersWeights(Mapping[str, Tensor]):
    """The safetensors of a folder under the names of the module's parameters; tied parameters have several names.

    Opening reads headers only, and renames tensors as transformers does when it loads them. Raises one WeightsError
    that lists all tensors that are missing, unexpected or of another shape.
    """

    def __init__(self, folder: Path, model: Any):
        stored = open_safetensors(folder)
        names = renamed_tensors(stored, model)
        problems = []
        groups = tied_names(model)
        self._files: dict[str, tuple[Any, str]] = {}
        for name, parameter in model.named_parameters():
            found = next((names[each] for each in groups[name] if each in names), None)
            if found is None:
                problems.append(f"missing: {name} {list(parameter.shape)}")
                continue
            shape = list(stored[found].get_slice(found).get_shape())
            if shape != list(parameter.shape):
                problems.append(f"misshapen: {found} is {shape}, and the config implies {list(parameter.shape)}")
            self._files |= dict.fromkeys(groups[name], (stored[found], found))
        known = self._files.keys() | {name for name, _ in model.named_buffers()}
        problems += [
            f"unexpected: {theirs}"
            for ours, theirs in sorted(names.items())
            if ours not in known and not any(re.search(pattern, ours) for pattern in ignored_tensors(model))
        ]
        if problems:
            more = [f"… and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
            raise WeightsError(
                f"the tensors in {folder} do not fit transformers' {type(model).__name__}:\n  "
                + "\n  ".join(problems[:SHOWN] + more)
                + "\nCheck that config.json and the safetensors files belong together."
            )

    def __getitem__(self, name: str) -> Tensor:
        file, theirs = self._files[name]
        return file.get_tensor(theirs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class PatchedWeights(Mapping[str, Tensor]):
    """The weights of a patched module: those of transformers, with the gains of `PatchedRMSNorm` for norm weights."""

    def __init__(self, weights: Mapping[str, Tensor], plan: PatchPlan):
        self._weights = weights
        self._gains = {
            f"{name}.gain": (f"{name}.weight", form.gain) for name, form in plan.norms.items() if form.gain != "none"
        }

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._gains:
            return self._weights[name]
        weight, gain = self._gains[name]
        stored = self._weights[weight]
        # 1 + w is computed in float64: in bfloat16 it loses most bits of w.
        return stored.double() + 1 if gain == "1 + weight" else stored

    def __iter__(self) -> Iterator[str]:
        replaced = {weight for weight, _ in self._gains.values()}
        yield from (name for name in self._weights if name not in replaced)
        yield from self._gains

    def __len__(self) -> int:
        return len(self._weights)


def tied_names(model: nn.Module) -> dict[str, list[str]]:
    """Return all names of each parameter, by each of its names."""
    groups: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(parameter, []).append(name)
    return {name: group for group in groups.values() for name in group}
