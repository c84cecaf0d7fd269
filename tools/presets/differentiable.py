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


def _cross_attention(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scale: float, softcap: float = 0.0
) -> Tensor:
    assert not softcap, "no preset caps its scores"
    heads = query.unflatten(-1, (key.shape[1], -1)).transpose(1, 2)  # [B, H, S, D]
    scores = (heads * scale) @ key.transpose(-1, -2)
    scores = scores.masked_fill((attention_mask == 0)[:, None, None, :], float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)
