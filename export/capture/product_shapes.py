"""Shapes of matrix products and of layer norms, while a module is traced, in the common cases.

torch decomposes them to find the shape of what they give: a product into views of symbolic sizes, of which it proves
that they are possible, and a product of two matrices; a norm into fifteen sums and products. That takes a third of the
time of a trace, and the answer is known:

    linear      (…, n) and (m, n)               →  (…, m)
    matmul      (batch…, i, n), (batch…, n, m)  →  (batch…, i, m)
    layer_norm  (…, n)                          →  (…, n)

Whatever else comes, such as sizes that differ, goes to torch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C import DispatchKey

COMPOSITE = DispatchKey.CompositeImplicitAutograd
LINEAR, MATMUL = torch.ops.aten.linear.default, torch.ops.aten.matmul.default
LAYER_NORM = torch.ops.aten.layer_norm.default


@contextmanager
def products_by_shape() -> Iterator[None]:
    """Let torch find the shapes of products and norms without decomposing them, where it traces with symbolic sizes."""
    decompose = MATMUL.py_kernels[COMPOSITE]
    kernels = {
        LINEAR: _linear,
        MATMUL: lambda left, right: _matmul(left, right, decompose),
        LAYER_NORM: _layer_norm,
    }
    with ExitStack() as replaced:
        for op, kernel in kernels.items():
            replaced.callback(op._dispatch_cache.clear)
            replaced.enter_context(patch.dict(op.py_kernels, {COMPOSITE: kernel}))
            op._dispatch_cache.clear()
        yield


def _linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    plain = values.dim() > 1 and weight.dim() == 2 and values.dtype == weight.dtype
    if plain and _same(values.shape[-1], weight.shape[1]) and _adds(bias, weight):
        return values.new_empty((*values.shape[:-1], weight.shape[0]))
    return LINEAR._op_dk(COMPOSITE, values, weight, bias)


def _adds(bias: Tensor | None, weight: Tensor) -> bool:
    """Whether this is the bias of a linear layer with such a weight, or none."""
    if bias is None:
        return True
    return bias.dtype == weight.dtype and bias.dim() == 1 and _same(bias.shape[0], weight.shape[0])


def _matmul(left: Tensor, right: Tensor, decompose: Callable[..., Tensor]) -> Tensor:
    batched = left.dim() == right.dim() > 2 and left.dtype == right.dtype
    if batched and _same(left.shape[-1], right.shape[-2]) and all(map(_same, left.shape[:-2], right.shape[:-2])):
        return left.new_empty((*left.shape[:-1], right.shape[-1]))
    return decompose(left, right)


def _layer_norm(values: Tensor, shape: Sequence[int], *parameters: Any) -> Tensor:
    """parameters: the weight and the bias, which may be None or left out, and two that change no shape."""
    weights = [each for each in parameters[:2] if each is not None]
    if all(each.dtype == values.dtype and _same_shapes(each.shape, shape) for each in weights) and _same_shapes(
        values.shape[values.dim() - len(shape) :], shape
    ):
        return values.new_empty(values.shape)
    return LAYER_NORM._op_dk(COMPOSITE, values, shape, *parameters)


def _same_shapes(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(shape) == len(other) and all(map(_same, shape, other))


def _same(size: Any, other: Any) -> bool:
    """Whether two sizes are written alike, which needs no guard."""
    if isinstance(size, int) or isinstance(other, int):
        return isinstance(size, int) and isinstance(other, int) and size == other
    return size.node.expr == other.node.expr
