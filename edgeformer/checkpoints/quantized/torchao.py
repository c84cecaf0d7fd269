"""torchao: tensors of its classes, each stored as plain ones beside a description in the metadata of their file.

    X._weight_qdata, X._weight_scale, …     metadata["X.weight"]: {"_type": "Int8Tensor", "_data": {"block_size": …}}

    Int8Tensor                  qdata  int8 [N, K]      scale, zero_point  int8 [N / R, K / L], blocks of R × L
    IntxUnpackedToInt8Tensor    the same, integers of `target_dtype`
    Int4Tensor                  qdata  int8 [N, K / 2], signed, the first in the low half     scale, zero_point [G, N]
    Int4TilePackedTo4dTensor    qdata  int32 [N / 8, K / 128, 32, 4]     scale_and_zero [G, N, 2], N and K filled up
    Float8Tensor                qdata  float8 [N, K]    scale  [N / R, K / L]
    MXTensor, NVFP4Tensor       qdata  float8 [N, K] or uint8 [N, K / 2]     scale (`microscaling.py`), in tiles of
                                128 rows and 4 columns where `is_swizzled_scales`     per_tensor_scale  []

Zero points of the two Int4 classes are floats that are added: weight = integer · scale + zero. Scales of activations
are left out. Source: torchao 0.18, prototype/safetensors, quantization/quantize_/workflows and prototype/mx_formats.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeformer.checkpoints.quantized.float8 import ScaledSlice
from edgeformer.checkpoints.quantized.grouped_integers import Grouped, GroupedSlice, unpacked
from edgeformer.checkpoints.quantized.microscaling import Float4Numbers, in_nvfp4, with_exponents
from edgeformer.checkpoints.quantized.stored import Stored, even_groups, read, whole_shape
from edgeformer.errors import WeightsError

PART = "._weight_"
"""Between the name of a module and that of a part of its weight."""
TILE_ROWS, TILE_COLUMNS = 128, 4
"""Rows and columns of scales in a tile; 32 bytes of a tile hold rows that are 32 apart."""


@dataclass(frozen=True)
class Flattened:
    """A weight in parts. data: the attributes of its class."""

    stored: Stored
    module: str
    data: Mapping[str, Any]

    def name(self, part: str) -> str:
        """Return the name of the tensor that holds a part."""
        return f"{self.module}{PART}{part}"

    def read(self, part: str) -> Tensor:
        """Return a part."""
        return read(self.stored, self.name(part))

    def has(self, part: str) -> bool:
        """Return whether a part is stored."""
        return self.name(part) in self.stored

    def opened(self, part: str) -> Any:
        """Return a part that is read when it is indexed."""
        return self.stored[self.name(part)].get_slice(self.name(part))

    def shape(self, part: str, expected: tuple[int, ...] | int = 2) -> tuple[int, ...]:
        """Return the shape of a part; see `whole_shape`."""
        return whole_shape(self.stored, self.name(part), expected)

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the rows and columns of a block that has a scale. Raises WeightsError where they do not fit."""
        size = self.data.get("block_size") or [rows, columns]
        if len(size) != 2 or not all(type(each) is int and each > 0 for each in size):
            raise WeightsError(f"{self.module}.weight has block_size {size}; known are two numbers of weights.")
        even_groups(self.name("qdata"), rows, -(-rows // size[0]))
        even_groups(self.name("qdata"), columns, -(-columns // size[1]))
        return size[0], size[1]


def torchao_matrices(options: Mapping[str, Any], stored: Stored) -> dict[str, Any]:
    """Return the matrices of a checkpoint by the names of their modules.

    Raises WeightsError for other shapes, for a class that is not read, and for parts that no description belongs to.
    """
    metadata: dict[str, str] = {}
    for file in set(stored.values()):
        metadata |= getattr(file, "metadata", dict)() or {}
    found = {}
    for module in sorted({name.partition(PART)[0] for name in stored if PART in name}):
        kind, data = _description(metadata, f"{module}.weight")
        if kind not in CLASSES:
            raise WeightsError(
                f"{module}.weight is a {kind} of torchao, and those that are read are {', '.join(CLASSES)}. Give the "
                "model that it was made of."
            )
        if f"{module}{PART}act_pre_scale" in stored:
            raise WeightsError(f"{module} scales its inputs (act_pre_scale). Give the model that it was made of.")
        found[module] = CLASSES[kind](Flattened(stored, module, data))
    return found


def _description(metadata: Mapping[str, str], name: str) -> tuple[str, dict[str, Any]]:
    """Return the class of a weight, and its attributes. Raises WeightsError where the file does not say them."""
    try:
        found = json.loads(metadata[name])
        return str(found["_type"]), dict(found["_data"])
    except (KeyError, TypeError, ValueError):
        raise WeightsError(
            f"the metadata of the safetensors files does not say which class of torchao {name} has. Download the "
            "checkpoint again, or save it with transformers 5 and torchao 0.15 or later."
        ) from None


def _integers(flat: Flattened) -> GroupedSlice:
    rows, columns = flat.shape("qdata")
    height, width = flat.blocks(rows, columns)
    for part in ("scale", "zero_point"):
        if part == "scale" or flat.has(part):
            flat.shape(part, (rows // height, columns // width))
    kind = (flat.data.get("target_dtype") or {}).get("_data", "int8")
    bits = int(kind.removeprefix("int"))

    def read_all() -> Grouped:
        middle = 1 << (bits - 1)
        integers, scales = (flat.read("qdata").short() + middle).byte(), flat.read("scale").float()
        zeros = None
        if flat.has("zero_point"):
            points = flat.read("zero_point")
            if points.is_floating_point():
                raise WeightsError(f"{flat.name('zero_point')} is not of integers. Give the model that it was made of.")
            zeros = (points.short() + middle).byte().repeat_interleave(height, 0)
        return Grouped(integers, scales.repeat_interleave(height, 0), zeros)

    return GroupedSlice((rows, columns), bits, read_all)


def _int4(flat: Flattened) -> GroupedSlice:
    rows, half = flat.shape("qdata")
    groups, _ = flat.shape("scale")
    even_groups(flat.name("qdata"), 2 * half, groups)
    for part in ("scale", "zero_point"):
        flat.shape(part, (groups, rows))

    def read_all() -> Grouped:
        packed = flat.read("qdata").view(torch.uint8)
        # Fields are signed: their highest bit flipped, they count from -8.
        integers = torch.stack((packed & 15, packed >> 4), -1).flatten(-2) ^ 8
        scales, offsets = (flat.read(part).float().T.contiguous() for part in ("scale", "zero_point"))
        return Grouped(integers, scales, offsets=offsets)

    return GroupedSlice((rows, 2 * half), 4, read_all)


def _tiles(flat: Flattened) -> GroupedSlice:
    rows, columns = flat.data["shape"]
    row_tiles, column_tiles, _, pairs = flat.shape("qdata", 4)
    flat.shape("qdata", (-(-rows // 8), column_tiles, 32, pairs))
    groups = flat.shape("scale_and_zero", 3)[0]
    stored_columns = column_tiles * pairs * 32
    even_groups(flat.name("qdata"), stored_columns, groups)
    flat.shape("scale_and_zero", (groups, 8 * row_tiles, 2))
    width = stored_columns // groups
    even_groups(f"{flat.module}.weight", columns, -(-columns // width))

    def read_all() -> Grouped:
        scales, offsets = flat.read("scale_and_zero").float().permute(2, 1, 0)[:, :rows, : columns // width].unbind()
        integers = untiled(flat.read("qdata"))[:rows, :columns].contiguous()
        return Grouped(integers, scales.contiguous(), offsets=offsets.contiguous())

    return GroupedSlice((rows, columns), 4, read_all)


def untiled(words: Tensor) -> Tensor:
    """Return uint8 [8 n, 32 p k] of the tiles of tensor cores, int32 [n, k, 32, p].

    Lane t of 32 holds row t / 4 of a tile; each of its words is 8 fields of two tiles of 16 columns. Field f, bits
    4 f to 4 f + 3, is column 16 · (f & 2) / 2 + 8 · (f & 1) + 2 · (t & 3) + (f >> 2) of the 32. Source: PyTorch's
    aten/src/ATen/native/cuda/int4mm.cu, matrix_to_m16n8k16_Bint4_layout.
    """
    row_tiles, column_tiles, _, pairs = words.shape
    fields = unpacked(words, 4).view(row_tiles, column_tiles, 8, 4, pairs, 2, 2, 2)
    # row tile, column tile, row, lane of four, pair, odd column, tile of 16, half of it → … by columns
    ordered = fields.permute(0, 2, 1, 4, 6, 7, 3, 5)
    return ordered.reshape(8 * row_tiles, column_tiles * pairs * 32)


def _float8(flat: Flattened) -> ScaledSlice:
    rows, columns = flat.shape("qdata")
    return ScaledSlice(flat.name("qdata"), flat.opened("qdata"), flat.read("scale"), flat.blocks(rows, columns))


def _mx(flat: Flattened) -> ScaledSlice:
    flat.shape("qdata")
    opened = flat.opened("qdata")
    numbers = Float4Numbers(opened) if opened.get_dtype() == "U8" else opened
    rows, columns = numbers.get_shape()
    return with_exponents(flat.name("qdata"), numbers, _scales(flat, rows, columns // flat.data["block_size"]))


def _nvfp4(flat: Flattened) -> ScaledSlice:
    rows, half = flat.shape("qdata")
    scales = _scales(flat, rows, 2 * half // flat.data["block_size"]).float()
    if flat.has("per_tensor_scale"):
        flat.shape("per_tensor_scale", ())
        scales = scales * flat.read("per_tensor_scale").float()
    return in_nvfp4(flat.name("qdata"), flat.opened("qdata"), scales)


def _scales(flat: Flattened, rows: int, columns: int) -> Tensor:
    """Return scales [rows, columns] as the file has them, or out of tiles."""
    if not flat.data.get("is_swizzled_scales"):
        flat.shape("scale", (rows, columns))
        return flat.read("scale")
    down, across = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    flat.shape("scale", (down * 32, across * 16))
    tiles = flat.read("scale").view(torch.uint8).view(down, across, 32, 4, 4)  # …, row of 32, row / 32, column
    whole = tiles.permute(0, 3, 2, 1, 4).reshape(down * TILE_ROWS, across * TILE_COLUMNS)
    return whole[:rows, :columns].contiguous().view(flat.read("scale").dtype)


CLASSES: dict[str, Callable[[Flattened], Any]] = {
    "Int8Tensor": _integers,
    "IntxUnpackedToInt8Tensor": _integers,
    "Int4Tensor": _int4,
    "Int4TilePackedTo4dTensor": _tiles,
    "Float8Tensor": _float8,
    "MXTensor": _mx,
    "NVFP4Tensor": _nvfp4,
}
"""The function that reads the weights of a class."""
