"""Find the tensors of a checkpoint that make each tensor of a module, by the rules that transformers loads it with.

Most tensors are renamed at most. Others are made of several by transformers' own converters, above all the weights of
experts, which checkpoints store one by one and modules hold stacked. A converter is run on the tensors of one target at
a time when the target is read; where it only stacks experts, one expert is made of its own tensors alone.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeformer.errors import WeightsError
from edgeformer.transformers_backend.transformers_shim import (
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    get_model_conversion_mapping,
    rename_source_key,
)

Read = Callable[[str], Tensor]
"""Reads a tensor of the checkpoint by its name there."""


@dataclass(frozen=True)
class Conversion:
    """One run of a converter: its inputs by the converter's patterns, and the name that its first output has."""

    converter: Any
    inputs: Mapping[str, tuple[str, ...]]
    target: str
    model: Any

    @property
    def by_expert(self) -> bool:
        """Whether it stacks a list of tensors before anything else, and treats each of the stack alike."""
        first, *others = self.converter.operations
        axes = [getattr(other, name, None) for other in others for name in ("dim", "dim0", "dim1")]
        return isinstance(first, MergeModulelist) and first.dim == 0 and 0 not in axes

    def run(self, read: Read, inputs: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, Tensor]:
        """Return all outputs by name. Raises WeightsError where transformers cannot convert the tensors."""
        converter = deepcopy(self.converter)
        for pattern, names in (inputs or self.inputs).items():
            for name in names:
                converter.add_tensor(self.target, name, pattern, read(name))
        try:
            outputs = converter.convert(self.target, model=self.model, config=self.model.config)
        except Exception as error:  # code that is not ours may raise anything
            raise WeightsError(
                f"transformers makes {self.target} of several tensors when it loads them, and cannot with those of "
                f"this checkpoint: {type(error).__name__}: {error}"
            ) from error
        return {name: value[0] if isinstance(value, list) else value for name, value in outputs.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a module as a checkpoint stores it. origin: the name of the tensor there, or of one of several.

    conversion: how it is made of several, or cut from one; None for a tensor that is stored as it is.
    """

    name: str
    origin: str
    shape: torch.Size
    conversion: Conversion | None

    def read(self, read: Read) -> Tensor:
        """Return the tensor."""
        return read(self.origin) if self.conversion is None else self.conversion.run(read)[self.name]

    @property
    def by_expert(self) -> bool:
        """Whether `read_expert` reads less than the whole tensor."""
        return len(self.shape) > 1 and (self.conversion is None or self.conversion.by_expert)

    def read_expert(self, read: Read, read_row: Read, expert: int) -> Tensor:
        """Return tensor[expert]. read_row: reads the row `expert` of a stored tensor."""
        if self.conversion is None:
            return read_row(self.origin)
        inputs = {pattern: names[expert : expert + 1] for pattern, names in self.conversion.inputs.items()}
        return self.conversion.run(read, inputs)[self.name][0]


def stored_tensors(stored: Mapping[str, Tensor], model: Any) -> dict[str, StoredTensor]:
    """Return what a checkpoint stores by the names of the module's tensors; names of neither stay as they are.

    stored: the checkpoint's tensors on the meta device.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    expected, prefix = model.state_dict(), model.base_model_prefix
    found: dict[str, StoredTensor] = {}
    converted: dict[str, dict[str, tuple[str, ...]]] = {}
    for theirs in sorted(stored, key=dot_natural_key):
        ours, pattern = rename_source_key(theirs, renamings, converters, prefix, expected)
        if ours not in expected and theirs in expected:  # a rule that is meant for an older checkpoint
            ours, pattern = theirs, None
        if pattern is None:
            found[ours] = StoredTensor(ours, theirs, stored[theirs].shape, None)
        else:
            inputs = converted.setdefault(ours, {})
            inputs[pattern] = (*inputs.get(pattern, ()), theirs)
    for target, inputs in converted.items():
        converter = by_pattern[next(iter(inputs))]
        conversion = Conversion(converter, inputs, target, model)
        origin = next(iter(inputs.values()))[0]
        if target not in expected:  # it is reported as unexpected
            found[target] = StoredTensor(target, origin, stored[origin].shape, None)
            continue
        for name, output in conversion.run(stored.__getitem__).items():
            found[name] = StoredTensor(name, origin, output.shape, conversion)
    return found
