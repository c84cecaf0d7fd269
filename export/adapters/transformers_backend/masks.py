"""What a mask function of transformers lets a query see, in the words of our attention op.

transformers composes masks of functions (batch, head, query, key) → bool. Those are asked, position by position; a
layer's window is what the answers are, not what a config says.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgeformer.errors import ExportError

MaskFunction = Callable[[Any, Any, Any, Any], Tensor]


def window_of(mask_function: MaskFunction, context_length: int) -> int:
    """Keys that a query sees, itself included, or 0 where it sees all before it.

    Raises ExportError for anything but causal attention, plain or with a window that is the same everywhere.
    """
    last = context_length - 1
    keys = torch.arange(context_length + 1)
    seen = _seen(mask_function, last, keys)
    window = int(seen.sum())
    if window > last:
        window = 0
    for query in sorted({0, 1, window - 1, window, window + 1, last // 2, last - 1, last}):
        if not 0 <= query <= last:
            continue
        seen = _seen(mask_function, query, keys)
        if seen[query + 1 :].any():
            raise ExportError(
                f"token {query} attends to tokens after it, and a decoder with a cache cannot. A model of the BERT "
                "family is one only with is_decoder in its config.json."
            )
        expected = (keys <= query) & (keys > query - window) if window else keys <= query
        if not torch.equal(seen, expected):
            raise ExportError(
                f"token {query} attends to {int(seen.sum())} of the tokens up to it, token {last} to "
                f"{window or 'all'}: that is neither causal attention nor a window (chunks or blocks, perhaps), and "
                "the attention op has no such pattern."
            )
    return window


def _seen(mask_function: MaskFunction, query: int, keys: Tensor) -> Tensor:
    zero = torch.zeros(1, dtype=torch.int64)
    seen = mask_function(zero, zero, torch.tensor([query]), keys)
    return torch.as_tensor(seen, dtype=torch.bool).expand(keys.shape)
