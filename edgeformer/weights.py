"""Checkpoint tensors by the names of our modules, read one at a time.

`CheckpointWeights` maps a folder of safetensors files into memory: reading a tensor touches its bytes alone, and they
stay file-backed. `RandomWeights` makes seeded tensors for geometries without a checkpoint. Both are read-only mappings
from parameter name to torch tensor, and so is anything else that an export can stream from.
"""

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgeformer.config import ModelConfig
from edgeformer.errors import WeightsError
from edgeformer.families import Family
from edgeformer.models import Decoder

Weights = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def parameter_shapes(config: ModelConfig) -> Shapes:
    """Shape of every parameter of the model, without allocating any."""
    with torch.device("meta"):
        return {name: tuple(parameter.shape) for name, parameter in Decoder(config).named_parameters()}


class CheckpointWeights(Mapping[str, Tensor]):
    """The safetensors of a Hugging Face folder (one file, or shards with an index), under our names.

    Opening compares names and shapes with the config, reading headers only. Every missing, unexpected and misshapen
    tensor is reported in one WeightsError.
    """

    def __init__(self, folder: Path, family: Family, config: ModelConfig):
        stored = _open_safetensors(folder)
        shapes = parameter_shapes(config)
        self._names = family.tensor_names(shapes)
        self._files = {name: stored[theirs] for name, theirs in self._names.items() if theirs in stored}

        problems = []
        for name, shape in shapes.items():
            theirs = self._names[name]
            if theirs not in stored:
                problems.append(f"missing: {theirs} {list(shape)}")
                continue
            found = tuple(stored[theirs].get_slice(theirs).get_shape())
            if found != shape:
                problems.append(f"misshapen: {theirs} is {list(found)}, and the config implies {list(shape)}")
        # A tied head may be stored a second time; the model uses the embedding whatever the copy holds.
        tied = {f"{family.tensors['head']}.weight"} if config.tied_head else set()
        unexpected = stored.keys() - set(self._names.values()) - tied
        problems += [f"unexpected: {name}" for name in sorted(unexpected) if not family.ignores(name)]
        if problems:
            shown = problems[:20] + ([f"… and {len(problems) - 20} more"] if len(problems) > 20 else [])
            raise WeightsError(
                f"the tensors in {folder} do not fit its config.json:\n  " + "\n  ".join(shown) + "\n"
                "Check that config.json and the safetensors files belong together."
            )

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name].get_tensor(self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class RandomWeights(Mapping[str, Tensor]):
    """Seeded random parameters: norms near one, the rest normal with a deviation of 1 / sqrt(inputs).

    Each tensor depends on the seed and its own name alone. Activations keep a scale of about one through any number of
    layers, so that numerical comparisons are as hard as with trained weights.
    """

    def __init__(self, config: ModelConfig, seed: int):
        self._shapes = parameter_shapes(config)
        self._seed = seed

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        # One 32-bit number from both: torch's generator drops higher bits of its seed.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed}/{name}".encode()))
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            return 0.1 * noise + (1 if "norm" in name else 0)
        return noise / math.sqrt(shape[-1])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _open_safetensors(folder: Path) -> dict[str, safe_open]:
    """Map each stored tensor's name to the open file that holds it."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        paths = [folder / name for name in names]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        pickled = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt*"))
        hint = f" ({pickled[0].name} is a pickle, which is not read: save it as safetensors)" if pickled else ""
        raise WeightsError(f"{folder} has no safetensors files{hint}.")
    stored: dict[str, safe_open] = {}
    for path in paths:
        try:
            file = safe_open(path, framework="pt")
        except FileNotFoundError:
            raise WeightsError(f"{path} is missing; {index.name} lists it. Download the folder again.") from None
        except SafetensorError as error:
            raise WeightsError(f"{path} is not a whole safetensors file ({error}). Download it again.") from None
        for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
            stored[name] = file
    return stored
