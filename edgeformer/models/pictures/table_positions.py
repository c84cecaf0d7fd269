"""The parts that rows and columns of a table of learned positions have in those of a picture's patches."""

import torch
from torch import Tensor


def antialiased(index: Tensor, count: Tensor, side: int, wide: torch.dtype) -> Tensor:
    """Return the parts [..., P, side] of the rows of a table in the positions of patches, which sum to 1.

    The table has `side` rows, whose borders are those of the picture. A row has a part where a patch is nearer to it
    than one step, of the table or of the patches, whichever is longer: torch's antialiased bilinear interpolation.

    index: row of each patch, int64 [..., P]. count: rows of the picture, int64 [] or [..., 1]. wide: dtype of the
    result.
    """
    table = torch.arange(side, device=index.device).to(wide) + 0.5
    step = side / count.to(wide)
    distance = (table - ((index.to(wide) + 0.5) * step).unsqueeze(-1)).abs()  # in steps of the table
    near = (1 - distance / step.clamp(min=1).unsqueeze(-1)).clamp(min=0)
    return near / near.sum(-1, keepdim=True)
