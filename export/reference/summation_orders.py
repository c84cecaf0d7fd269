"""Run a module in several summation orders, as a measure of how much it amplifies rounding.

Most positions of a text amplify the rounding errors of a model a little, and a few amplify them ten times as much. The
error of a single run at such a position is one random draw, which may be small by chance; a correct graph with an
ordinary draw would then look wrong. Runs that add the same products in other orders give more draws.

A router of experts amplifies rounding most of all where two experts are nearly equal: rounding decides which of them is
chosen. So other orders also move its logits, by about as much as hidden states of that precision are wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.layers.experts import Router
from edgeformer.models.model_spec import ModelSpec
from edgeformer.models.without_values import without_values

T = TypeVar("T")

LOGIT_NOISE = 2.0
"""Standard deviation by which logits of a router are moved, in units of the last place of the largest one. Measured:
behind one to three layers, logits of eager PyTorch in float16 err by 0.4 to 0.9 such units (root mean square). Errors
grow with the root of the number of layers, so this is for about twenty layers."""


def run_in_summation_orders(module: nn.Module, count: int, run: Callable[[], T], exact: Callable[[], T]) -> T:
    """Call `run`, which runs `module`, in `count` summation orders; return tensors of its structure (tuples and lists).

    The first order is the module's own, and the only one for a count of 1. Of several outcomes, each vector (last axis)
    is taken from the run whose error is the root mean square of all errors, or just above it. exact: returns what the
    outcomes would be without errors; it is called where there are several. Their mean would not do for it: where all
    but one are off by the same, the one that is not is the farthest from the mean.
    """
    outcomes = []
    for index in range(count):
        with _reordered(module, index):
            outcomes.append(run())
    return outcomes[0] if count == 1 else _typical(outcomes, exact())


@contextmanager
def _reordered(module: nn.Module, index: int) -> Iterator[None]:
    """Let linear layers and convolutions add their products in the order of this index; 0 is the layer's own order."""
    routers = {router.projection for router in module.modules() if isinstance(router, Router)}
    layers = [layer for layer in module.modules() if index and type(layer) in IN_ORDER and products_of(layer)]
    for layer in layers:
        shuffled = torch.randperm(products_of(layer), generator=torch.Generator().manual_seed(index))
        function: Callable[..., Tensor] = _router if layer in routers else IN_ORDER[type(layer)]
        layer.__dict__["forward"] = partial(function, layer, shuffled)
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)  # streaming_parameters replaces and removes it, too


def chooses_experts(model_spec: ModelSpec) -> bool:
    """Return whether the module of a model has a router, whose logits other orders move."""
    with without_values():
        return any(isinstance(each, Router) for each in model_spec.build(torch.float32).modules())


def products_of(layer: nn.Module) -> int:
    """Return the number of products that a layer adds up for one number; 0 for a layer that is no matrix product.

    A depthwise convolution adds a few, and the layer around it computes them.
    """
    if isinstance(layer, nn.Linear):
        return layer.in_features
    if isinstance(layer, nn.Conv1d | nn.Conv2d) and layer.groups == 1:
        return layer.weight[0].numel()
    return 0


def _linear(layer: nn.Linear, order: Tensor, x: Tensor) -> Tensor:
    return F.linear(x[..., order], layer.weight[:, order], layer.bias)


def _convolution(layer: nn.Conv1d | nn.Conv2d, order: Tensor, x: Tensor) -> Tensor:
    """Convolve as one product of patches, whose elements are in this order. x: [B, C, N] or [B, C, H, W]."""
    flat, images = isinstance(layer, nn.Conv1d), x
    kernel, padding, stride = layer.kernel_size, layer.padding, layer.stride
    assert not isinstance(padding, str)
    if flat:  # an image of one row
        images, kernel, padding, stride = x.unsqueeze(2), (1, *kernel), (0, *padding), (1, *stride)
    patches = F.unfold(images, kernel, padding=padding, stride=stride).transpose(1, 2)
    found = F.linear(patches[..., order], layer.weight.flatten(1)[:, order], layer.bias).transpose(1, 2)
    if flat:
        return found
    rows = (x.shape[2] + 2 * padding[0] - kernel[0]) // stride[0] + 1
    return found.unflatten(2, (rows, -1))


IN_ORDER: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
}
"""Functions that compute what a layer does with its products in another order, by its type: a layer of a further class
may do more with its inputs."""


def _router(layer: nn.Linear, order: Tensor, x: Tensor) -> Tensor:
    logits = _linear(layer, order, x)
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(int(order[0]))).to(logits.dtype)
    unit = torch.finfo(logits.dtype).eps * logits.abs().amax(-1, keepdim=True)
    return logits + LOGIT_NOISE * unit * noise


def _typical(outcomes: Sequence[Any], exact: Any) -> Any:
    first = outcomes[0]
    if isinstance(first, tuple | list):
        return type(first)(_typical(each[:-1], each[-1]) for each in zip(*outcomes, exact, strict=True))
    stacked = torch.stack(list(outcomes))
    squares = (stacked.double() - exact.double()).square().mean(-1)
    chosen = torch.where(squares >= squares.mean(0), squares, torch.inf).argmin(0)
    return stacked.gather(0, chosen[None, ..., None].expand_as(stacked[:1]))[0]
