"""GPTQ: integers of 2, 4 or 8 bits, packed along the inputs, in groups of inputs that may be in any order.

    X.qweight  int32 [K · bits / 32, N]     X.scales  float16 [G, N]
    X.qzeros   int32 [G, N · bits / 32]     X.g_idx   int32 [K], the group of each input

In checkpoint format `gptq` each word of qzeros was lowered by one in every field; `gptq_v2` stores zero points as they
are. With `desc_act` the groups follow the order in which columns were rounded, so that they are not adjacent.
Source: arXiv 2210.17323; gptqmodel 7.7, nn_modules/qlinear.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from edgeformer.checkpoints.quantized.grouped_integers import WORD, Grouped, GroupedSlice, unpacked
from edgeformer.checkpoints.quantized.stored import Stored, matrices, read, whole_shape

BITS = (2, 4, 8)


def gptq_matrices(options: Mapping[str, Any], stored: Stored) -> dict[str, GroupedSlice]:
    """Return the matrices of a checkpoint by the names of their modules. Raises WeightsError for other shapes."""
    bits, lowered = options["bits"], options.get("checkpoint_format", "gptq") == "gptq"
    found = {}
    for module in matrices(stored, "qweight"):
        words, outputs = whole_shape(stored, f"{module}.qweight", 2)
        inputs = words * WORD // bits
        size = options.get("group_size", 128)
        groups = 1 if size in (-1, None) else -(-inputs // size)
        whole_shape(stored, f"{module}.scales", (groups, outputs))
        whole_shape(stored, f"{module}.qzeros", (groups, -(-outputs * bits // WORD)))
        if f"{module}.g_idx" in stored:
            whole_shape(stored, f"{module}.g_idx", (inputs,))

        reader = partial(_read, stored, module, bits, groups, lowered)
        found[module] = GroupedSlice((outputs, inputs), bits, reader)
    return found


def _read(stored: Stored, module: str, bits: int, groups: int, lowered: bool) -> Grouped:
    integers = unpacked(read(stored, f"{module}.qweight").T.contiguous(), bits)
    scales, zeros = read(stored, f"{module}.scales").float(), read(stored, f"{module}.qzeros")
    zeros = unpacked(_raised(zeros, bits) if lowered else zeros, bits)[:, : scales.shape[1]]
    inputs = integers.shape[1]
    order = torch.arange(inputs) // -(-inputs // groups)
    if f"{module}.g_idx" in stored:
        order = read(stored, f"{module}.g_idx").long()
    return Grouped(integers, scales.T.contiguous(), zeros.T.contiguous(), order)


def _raised(words: Tensor, bits: int) -> Tensor:
    """Return words in each of whose fields one is added, with the carries, as gptqmodel does."""
    ones = sum(1 << shift for shift in range(0, WORD, bits))
    return ((words.long() + ones) & 0xFFFFFFFF).to(torch.uint32).view(torch.int32)
