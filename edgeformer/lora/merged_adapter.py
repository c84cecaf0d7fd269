"""Merge a LoRA adapter into the tensors of a checkpoint while they are read."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgeformer.errors import WeightsError
from edgeformer.families import Family
from edgeformer.families._family import Place
from edgeformer.lora.adapter_tensors import ChangedSlice, LoraAdapter

Changes = Mapping[str, Callable[[Any], ChangedSlice]]
"""Functions from the slice of each tensor that an adapter changes to the changed one, by the checkpoint's names."""


@dataclass(frozen=True)
class MergedAdapter:
    """An adapter that is merged into a checkpoint.

    copies: tensors that the model has and the checkpoint lacks, by the tensor that each is a copy of: a head that was
    tied to the embedding before the adapter changed one of them. resized: tensors of the adapter with a row for each
    token of another vocabulary than the checkpoint's.
    """

    adapter: LoraAdapter
    copies: Mapping[str, str]
    resized: frozenset[str] = frozenset()

    def changes(
        self,
        family: Family,
        places: Mapping[str, Place],
        stored: Container[str],
        shared: set[str],
        file_names: Mapping[str, str],
    ) -> Changes:
        """Return what the adapter makes of each tensor that it changes.

        places: of the parameters in the checkpoint. stored: the tensors that parameters are read from. shared: those
        that several modules read. file_names: names in the files by name, where the two differ.

        Raises WeightsError for tensors that no parameter is read from, and for shared ones.
        """
        ours = {theirs: name for name, theirs in file_names.items() if name not in self.copies}
        prefix = family.optional_prefix

        def names(name: str) -> tuple[str, ...]:
            return name, ours.get(name, name), prefix + name, name.removeprefix(prefix)

        found = self.adapter.places(
            lambda name: next((each for each in names(name) if each in stored), None),
            lambda name: any(family.ignores(each) for each in names(name)),
        )
        if shared & found.keys():
            raise WeightsError(
                f"the adapter {self.adapter.folder} changes {', '.join(sorted(shared & found.keys()))}, which several "
                "modules of the model share. Merge it with PEFT (merge_and_unload), save the model, and export that "
                "folder."
            )
        transposed = {place.tensor for place in places.values() if place.transposed}
        return {
            place: partial(
                ChangedSlice,
                adapter=self.adapter,
                name=name,
                transposed=place in transposed,
                resized=name in self.resized,
            )
            for place, name in found.items()
        }
