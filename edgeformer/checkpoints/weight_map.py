"""Find the files of a checkpoint that hold its weights, and which of them holds which tensor.

A folder may hold more than one model: what a trainer left behind (an optimizer, an adapter), the same weights in
another format (`consolidated.safetensors`), an older save. Only files of the names that transformers writes are read,
and in its order: one file, an index with its shards, and shards that lack their index.
Source: transformers 5.23, modeling_utils.py, `_get_resolved_checkpoint_files`. Nothing here needs torch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeformer.documents.json_document import is_inside, read_object
from edgeformer.errors import WeightsError, shown

SAFETENSORS, PICKLES = ("model", "safetensors"), ("pytorch_model", "bin")
"""Beginning and end of the names of files with weights, as transformers writes them."""

GGUF = "model*.gguf"
"""Pattern of the link to a GGUF file, or of links to all files of a split one, in a folder that is made of it."""


@dataclass(frozen=True)
class WeightFiles:
    """The files that a checkpoint's weights are read from.

    Attributes:
        paths: the files; none where the folder has no weights.
        pickled: whether they are pickles.
        gguf: whether they are GGUF files.
        index: the index that lists them; None for one file, and for shards without an index.
        weight_map: name of the file that holds each tensor, as the index says; empty without an index.
    """

    paths: tuple[Path, ...] = ()
    pickled: bool = False
    gguf: bool = False
    index: Path | None = None
    weight_map: Mapping[str, str] | None = None


def find_weight_files(folder: Path, allow_pickle: bool = False) -> WeightFiles:
    """Return the files with the weights of a folder, in the order in which transformers chooses them.

    Shards without an index, which transformers does not load, come last. allow_pickle: whether pickles are read where
    there are neither `model.safetensors` nor its index. Raises WeightsError for shards that are not one whole set.
    """
    kinds = (SAFETENSORS, PICKLES) if allow_pickle else (SAFETENSORS,)
    for kind in kinds:
        stem, suffix = kind
        single, index = folder / f"{stem}.{suffix}", folder / f"{stem}.{suffix}.index.json"
        if single.is_file():
            return WeightFiles((single,), kind is PICKLES)
        if index.is_file():
            weight_map = read_weight_map(index)
            paths = tuple(folder / name for name in sorted(set(weight_map.values())))
            return WeightFiles(paths, kind is PICKLES, index=index, weight_map=weight_map)
    for kind in kinds:
        paths = _shards_without_index(folder, *kind)
        if paths:
            return WeightFiles(paths, kind is PICKLES)
    return WeightFiles(tuple(sorted(folder.glob(GGUF))), gguf=True)


def _shards_without_index(folder: Path, stem: str, suffix: str) -> tuple[Path, ...]:
    """Return the shards of the one set in a folder, in order; none where there are none. Raises WeightsError."""
    pattern = re.compile(rf"{re.escape(stem)}-(\d+)-of-(\d+)\.{suffix}")
    found: dict[int, dict[int, Path]] = {}
    for path in sorted(folder.glob(f"{stem}-*-of-*.{suffix}")):
        if match := pattern.fullmatch(path.name):
            found.setdefault(int(match[2]), {})[int(match[1])] = path
    if len(found) > 1:
        sets = " and ".join(
            f"one of {total} files ({next(iter(files.values())).name})" for total, files in found.items()
        )
        raise WeightsError(
            f"{folder} holds several sets of shards, and no {stem}.{suffix}.index.json says which is the model's: "
            f"{sets}. Remove those that are left over, or download the index."
        )
    for total, files in found.items():
        missing = sorted(set(range(1, total + 1)) - files.keys())
        if missing or len(files) != total:
            name = next(iter(files.values())).name
            raise WeightsError(
                f"{folder} holds {len(files)} of the {total} shards that {name} belongs to; number "
                f"{', '.join(map(str, missing[:5]))} is missing. Download the folder again."
            )
        return tuple(files[number] for number in sorted(files))
    return ()


def read_weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor, by the tensor's name.

    Raises WeightsError for an index of another form, and for a file outside of the folder.
    """
    listed = read_object(index, WeightsError).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(file, str) for file in listed.values()):
        raise WeightsError(f"{index} must have a weight_map: an object with the file of each tensor.")
    outside = next((file for file in listed.values() if not is_inside(file)), None)
    if outside is not None:
        raise WeightsError(f"{index} names the file {shown(outside)}, which is outside its folder. Do not trust it.")
    return listed
