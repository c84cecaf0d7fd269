"""Run a module whose parameters are on the meta device: each is read while its layer runs, and released afterwards.

So a reference needs memory for the largest single matrix of a model rather than for all of its weights.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LARGE = 2**24
"""Elements of a matrix above which it is multiplied in parts: 128 MiB in float64. The head of a model with a vocabulary
of 128,000 and a hidden size of 4,096 would take 4 GiB at once."""
ROWS = 8192
"""Rows (output features) of each such part."""


@contextmanager
def streaming_parameters(model: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Let `model` read its parameters from `weights`, by name, for the duration of a `with` block.

    A shared parameter is read by its first name. A parameter must be used only while the module that owns it runs.
    """
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    with ExitStack() as undo:
        for module in model.modules():
            names = {last: first[id(parameter)] for last, parameter in module.named_parameters(recurse=False)}
            if names:
                module.forward = partial(_forward, module, module.forward, names, weights, dtype)
                undo.callback(delattr, module, "forward")
        yield


def _forward(
    module: nn.Module, forward: Callable[..., Any], names: Mapping[str, str], weights: Mapping[str, Tensor],
    dtype: torch.dtype, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run a module's own forward with its parameters loaded."""
    if type(module) is nn.Embedding:
        return F.embedding(args[0], weights[names["weight"]]).to(dtype)
    if type(module) is nn.Linear and module.weight.numel() > LARGE:
        weight, bias = weights[names["weight"]], weights[names["bias"]].to(dtype) if "bias" in names else None
        parts = [F.linear(args[0], rows.to(dtype)) for rows in weight.split(ROWS)]
        product = torch.cat(parts, -1)
        return product if bias is None else product + bias
    with _loaded(module, names, weights, dtype):
        return forward(*args, **kwargs)


@contextmanager
def _loaded(
    module: nn.Module, names: Mapping[str, str], weights: Mapping[str, Tensor], dtype: torch.dtype
) -> Iterator[None]:
    empty = {last: module._parameters[last] for last in names}
    for last, name in names.items():
        module._parameters[last] = nn.Parameter(weights[name].to(dtype), requires_grad=False)
    try:
        yield
    finally:
        module._parameters.update(empty)
