"""AWQ: integers of 4 bits with zero points, packed along the outputs in an order of their own, in groups of inputs.

    X.qweight  int32 [K, N / 8]     X.scales  float16 [G, N]     X.qzeros  int32 [G, N / 8]

Field i of a word is that of output `ORDER[i]` of eight. Source: arXiv 2306.00978; the layout `gemm` of AutoAWQ.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from edgeformer.checkpoints.quantized.grouped_integers import Grouped, GroupedSlice, unpacked
from edgeformer.checkpoints.quantized.stored import Stored, even_groups, matrices, read, whole_shape

BITS = 4
FIELDS = 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Outputs of eight, in the order of the fields of a word."""


def awq_matrices(options: Mapping[str, Any], stored: Stored) -> dict[str, GroupedSlice]:
    """Return the matrices of a checkpoint by the names of their modules. Raises WeightsError for other shapes."""
    found = {}
    for module in matrices(stored, "qweight"):
        inputs, words = whole_shape(stored, f"{module}.qweight", 2)
        size = options.get("group_size", 128)
        groups, outputs = 1 if size in (-1, None) else -(-inputs // size), words * FIELDS
        even_groups(f"{module}.qweight", inputs, groups)
        whole_shape(stored, f"{module}.scales", (groups, outputs))
        if has_zeros := bool(options.get("zero_point", True)):
            whole_shape(stored, f"{module}.qzeros", (groups, words))

        found[module] = GroupedSlice((outputs, inputs), BITS, partial(_read, stored, module, has_zeros))
    return found


def _read(stored: Stored, module: str, has_zeros: bool) -> Grouped:
    return Grouped(
        _outputs(read(stored, f"{module}.qweight")),
        read(stored, f"{module}.scales").float().T.contiguous(),
        _outputs(read(stored, f"{module}.qzeros")) if has_zeros else None,
    )


def _outputs(words: Tensor) -> Tensor:
    """Return uint8 [N, rows] of words [rows, N / 8]."""
    fields = unpacked(words, BITS).unflatten(-1, (-1, FIELDS))
    return fields[..., torch.tensor(ORDER).argsort()].flatten(-2).T.contiguous()
