"""Run a module in several orders of its sums, for a measure of how much it amplifies rounding.

Most positions of a text amplify the rounding errors of a model a little, and a few of them ten times as much. What one
run errs there is one draw of chance, which may happen to be small: a graph whose own draw is not would seem wrong. Runs
that add the same products in other orders draw again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

T = TypeVar("T")


def run_in_summation_orders(module: nn.Module, orders: int, run: Callable[[], T]) -> T:
    """What a run of a module gives: tensors, in tuples and lists. The first of several orders is the module's own.

    Of several, each vector is one whose distance from the mean of all is their root mean square or just above: it errs
    as much as such a vector does.
    """
    outcomes = []
    for index in range(orders):
        with _reordered(module, index):
            outcomes.append(run())
    return outcomes[0] if orders == 1 else _typical(outcomes)


@contextmanager
def _reordered(module: nn.Module, index: int) -> Iterator[None]:
    """Let every linear layer add its products in another order, one for each index over 0."""
    layers = [layer for layer in module.modules() if index and type(layer) is nn.Linear]
    for layer in layers:
        shuffled = torch.randperm(layer.in_features, generator=torch.Generator().manual_seed(index))
        layer.__dict__["forward"] = partial(_linear, layer, shuffled)
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)  # who streams the parameters has put its own there, and taken it away


def _linear(layer: nn.Linear, order: Tensor, x: Tensor) -> Tensor:
    return F.linear(x[..., order], layer.weight[:, order], layer.bias)


def _typical(outcomes: Sequence[Any]) -> Any:
    first = outcomes[0]
    if isinstance(first, tuple | list):
        return type(first)(_typical(each) for each in zip(*outcomes, strict=True))
    every = torch.stack(list(outcomes))
    exact = every.double()
    squares = (exact - exact.mean(0)).square().mean(-1)
    chosen = torch.where(squares >= squares.mean(0), squares, torch.inf).argmin(0)
    return every.gather(0, chosen[None, ..., None].expand_as(every[:1]))[0]
