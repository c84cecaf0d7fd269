"""Reading one expert of a stacked parameter [X, …], which may be too large to be in memory as a whole.

Weights are mappings from parameter names to tensors. One that can read an expert by itself has a method
`read_expert(name, expert)`; of any other the whole parameter is read.
"""

from collections.abc import Mapping

from torch import Tensor


def read_expert(weights: Mapping[str, Tensor], name: str, expert: int) -> Tensor:
    """Return weights[name][expert]."""
    reader = getattr(weights, "read_expert", None)
    part: Tensor = weights[name][expert] if reader is None else reader(name, expert)
    return part
