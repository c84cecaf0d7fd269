"""The tensors of a GGUF file by the names of transformers, as transformers has them: one more kind of open file.

Undone here is what llama.cpp's converters do: pairs of rows of rotary queries and keys, norms that are stored as
1 + weight, experts that are stacked. The package `gguf` dequantizes; where its blocks are those of our own formats,
their integers are there, too (`GgufSlice.blocks`).
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.checkpoints.gguf.architectures import ROTARY_TABLES, Architecture, find_architecture
from edgeformer.checkpoints.gguf.gguf_file import GgufFile, StoredTensor, open_gguf
from edgeformer.checkpoints.gguf.metadata import Metadata
from edgeformer.errors import WeightsError, require

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types whose numbers are read as they are."""

ROWS = 64
"""Rows of a matrix that the package dequantizes as one, at most."""

INTEGERS = {"Q4_0": (4, 32), "Q8_0": (8, 32)}
"""Types whose blocks are those of a symmetric format of ours: bits, and weights that share a scale."""


@dataclass(frozen=True)
class _Recipe:
    """How a tensor of transformers is made of tensors of the file.

    tensors: that is made of one, or of several by `alternating` rows or rows one after another. expert: the one that is
    taken of a stack. heads: of rotary queries or keys whose rows are pairs. offset: what is subtracted.
    """

    tensors: tuple[StoredTensor, ...]
    alternating: bool = False
    expert: int | None = None
    heads: int | None = None
    offset: float = 0.0


