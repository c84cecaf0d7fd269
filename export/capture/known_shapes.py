"""Shapes and types of products, norms and elementwise ops while a module is traced, in the common cases.

torch decomposes most of them to find the shape of what they give, and compares the symbolic sizes and strides of all
that it makes on the way: of a trace of 300 ms, a clamp takes 20 and a norm 15. The answer is known:

    linear       (…, n) and (m, n)               →  (…, m)
    matmul       (batch…, i, n), (batch…, n, m)  →  (batch…, i, m)
    layer_norm   (…, n)                          →  (…, n)
    elementwise  (b, 1, s, t), (h, s, 1), ()     →  (b, h, s, t), of the type that torch promotes to

Sizes must be written alike, or be 1, and tensors of elementwise ops contiguous. Whatever else comes goes to torch.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

aten = torch.ops.aten

COMPOSITE = DispatchKey.CompositeImplicitAutograd
Decompose = Callable[..., Tensor]
"""torch's own way to a shape."""

TO_BOOL, TO_FLOAT = PROMOTION.ALWAYS_BOOL, PROMOTION.INT_TO_FLOAT

UNARY = {
    aten.abs.default: PROMOTION.DEFAULT, aten.bitwise_not.default: PROMOTION.DEFAULT, aten.exp.default: TO_FLOAT,
    aten.gelu.default: PROMOTION.DEFAULT, aten.log.default: TO_FLOAT, aten.masked_fill.Scalar: PROMOTION.DEFAULT,
    aten.neg.default: PROMOTION.DEFAULT, aten.relu.default: PROMOTION.DEFAULT, aten.rsqrt.default: TO_FLOAT,
    aten.sigmoid.default: TO_FLOAT, aten.silu.default: PROMOTION.DEFAULT, aten.sqrt.default: TO_FLOAT,
    aten.tanh.default: TO_FLOAT,
}  # fmt: skip
"""Elementwise ops whose first tensor alone decides on the type, and how."""

ELEMENTWISE = UNARY | {
    aten.add.Tensor: PROMOTION.DEFAULT, aten.bitwise_or.Tensor: PROMOTION.DEFAULT, aten.div.Tensor: TO_FLOAT,
    aten.clamp.default: PROMOTION.DEFAULT, aten.eq.Scalar: TO_BOOL, aten.eq.Tensor: TO_BOOL,
    aten.ge.Scalar: TO_BOOL, aten.gt.Scalar: TO_BOOL, aten.lt.Scalar: TO_BOOL, aten.ne.Scalar: TO_BOOL,
    aten.minimum.default: PROMOTION.DEFAULT, aten.mul.Tensor: PROMOTION.DEFAULT, aten.sub.Tensor: PROMOTION.DEFAULT,
    aten.where.self: PROMOTION.DEFAULT,
}  # fmt: skip
"""Elementwise ops, and how the types of what they are given decide on the type of what they give."""


@contextmanager
def shapes_by_rule() -> Iterator[None]:
    """Let torch find shapes by the rules of this module, where it traces with symbolic sizes."""
    of_torch = fake_impls.get_fast_op_impls()
    answers = {op: functools.partial(_elementwise, op, of_torch.get(op)) for op in ELEMENTWISE}
    with ExitStack() as replaced, patch.dict(of_torch, answers):
        for op, kernel in COMPOSITES.items():
            replaced.callback(op._dispatch_cache.clear)
            decompose = op.py_kernels.get(COMPOSITE, functools.partial(op._op_dk, COMPOSITE))
            ours = functools.partial(kernel, decompose)
            replaced.enter_context(patch.dict(op.py_kernels, {COMPOSITE: ours}))
            op._dispatch_cache.clear()
        yield


def _linear(decompose: Decompose, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    plain = values.dim() > 1 and weight.dim() == 2 and values.dtype == weight.dtype
    if plain and _same(values.shape[-1], weight.shape[1]) and _adds(bias, weight):
        return values.new_empty((*values.shape[:-1], weight.shape[0]))
    return decompose(values, weight, bias)


def _adds(bias: Tensor | None, weight: Tensor) -> bool:
    """Whether this is the bias of a linear layer with such a weight, or none."""
    if bias is None:
        return True
    return bias.dtype == weight.dtype and bias.dim() == 1 and _same(bias.shape[0], weight.shape[0])


def _matmul(decompose: Decompose, left: Tensor, right: Tensor) -> Tensor:
    batched = left.dim() == right.dim() > 2 and left.dtype == right.dtype
    if batched and _same(left.shape[-1], right.shape[-2]) and _same_shapes(left.shape[:-2], right.shape[:-2]):
        return left.new_empty((*left.shape[:-1], right.shape[-1]))
    return decompose(left, right)


def _layer_norm(decompose: Decompose, values: Tensor, shape: Sequence[int], *parameters: Any) -> Tensor:
    """parameters: the weight and the bias, which may be None or left out, and two that change no shape."""
    weights = [each for each in parameters[:2] if each is not None]
    plain = all(each.dtype == values.dtype and _same_shapes(each.shape, shape) for each in weights)
    if plain and _same_shapes(values.shape[values.dim() - len(shape) :], shape):
        return values.new_empty(values.shape)
    return decompose(values, shape, *parameters)


COMPOSITES: dict[Any, Callable[..., Tensor]] = {
    aten.linear.default: _linear, aten.matmul.default: _matmul, aten.layer_norm.default: _layer_norm,
}  # fmt: skip
"""Ops that torch decomposes before it asks for their shapes, and what takes the place of that."""


def _elementwise(op: Any, by_torch: Decompose | None, mode: FakeTensorMode, *args: Any, **named: object) -> Any:
    """by_torch: a shorter way that torch has itself."""
    tensors = [each for each in args if isinstance(each, Tensor)]
    shape = _broadcast([each.shape for each in tensors])
    if shape is not None and all(each.device.type == "cpu" and _is_contiguous(each) for each in tensors):
        chosen = args[:1] if op in UNARY else args[1:] if op is aten.where.self else args
        promoted = [each for each in chosen if each is not None]
        _, dtype = elementwise_dtypes(*promoted, type_promotion_kind=ELEMENTWISE[op])
        return FakeTensor(mode, torch.empty(shape, dtype=dtype, device="meta"), torch.device("cpu"))
    if by_torch is not None:
        return by_torch(mode, *args, **named)
    answers = fake_impls.get_fast_op_impls()
    with patch.dict(answers):
        del answers[op]
        return mode.dispatch(op, (), args, named)


def _broadcast(shapes: Sequence[Sequence[Any]]) -> list[Any] | None:
    """Return the shape of an elementwise op over tensors of these shapes, or None where only torch knows it."""
    found: list[Any] = [1] * max(map(len, shapes))
    for shape in shapes:
        for axis, size in enumerate(shape, len(found) - len(shape)):
            if _same(found[axis], 1):
                found[axis] = size
            elif not _same(size, 1) and not _same(size, found[axis]):
                return None
    return found


def _is_contiguous(tensor: Tensor) -> bool:
    """Whether the strides of a tensor are written as the products of the sizes behind them."""
    expected: Any = 1
    behind: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        expected, behind = expected * behind, size
        if not _same(size, 1) and not _same(stride, expected):
            return False
    return True


def _same_shapes(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(shape) == len(other) and all(map(_same, shape, other))


def _same(size: Any, other: Any) -> bool:
    """Whether two sizes are written alike, which needs no guard."""
    if isinstance(size, int) or isinstance(other, int):
        return isinstance(size, int) and isinstance(other, int) and size == other
    return size.node.expr == other.node.expr
