"""Run a module whose parameters are on the meta device: each is read while its layer runs, and released afterwards.

So a reference needs memory for the largest single matrix of a model rather than for all of its weights. Of a mixture
of experts one expert is in memory at a time, and of a table of embeddings the rows of the tokens.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.checkpoints.expert_weights import read_expert, read_rows
from edgeformer.layers.experts import StackedFeedForward

LARGE = 2**24
"""Elements of a matrix above which it is multiplied in parts: 128 MiB in float64. The head of a model with a vocabulary
of 128,000 and a hidden size of 4,096 would take 4 GiB at once."""
ROWS = 8192
"""Rows (output features) of each such part."""


@contextmanager
def streaming_parameters(
    model: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype, kept: Collection[nn.Module] = ()
) -> Iterator[None]:
    """Let `model` read its parameters from `weights`, by name, for the duration of a `with` block.

    A shared parameter is read by its first name. A parameter must be used only while the module that owns it runs;
    those of depthwise convolutions, which are small and used by layers around them, stay loaded. kept: further modules
    that stay loaded.
    """
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    with ExitStack() as undo:
        for module in model.modules():
            of_experts = isinstance(module, StackedFeedForward)
            names = {last: first[id(parameter)] for last, parameter in module.named_parameters(recurse=of_experts)}
            if isinstance(module, nn.Conv1d) or (names and module in kept):
                undo.enter_context(_loaded(module, names, weights, dtype))
            elif names:
                module.forward = partial(_forward, module, module.forward, names, weights, dtype)
                undo.callback(delattr, module, "forward")
        yield


def _forward(
    module: nn.Module, forward: Callable[..., Any], names: Mapping[str, str], weights: Mapping[str, Tensor],
    dtype: torch.dtype, *args: Any, **kwargs: object,
) -> Any:  # fmt: skip
    """Run a module's own forward with its parameters loaded."""
    if isinstance(module, StackedFeedForward):
        return _expert_by_expert(module, forward, names, weights, dtype, *args)
    if type(module) is nn.Embedding:
        return read_rows(weights, names["weight"], args[0].flatten()).to(dtype).unflatten(0, args[0].shape)
    if type(module) is nn.Linear and module.weight.numel() > LARGE:
        parts = []
        for rows in zip(*(weights[name].split(ROWS) for name in names.values()), strict=True):
            with _loaded(module, {name: name for name in names}, dict(zip(names, rows, strict=True)), dtype):
                parts.append(forward(*args))
        return torch.cat(parts, -1)
    with _loaded(module, names, weights, dtype):
        return forward(*args, **kwargs)


def _expert_by_expert(
    module: StackedFeedForward, forward: Callable[..., Tensor], names: Mapping[str, str], weights: Mapping[str, Tensor],
    dtype: torch.dtype, x: Tensor, experts: Tensor, factors: Tensor,
) -> Tensor:  # fmt: skip
    """Add up what each expert computes for the tokens that chose it, as a mixture of this one expert."""
    places = {last: (module.get_submodule(last.rpartition(".")[0]), last.rpartition(".")[2]) for last in names}
    empty, result = {last: owner._parameters[own] for last, (owner, own) in places.items()}, torch.zeros_like(x)
    try:
        for expert in experts.unique().tolist():
            for last, (owner, own) in places.items():
                stack = read_expert(weights, names[last], expert).to(dtype).unsqueeze(0)
                owner._parameters[own] = nn.Parameter(stack, requires_grad=False)
            tokens, chosen = (experts == expert).nonzero(as_tuple=True)
            only = torch.zeros(len(tokens), 1, dtype=torch.int64)
            result[tokens] += forward(x[tokens], only, factors[tokens, chosen, None])
    finally:
        for last, (owner, own) in places.items():
            owner._parameters[own] = empty[last]
    return result


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