class GgufSlice:
    """A tensor that is read when it is indexed along its first axis, like a slice of a safetensors file."""

    def __init__(self, recipe: _Recipe):
        self._recipe = recipe

    def get_shape(self) -> list[int]:
        """Return the shape."""
        first, *others = self._recipe.tensors
        shape = list(first.shape if self._recipe.expert is None else first.shape[1:])
        if others:
            shape[1] += sum(each.shape[1] for each in others)
        return shape

    def __getitem__(self, index: Any) -> Tensor:
        """Return the numbers: those of quantized types in float32."""
        found = self._arranged([_dequantized(each, self._raw(each, index)) for each in self._recipe.tensors])
        return found - self._recipe.offset if self._recipe.offset else found

    def blocks(
        self, bits: int, block: int | None, symmetric: bool, index: Any = ...
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the integers uint8 [..., N, B, L], scales float32 and zero points [..., N, B], as they are stored.

        Zero points are all 2^(bits − 1). None where the file has no such blocks of `bits` and `block`.
        """
        kinds = {each.type.name for each in self._recipe.tensors}
        if len(kinds) > 1 or INTEGERS.get(kinds.pop()) != (bits, block) or self._recipe.offset:
            return None
        pairs = [_integers(each, self._raw(each, index), bits) for each in self._recipe.tensors]
        integers, scales = (self._arranged([pair[part] for pair in pairs]) for part in (0, 1))
        return integers, scales, torch.full(scales.shape, 1 << (bits - 1), dtype=torch.uint8)

    def _raw(self, tensor: StoredTensor, index: Any) -> NDArray[Any]:
        """Return the bytes of a part of a tensor, [..., bytes of a row]."""
        rows = np.frombuffer(tensor.data, np.uint8, tensor.bytes, tensor.start).reshape(*tensor.shape[:-1], -1)
        if len(tensor.shape) == 1:  # a vector is cut as numbers are
            rows = rows.reshape(-1, tensor.type.bytes)
        if self._recipe.expert is not None:
            rows = rows[self._recipe.expert]
        if isinstance(index, Tensor):
            index = index.numpy()
        if self._recipe.heads is not None:
            index = _halves(len(rows), self._recipe.heads)[index]
        return np.array(rows[index])

    def _arranged(self, parts: list[Tensor]) -> Tensor:
        """Join the rows of several tensors [X, N, ...]."""
        if len(parts) == 1:
            return parts[0]
        return torch.stack(parts, 2).flatten(1, 2) if self._recipe.alternating else torch.cat(parts, 1)


def _halves(rows: int, heads: int) -> NDArray[Any]:
    """Return the order in which rows that are stored as pairs, 0, D/2, 1, D/2 + 1, …, are the halves of each head."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _dequantized(tensor: StoredTensor, raw: NDArray[Any]) -> Tensor:
    """Return the numbers that bytes mean."""
    dtype = FLOATS.get(tensor.type.name)
    if dtype is None:
        quants, constants = require("gguf.quants", "gguf"), require("gguf.constants", "gguf")
        kind = constants.GGMLQuantizationType[tensor.type.name]
        # The package computes 16 rows at a time, of few blocks each; blocks do not depend on their rows.
        joined = math.gcd(math.prod(raw.shape[:-1]), ROWS)
        with np.errstate(all="ignore"):  # what is not finite is reported with the parameter's name
            found = quants.dequantize(raw.reshape(-1, joined * raw.shape[-1]), kind)
        numbers = torch.from_numpy(found).view(*raw.shape[:-1], -1)
    else:
        numbers = torch.from_numpy(raw).view(dtype)
    return numbers.flatten() if len(tensor.shape) == 1 else numbers


def _integers(tensor: StoredTensor, raw: NDArray[Any], bits: int) -> tuple[Tensor, Tensor]:
    """Return the integers and scales of blocks of Q4_0 or Q8_0.

    A block is a float16 scale and its integers: of Q4_0 those from 0 to 15 of the first half of the block in low half
    bytes, and those of the second half in the high ones; of Q8_0 signed ones.
    """
    blocks = torch.from_numpy(raw).unflatten(-1, (-1, tensor.type.bytes))
    scales = blocks[..., :2].contiguous().view(torch.float16)[..., 0].float()
    stored = blocks[..., 2:]
    if bits == 8:
        return stored ^ 0x80, scales
    return torch.cat([stored & 15, stored >> 4], -1), scales


class GgufTensors:
    """The open file of all tensors of a model, by the names of transformers."""

    def __init__(self, file: GgufFile):
        self._recipes = dict(_recipes(file))

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self._recipes)

    def get_slice(self, name: str) -> GgufSlice:
        """Return a tensor that is read when it is indexed."""
        return GgufSlice(self._recipes[name])

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor."""
        return self.get_slice(name)[...]


def open_gguf_tensors(path: Path) -> GgufTensors:
    """Open the tensors of a file. Raises WeightsError for a damaged one."""
    return GgufTensors(open_gguf(path))


def _recipes(file: GgufFile) -> Iterator[tuple[str, _Recipe]]:
    """Yield the tensors of transformers by name; what no table knows keeps its name, and is reported as unexpected."""
    metadata = Metadata(file)
    architecture = find_architecture(metadata)
    heads = _heads(metadata) if architecture.permuted else {}
    sources = {name: theirs for theirs, (_, names) in architecture.joined.items() for name in names}
    for name, tensor in file.tensors.items():
        pattern, number = _pattern(name)
        if name in ROTARY_TABLES:
            continue
        if pattern in sources:
            whole = sources[pattern]
            order, names = architecture.joined[whole]
            if pattern == names[0]:
                yield whole.replace("*", number), _joined(file, names, number, order == "alternating")
            continue
        theirs = _theirs(architecture, pattern)
        if theirs is None:
            yield name, _Recipe((tensor,))
        elif "#" in theirs:
            for expert in range(tensor.shape[0] if len(tensor.shape) == 3 else 0):
                found = theirs.replace("*", number).replace("#", str(expert))
                yield found, _Recipe((tensor,), expert=expert)
        else:
            part = pattern.rpartition(".")[0]
            offset = float(architecture.norm_offset and part.endswith("norm"))
            rows = heads.get(part)
            if rows is not None and (rows <= 0 or tensor.shape[0] % (2 * rows)):
                raise WeightsError(f"{name} of {file.name} has {tensor.shape[0]} rows, and the model has {rows} heads.")
            yield theirs.replace("*", number), _Recipe((tensor,), heads=rows, offset=offset)


def _heads(metadata: Metadata) -> Mapping[str, int]:
    """Return the heads of the projections whose rows are pairs."""
    heads = metadata.take("attention.head_count", int)
    return {"blk.*.attn_q": heads, "blk.*.attn_k": metadata.take("attention.head_count_kv", int, heads)}


def _joined(file: GgufFile, names: tuple[str, ...], number: str, alternating: bool) -> _Recipe:
    """Return a tensor that several of a layer make. Raises WeightsError where one is missing or of another shape."""
    found = [file.tensors.get(each.replace("*", number)) for each in names]
    first = found[0]
    assert first is not None
    if any(each is None or each.shape != first.shape for each in found) or len(first.shape) < 2:
        listed = " and ".join(each.replace("*", number) for each in names)
        raise WeightsError(f"{file.name} must have {listed}, of one shape. Download it again.")
    return _Recipe(tuple(each for each in found if each is not None), alternating=alternating)


def _theirs(architecture: Architecture, pattern: str) -> str | None:
    """Return transformers' name of a tensor, by the table of whole names or that of modules."""
    if pattern in architecture.tensors:
        return architecture.tensors[pattern]
    module, _, last = pattern.rpartition(".")
    theirs = architecture.tensors.get(module)
    return None if theirs is None or last not in ("weight", "bias") else f"{theirs}.{last}"


def _pattern(name: str) -> tuple[str, str]:
    """Return a name with `*` for the number of its layer, and that number."""
    match = re.match(r"blk\.(\d+)\.", name)
    return (name, "") if match is None else (f"blk.*.{name[match.end() :]}", match[1])
