"""Tensors of a checkpoint by the names that transformers' modules have, and by those of a rerouted one."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from edgeformer.errors import WeightsError
from edgeformer.export.adapters.transformers_backend.patch_plan import Plan
from edgeformer.weights import open_safetensors

SHOWN = 20


class TransformersWeights(Mapping[str, Tensor]):
    """The safetensors of a folder under the names of the module's parameters; tied parameters have several names.

    Opening compares names and shapes, reading headers only, and renames as transformers does when it loads. Every
    missing, unexpected and misshapen tensor is reported in one WeightsError.
    """

    def __init__(self, folder: Path, model: Any):
        stored = open_safetensors(folder)
        names = _renamed(stored, model)
        problems = []
        groups = tied_names(model)
        self._files: dict[str, tuple[Any, str]] = {}
        parameters = dict(model.named_parameters())
        for name, parameter in parameters.items():
            found = next((names[each] for each in groups[name] if each in names), None)
            if found is None:
                problems.append(f"missing: {name} {list(parameter.shape)}")
                continue
            shape = list(stored[found].get_slice(found).get_shape())
            if shape != list(parameter.shape):
                problems.append(f"misshapen: {found} is {shape}, and the config implies {list(parameter.shape)}")
            self._files |= dict.fromkeys(groups[name], (stored[found], found))
        ignored = [*(model._keys_to_ignore_on_load_unexpected or []), r"(^|\.)(position_ids|rotary_emb\.inv_freq)$"]
        known = self._files.keys() | {name for name, _ in model.named_buffers()}
        problems += [
            f"unexpected: {theirs}"
            for ours, theirs in sorted(names.items())
            if ours not in known and not any(re.search(pattern, ours) for pattern in ignored)
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
    """Weights of a rerouted module: the same, and for every norm its gain."""

    def __init__(self, weights: Mapping[str, Tensor], plan: Plan):
        self._weights = weights
        self._gains = {
            f"{name}.gain": (f"{name}.weight", form.gain) for name, form in plan.norms.items() if form.gain != "none"
        }

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._gains:
            return self._weights[name]
        weight, gain = self._gains[name]
        stored = self._weights[weight]
        # In float64, since 1 + w in bfloat16 forgets most of w.
        return stored.double() + 1 if gain == "1 + weight" else stored

    def __iter__(self) -> Iterator[str]:
        replaced = {weight for weight, _ in self._gains.values()}
        yield from (name for name in self._weights if name not in replaced)
        yield from self._gains

    def __len__(self) -> int:
        return len(self._weights)


def tied_names(model: nn.Module) -> dict[str, list[str]]:
    """All names of every parameter, by each of its names."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return {name: group for group in groups.values() for name in group}


def _renamed(stored: Mapping[str, Any], model: Any) -> dict[str, str]:
    """Names in the checkpoint by the module's. Raises WeightsError where transformers does more than rename."""
    transforms = get_model_conversion_mapping(model)
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
    expected = model.state_dict()
    names = {}
    for theirs in stored:
        ours, converter = rename_source_key(theirs, renamings, converters, model.base_model_prefix, expected)
        if converter is not None:
            raise WeightsError(
                f"the checkpoint stores {theirs} where {type(model).__name__} of transformers has {ours} and others: "
                "transformers rearranges tensors when it loads, and --backend transformers reads them as they are "
                "stored."
            )
        names[ours] = theirs
    return names
