"""Read the tensors of a checkpoint by the names that transformers' modules have, and by those of a patched module."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeformer.checkpoints.expert_weights import LazyWeights
from edgeformer.checkpoints.tensor_files import open_tensors
from edgeformer.errors import WeightsError
from edgeformer.transformers_backend.patch_plan import PatchPlan
from edgeformer.transformers_backend.tensors.stored_tensors import StoredTensor, stored_tensors
from edgeformer.transformers_backend.transformers_shim import ignored_tensors

SHOWN = 20
"""Problems that an error lists; the others are counted."""


class LazyTensors(LazyWeights):
    """Tensors by name, each read when it is asked for.

    readers: functions that return the tensors. expert_readers: functions that return one expert of a stacked tensor;
    of one that has none the whole is read.
    """

    def __init__(
        self, readers: Mapping[str, Callable[[], Tensor]], expert_readers: Mapping[str, Callable[[int], Tensor]]
    ):
        self._readers = readers
        self._expert_readers = expert_readers

    def __getitem__(self, name: str) -> Tensor:
        return self._readers[name]()

    def read_expert(self, name: str, expert: int) -> Tensor:
        """Return one expert of a stacked tensor."""
        reader = self._expert_readers.get(name)
        return self[name][expert] if reader is None else reader(expert)

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def checkpoint_tensors(folder: Path, model: Any, allow_pickle: bool = False) -> LazyTensors:
    """Open the weights of a folder under the names of the module's parameters; tied ones have several names.

    Opening reads headers only. Tensors are renamed, stacked and cut as transformers does when it loads them. Raises one
    WeightsError that lists all tensors that are missing, unexpected or of another shape.
    """
    files = open_tensors(folder, allow_pickle)
    stored = stored_tensors({name: _empty(files[name].get_slice(name)) for name in files}, model)
    tied: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(parameter, []).append(name)
    problems: list[str] = []
    readers: dict[str, Callable[[], Tensor]] = {}
    expert_readers: dict[str, Callable[[int], Tensor]] = {}
    for parameter, group in tied.items():
        found = next((stored[name] for name in group if name in stored), None)
        if found is None:
            problems.append(f"missing: {group[0]} {list(parameter.shape)}")
            continue
        if found.shape != parameter.shape:
            shape, wanted = list(found.shape), list(parameter.shape)
            problems.append(f"misshapen: {found.origin} is {shape}, and the config implies {wanted}")
        readers |= dict.fromkeys(group, partial(found.read, partial(_read, files)))
        if found.by_expert:
            expert_readers |= dict.fromkeys(group, partial(_read_expert, files, found))
    buffers = dict(model.named_buffers())
    problems += [
        f"another value: {stored[name].origin}, which transformers computes from the config"
        for name in sorted(buffers.keys() & model.state_dict().keys() & stored.keys())
        if not torch.equal(stored[name].read(partial(_read, files)), buffers[name])
    ]
    known = readers.keys() | buffers.keys()
    problems += [
        f"unexpected: {each.origin}"
        for ours, each in sorted(stored.items())
        if ours not in known and not any(re.search(pattern, ours) for pattern in ignored_tensors(model))
    ]
    if problems:
        more = [f"… and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise WeightsError(
            f"the tensors in {folder} do not fit transformers' {type(model).__name__}:\n  "
            + "\n  ".join(problems[:SHOWN] + more)
            + "\nCheck that config.json and the safetensors files belong together."
        )
    return LazyTensors(readers, expert_readers)


def _empty(part: Any) -> Tensor:
    """Return a tensor of the shape of a slice of a file, without values."""
    return torch.empty(part.get_shape(), device="meta")


def _read(files: Mapping[str, Any], name: str) -> Tensor:
    tensor: Tensor = files[name].get_tensor(name)
    return tensor


def _read_expert(files: Mapping[str, Any], found: StoredTensor, expert: int) -> Tensor:
    return found.read_expert(partial(_read, files), lambda name: files[name].get_slice(name)[expert], expert)


def patched_tensors(weights: Mapping[str, Tensor], plan: PatchPlan) -> LazyTensors:
    """Return the weights by the names of the patched module.

    Every norm's weight becomes its `gain`, and the stacked weights of experts become those of `StackedFeedForward`.
    """
    readers: dict[str, Callable[[], Tensor]] = {name: partial(weights.__getitem__, name) for name in weights}
    expert_readers: dict[str, Callable[[int], Tensor]] = {}
    for name, form in plan.norms.items():
        if form.gain != "none":
            read = readers.pop(f"{name}.weight")
            readers[f"{name}.gain"] = partial(_one_plus, read) if form.gain == "1 + weight" else read
    for name, experts in plan.experts.items():
        for ours, reader in experts.readers(name, weights):
            readers[ours], expert_readers[ours] = reader, reader.read_expert
            readers.pop(reader.name, None)
    return LazyTensors(readers, expert_readers)


def _one_plus(read: Callable[[], Tensor]) -> Tensor:
    # In float64: in bfloat16 the sum loses most bits of the weight.
    return read().double() + 1
