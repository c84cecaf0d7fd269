"""Run a module whose parameters are on the meta device: each is read when its owner runs, and let go after.

A reference of a model needs no more memory than its largest matrix, in whatever precision it is run.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# A larger matrix is multiplied with in parts: a float64 copy of a large vocabulary would not fit.
LARGE = 2**24
ROWS = 8192


@contextmanager
def streamed(model: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Let `model` read its parameters from `weights`, by their names in it, for the length of a `with` block.

    A parameter of several names is read by its first. Requires that a parameter is read only while the module that owns
    it runs.
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
    """Run a module's own forward with its parameters in place."""
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
