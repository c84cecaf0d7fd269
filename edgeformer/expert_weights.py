"""Reading a stacked parameter [X, out, in] of X experts one expert at a time: as a whole it may not fit into memory.

Weights are mappings from parameter names to tensors. One that can read an expert by itself has a method
`read_expert(name, expert)`; of any other the whole parameter is read.
"""

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence

from torch import Tensor

LARGE = 2**24
"""Elements of a stacked parameter above which its experts are read one by one: 64 MiB in float32."""


def is_stacked(name: str) -> bool:
    """Whether a parameter of our own models has its experts along its first axis (`layers.experts.StackedLinear`)."""
    return ".experts." in name


def read_expert(weights: Mapping[str, Tensor], name: str, expert: int) -> Tensor:
    """Return weights[name][expert]."""
    reader = getattr(weights, "read_expert", None)
    part: Tensor = weights[name][expert] if reader is None else reader(name, expert)
    return part


def is_large(shape: Sequence[int]) -> bool:
    """Whether a tensor of this shape is to be read expert by expert."""
    return len(shape) == 3 and math.prod(shape) > LARGE


class FirstOf(ChainMap[str, Tensor]):
    """Several mappings of weights as one; each name means the first that has it."""

    def read_expert(self, name: str, expert: int) -> Tensor:
        """Return one expert of a stacked parameter."""
        return read_expert(next(weights for weights in self.maps if name in weights), name, expert)
