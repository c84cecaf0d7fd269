"""Read a bundle's own weights back: the tensors that its graph uses, as parameters of the module."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor

from edgeformer.blueprint import Blueprint
from edgeformer.errors import BundleError
from edgeformer.export.tensors import Recipe, split_stored
from edgeformer.manifest import Manifest


class StoredWeights(Mapping[str, Tensor]):
    """The parameters inside a bundle's external data, mapped into memory; each is read when it is asked for."""

    def __init__(self, folder: Path, manifest: Manifest, blueprint: Blueprint):
        self._shapes = blueprint.parameter_shapes()
        graphs = [ir.load(folder / name).graph for name in manifest.graphs]
        self._initializers = {name: value for graph in graphs for name, value in graph.initializers.items()}
        self._place = {
            parameter: (name, Recipe(stored.parameters, stored.transposed))
            for name, stored in manifest.weights.items()
            for parameter in stored.parameters
            if parameter in self._shapes
        }
        lost = sorted(self._shapes.keys() - self._place.keys())
        lost += [parameter for parameter, (name, _) in self._place.items() if name not in self._initializers]
        if lost:
            raise BundleError(f"the graph of {folder} lacks weights that its manifest lists ({', '.join(lost[:5])}).")

    def __getitem__(self, parameter: str) -> Tensor:
        name, recipe = self._place[parameter]
        array = self._initializers[name].const_value.numpy()  # type: ignore[union-attr]
        stored = torch.from_numpy(array.copy())
        return split_stored(stored, recipe, self._shapes)[parameter]

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)
