"""Cut a projection into its parts."""

from itertools import accumulate

from torch import Tensor


def parts(x: Tensor, *sizes: int) -> list[Tensor]:
    """Cut the last dimension of x into parts of these sizes.

    Each part is a slice: torch's exporter turns a split into a sequence of tensors, which many runtimes lack.
    """
    ends = accumulate(sizes)
    return [x[..., end - size : end] for end, size in zip(ends, sizes, strict=True)]
