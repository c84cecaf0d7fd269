"""Differentiable forms of the custom ops, which have no gradients of their own.

Inside `differentiable_ops()` the modules of `edgeformer.models` can be trained, so that the trained modules are the
exported ones. These forms are also faster than the ops' own implementations, which support caches, and work in
bfloat16. Features that no preset needs raise an error. A test compares each form with its op.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from edgeformer import ops


@contextmanager
def differentiable_ops() -> Iterator[None]:
    """Replace the ops in the whole process.

    `attention_mask` may number the documents packed into a row, from 1, with 0 for padding: tokens attend to their own
    document only. The usual mask of ones and zeros is a row of one document.
    """
    attention = _Attention()
    replaced = {
        "rms_norm": _rms_norm,
        "rotary_embedding": _rotary_embedding,
        "group_query_attention": attention,
        "cross_attention": _cross_attention,
        "token_positions": _token_positions,
    }
    with mock.patch.multiple(ops, **replaced):
        yield


def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, epsilon)


def _token_positions(attention_mask: Tensor, input_ids: Tensor) -> Tensor:
    """Return positions in the row: rotary embeddings and relative biases depend on differences only."""
    return torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)


def _rotary_embedding(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, num_heads: int, interleaved: bool
) -> Tensor:
    heads = x.unflatten(-1, (num_heads, -1))  # [B, S, H, D]
    if interleaved or 2 * cos.shape[-1] != heads.shape[-1]:
        raise ValueError("training does not support interleaved or partial rotary embeddings")
    cos, sin = cos[positions].unsqueeze(2), sin[positions].unsqueeze(2)
    a, b = heads.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


class _Attention:
    """`group_query_attention` without a cache. All layers of a run share one mask, which is computed once."""

    def __init__(self) -> None:
        self._documents: Tensor | None = None
        self._causal = False
        self._hidden = torch.empty(0)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        past_key: Tensor | None,
        past_value: Tensor | None,
        attention_mask: Tensor,
        num_heads: int,
        num_kv_heads: int,
        scale: float,
        attention_bias: Tensor | None = None,
        causal: bool = True,
        **others: object,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if past_key is not None or past_value is not None or any(others.values()):
            raise ValueError("training does not support caches, sinks, windows, softcaps and value relations")
        query, key, value = (  # [B, heads, S, D]
            each.unflatten(-1, (heads, -1)).transpose(1, 2)
            for each, heads in ((query * scale, num_heads), (key, num_kv_heads), (value, num_kv_heads))
        )
        batch, _, length, size = query.shape
        # Concatenate the query heads of a key head: one product of [H/K · S, D] without copies of the keys.
        scores = query.reshape(batch, num_kv_heads, -1, size) @ key.transpose(-1, -2)
        scores = scores.view(batch, num_heads, length, length) + self._mask(attention_mask, causal, query.dtype)
        if attention_bias is not None:
            scores = scores + attention_bias
        weights = scores.softmax(-1).view(batch, num_kv_heads, -1, length)
        output = (weights @ value).view(batch, num_heads, length, size)
        return output.transpose(1, 2).flatten(-2), key, value

    def _mask(self, documents: Tensor, causal: bool, dtype: torch.dtype) -> Tensor:
        """Return a mask [B, 1, S, S], −inf where a query may not attend. Padding attends to padding."""
        if documents is not self._documents or causal != self._causal or self._hidden.dtype != dtype:
            other = ~documents if documents.dim() == 3 else documents.unsqueeze(-1) != documents.unsqueeze(1)
            if causal and documents.dim() < 3:
                other = other | torch.ones(other.shape[1:], dtype=torch.bool, device=other.device).triu(1)
            hidden = torch.zeros(other.shape, dtype=dtype, device=other.device).masked_fill(other, float("-inf"))
            self._documents, self._causal, self._hidden = documents, causal, hidden.unsqueeze(1)
        return self._hidden


@contextmanager
def shared_prefix(length: int, texts: int) -> Iterator[None]:
    """Let rows be a prefix of so many tokens and, behind it, texts of equal length that see it and themselves alone.

    It replaces causal attention, within `differentiable_ops`, and has one product of matrices for all texts of a row:
    a mask over all pairs of tokens would compute most of them for nothing.
    """

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        past_key: Tensor | None,
        past_value: Tensor | None,
        attention_mask: Tensor,
        num_heads: int,
        num_kv_heads: int,
        scale: float,
        attention_bias: Tensor | None = None,
        causal: bool = True,
        **others: object,
    ) -> tuple[Tensor, Tensor, Tensor]:
        unsupported = (past_key, past_value, attention_bias)
        if any(each is not None for each in unsupported) or any(others.values()):
            raise ValueError("a shared prefix supports attention without caches and biases")
        query, key, value = (  # [B, heads, S, D]
            each.unflatten(-1, (heads, -1)).transpose(1, 2)
            for each, heads in ((query * scale, num_heads), (key, num_kv_heads), (value, num_kv_heads))
        )
        if not causal:  # of a tower
            return _attend_to_all(query, key, value), key, value
        return _texts_behind_prefix(query, key, value, length, texts), key, value

    with mock.patch.object(ops, "group_query_attention", attention):
        yield


def _texts_behind_prefix(query: Tensor, key: Tensor, value: Tensor, length: int, texts: int) -> Tensor:
    """Return what queries [B, H, S, D] of `shared_prefix` attend to, [B, S, H · D]; keys and values [B, K, S, D]."""
    batch, heads, total, size = query.shape
    groups = key.shape[1]
    query = query.reshape(batch, groups, heads // groups, total, size)  # [B, K, G, S, D]
    first, then = query[..., :length, :], query[..., length:, :]
    prefix_key, prefix_value = key[:, :, :length], value[:, :, :length]
    # The prefix: all query heads of a key head in one product.
    scores = (first.flatten(2, 3) @ prefix_key.transpose(-1, -2)).unflatten(2, (-1, length))
    weights = (scores + _hidden(length, scores.dtype)).softmax(-1)
    attended = (weights.flatten(2, 3) @ prefix_value).unflatten(2, (-1, length))  # [B, K, G, P, D]
    # Texts: a product with the prefix, and one with the own tokens of each.
    own_key, own_value = (each[:, :, length:].unflatten(2, (texts, -1)) for each in (key, value))  # [B, K, Q, s, D]
    own = then.unflatten(3, (texts, -1)).transpose(2, 3)  # [B, K, Q, G, s, D]
    span = own.shape[-2]
    flat = own.flatten(3, 4)  # [B, K, Q, G · s, D]
    to_prefix = (flat.flatten(2, 3) @ prefix_key.transpose(-1, -2)).view(*flat.shape[:-1], length)
    to_own = (flat @ own_key.transpose(-1, -2)).unflatten(3, (-1, span)) + _hidden(span, flat.dtype)
    weights = torch.cat((to_prefix, to_own.flatten(3, 4)), -1).softmax(-1)
    of_prefix = weights[..., :length].flatten(2, 3) @ prefix_value
    behind = of_prefix.view(flat.shape) + weights[..., length:] @ own_value
    behind = behind.unflatten(3, (-1, span)).transpose(2, 3).flatten(3, 4)  # [B, K, G, Q · s, D]
    return torch.cat((attended, behind), 3).flatten(1, 2).transpose(1, 2).flatten(-2)


def _attend_to_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return what queries [B, H, S, D] attend to of keys and values of as many heads, [B, S, H · D]."""
    return ((query @ key.transpose(-1, -2)).softmax(-1) @ value).transpose(1, 2).flatten(-2)


def _hidden(length: int, dtype: torch.dtype) -> Tensor:
    """Return −inf [S, S] where a token would look ahead."""
    return torch.full((length, length), float("-inf"), dtype=dtype).triu(1)


def _cross_attention(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scale: float, softcap: float = 0.0
) -> Tensor:
    assert not softcap, "no preset caps its scores"
    heads = query.unflatten(-1, (key.shape[1], -1)).transpose(1, 2)  # [B, H, S, D]
    scores = (heads * scale) @ key.transpose(-1, -2)
    scores = scores.masked_fill((attention_mask == 0)[:, None, None, :], float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)
