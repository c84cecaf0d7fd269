"""Read the tensors of a checkpoint by the names that transformers' modules have, and by those of a patched module."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from edgeformer.errors import WeightsError
from edgeformer.transformers_backend.patch_plan import PatchPlan
from edgeformer.transformers_backend.transformers_shim import ignored_tensors, renamed_tensors
from edgeformer.weights import open_safetensors

SHOWN = 20
"""Problems that an error lists; the others are counted."""


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each read when it is asked for. readers: functions that return the tensors."""

    def __init__(self, readers: Mapping[str, Callable[[], Tensor]]):
        self._readers = readers

    def __getitem__(self, name: str) -> Tensor:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def checkpoint_tensors(folder: Path, model: Any) -> LazyTensors:
    """Open the safetensors of a folder under the names of the module's parameters; tied ones have several names.

    Opening reads headers only, and renames tensors as transformers does when it loads them. Raises one WeightsError
    that lists all tensors that are missing, unexpected or of another shape.
    """
    stored = open_safetensors(folder)
    names = renamed_tensors(stored, model)
    tied: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(parameter, []).append(name)
    problems: list[str] = []
    readers: dict[str, Callable[[], Tensor]] = {}
    for parameter, group in tied.items():
        found = next((names[name] for name in group if name in names), None)
        if found is None:
            problems.append(f"missing: {group[0]} {list(parameter.shape)}")
            continue
        shape = list(stored[found].get_slice(found).get_shape())
        if shape != list(parameter.shape):
            problems.append(f"misshapen: {found} is {shape}, and the config implies {list(parameter.shape)}")
        readers |= dict.fromkeys(group, partial(stored[found].get_tensor, found))
    known = readers.keys() | {name for name, _ in model.named_buffers()}
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
    return LazyTensors(readers)


def patched_tensors(weights: Mapping[str, Tensor], plan: PatchPlan) -> LazyTensors:
    """Return the weights by the names of the patched module: every norm's weight becomes its `gain`."""
    readers: dict[str, Callable[[], Tensor]] = {name: partial(weights.__getitem__, name) for name in weights}
    for name, form in plan.norms.items():
        if form.gain != "none":
            read = readers.pop(f"{name}.weight")
            readers[f"{name}.gain"] = partial(_one_plus, read) if form.gain == "1 + weight" else read
    return LazyTensors(readers)


def _one_plus(read: Callable[[], Tensor]) -> Tensor:
    # In float64: in bfloat16 the sum loses most bits of the weight.
    return read().double() + 1
