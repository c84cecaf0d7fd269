"""The modules of the heads of encoders, by the classes of their configs.

Each is made of its config, the width of states, the table of token embeddings and a dtype. Its `read` returns the
outputs of the head, of the states [B, S, E], the inputs, which are token ids [B, S], and the attention mask [B, S].
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgeformer.config import (
    ClassificationHead,
    MaskedLMHead,
    Pooling,
    PoolingHead,
    PoolingLayer,
    QuestionAnsweringHead,
)
from edgeformer.config.heads import CombinedHead, Head, SpladeHead, TextVectorHead, TokenVectorsHead, TokenWeightsHead
from edgeformer.layers import make_norm
from edgeformer.ops.activation import activate


class MaskedLM(nn.Module):
    """The head that `MaskedLMHead` describes."""

    def __init__(self, config: MaskedLMHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype):
        super().__init__()
        self.config = config
        vocab_size, width = embedding.weight.shape
        self.width, own_columns = width, config.own_columns or 0
        if config.activation is not None:
            self.dense = nn.Linear(hidden_size, width + own_columns, bias=config.dense_bias, dtype=dtype)
        self.norm = make_norm(config.norm, width + own_columns, dtype=dtype)
        if own_columns:
            self.own_table = nn.Linear(own_columns, vocab_size, bias=False, dtype=dtype)
        self.output = nn.Linear(width, vocab_size, bias=config.bias, dtype=dtype)
        if config.tied:
            self.output.weight = embedding.weight

    def read(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the logits of every token."""
        return (self(states),)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits [B, S, V] of states [B, S, E]."""
        if self.config.activation is not None:
            states = self.norm(activate(self.config.activation, self.dense(states)))
        if self.config.own_columns:
            mine: Tensor = self.output(states[..., : self.width]) + self.own_table(states[..., self.width :])
            return mine
        logits: Tensor = self.output(states)
        return logits


class Classifier(nn.Module):
    """The head that `ClassificationHead` describes."""

    def __init__(self, config: ClassificationHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype):
        super().__init__()
        self.config = config
        if config.dense is not None:
            self.dense = nn.Linear(hidden_size, hidden_size, bias=config.dense_bias, dtype=dtype)
        self.norm = make_norm(config.norm, hidden_size, dtype=dtype)
        self.output = nn.Linear(hidden_size, len(config.labels), bias=config.bias, dtype=dtype)

    def read(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the logits of every text, or of every token."""
        if self.config.pooling is not None:
            assert attention_mask is not None
            if self.config.skipped_token is not None:
                attention_mask = attention_mask * (inputs != self.config.skipped_token)
            states = pool(states, attention_mask, self.config.pooling)
        return (self(states),)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits […, labels] of states […, E]."""
        if self.config.dense is not None:
            states = self.norm(activate(self.config.dense, self.dense(states)))
        logits: Tensor = self.output(states)
        return logits


class AnswerSpan(nn.Linear):
    """The head that `QuestionAnsweringHead` describes."""

    def __init__(self, config: QuestionAnsweringHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype):
        super().__init__(hidden_size, 2, dtype=dtype)

    def read(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the logits [B, S] of the first and of the last token of the answer."""
        start, end = self(states).unbind(-1)
        return start, end


class Layered(nn.Module):
    """The base class of heads that end with layers, and perhaps with a norm of 1."""

    def __init__(
        self, config: PoolingHead | TokenVectorsHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype
    ):
        super().__init__()
        self.normalize = config.normalize
        sizes = pairwise(config.widths(hidden_size))
        self.layers = nn.ModuleList(
            PooledLayer(layer, width, dtype) for layer, (width, _) in zip(config.layers, sizes, strict=True)
        )

    def layered(self, x: Tensor) -> Tensor:
        """Return vectors [..., D] of the last layer for vectors [..., E]."""
        for layer in self.layers:
            x = layer(x)
        return normalized(x) if self.normalize else x


class Pooler(Layered):
    """The head that `PoolingHead` describes."""

    def __init__(self, config: PoolingHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype):
        super().__init__(config, hidden_size, embedding, dtype)
        self.config = config

    def read(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the embedding of every text."""
        assert attention_mask is not None
        pooled = attention_mask * (inputs >= 0) if self.config.skips_prompt else None
        return (self(states, attention_mask, pooled),)

    def forward(self, states: Tensor, attention_mask: Tensor, counted: Tensor | None = None) -> Tensor:
        """Return the embedding [B, D] of states [B, S, E]; the other arguments are those of `pool`."""
        pooled = [pool(states, attention_mask, pooling, counted) for pooling in self.config.poolings]
        vectors = self.layered(torch.cat(pooled, -1) if len(pooled) > 1 else pooled[0])
        return vectors if self.config.dimensions is None else vectors[:, : self.config.dimensions]


class TokenVectors(Layered):
    """The head that `TokenVectorsHead` describes."""

    def read(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the vector of every token."""
        return (self.layered(states),)


class TextVector(nn.Linear):
    """The head that `TextVectorHead` describes."""

    def __init__(self, config: TextVectorHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype):
        super().__init__(hidden_size, config.size, bias=config.bias, dtype=dtype)
        self.config = config

    def read(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the vector of every text."""
        return (self(self._pooled(states, inputs)),)

    def _pooled(self, states: Tensor, inputs: Tensor) -> Tensor:
        if self.config.place == "last":
            return states[:, -1]
        if self.config.end is None:
            pooled = torch.eq(inputs, inputs.amax(1, keepdim=True))
        else:
            pooled = torch.eq(inputs, self.config.end)
        places = (pooled.to(torch.int64).cumsum(1) == 0).sum(1)  # [B]: tokens before the first one
        places = places * (places < inputs.shape[1])
        return states.gather(1, places.view(-1, 1, 1).expand(-1, -1, states.shape[-1])).squeeze(1)


class TokenWeights(nn.Module):
    """The head that `TokenWeightsHead` describes."""

    def __init__(self, config: TokenWeightsHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype):
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1, dtype=dtype)

    def read(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the weight of every token."""
        return (self(states),)

    def forward(self, states: Tensor) -> Tensor:
        """Return the weights [B, S] of states [B, S, E]."""
        return torch.relu(self.linear(states)).squeeze(-1)


class Splade(MaskedLM):
    """The head that `SpladeHead` describes."""

    def __init__(self, config: SpladeHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype):
        super().__init__(config.masked_lm, hidden_size, embedding, dtype)
        self.splade = config

    def read(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the sparse vector of every text, and the logits of every token."""
        assert attention_mask is not None
        logits = self(states)
        numbers = torch.relu(logits) * attention_mask.unsqueeze(-1).to(logits.dtype)  # [B, S, V]
        if self.splade.pooling == "max":  # the logarithm rises, so that the largest number has the largest one
            return self._logarithm(numbers.amax(1)), logits
        return self._logarithm(numbers).sum(1), logits

    def _logarithm(self, numbers: Tensor) -> Tensor:
        numbers = torch.log(1 + numbers)
        return torch.log(1 + numbers) if self.splade.twice else numbers


class Combined(nn.Module):
    """The heads that `CombinedHead` lists."""

    def __init__(self, config: CombinedHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype):
        super().__init__()
        self.parts = nn.ModuleList(HEADS[type(part)].make(part, hidden_size, embedding, dtype) for part in config.heads)

    def read(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the outputs of all heads."""
        read = [part.read(states, inputs, attention_mask) for part in self.parts]  # type: ignore[operator]
        return tuple(output for outputs in read for output in outputs)


class PooledLayer(nn.Module):
    """The layer that `PoolingLayer` describes."""

    def __init__(self, config: PoolingLayer, width: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.linear = nn.Linear(width, config.size, bias=config.bias, dtype=dtype)
        if config.residual and width != config.size:
            self.residual = nn.Linear(width, config.size, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., size] of [..., width]."""
        y: Tensor = activate(self.config.activation, self.linear(x))
        if not self.config.residual:
            return y
        return y + (self.residual(x) if hasattr(self, "residual") else x)


def pool(states: Tensor, attention_mask: Tensor, pooling: Pooling, counted: Tensor | None = None) -> Tensor:
    """Return the vectors [B, E] of states [B, S, E], as `Pooling` says.

    attention_mask: int64 [B, S], with 0 for tokens whose states count for nothing: padding, behind the others.
    counted: the same, with 0 for a prompt in front of the others as well; None where all tokens count.
    """
    valid = (attention_mask if counted is None else counted).unsqueeze(-1)  # [B, S, 1]
    if pooling == "first":
        if counted is None:
            return states[:, 0]
        places = (counted.cumsum(1) == 0).sum(1).clamp(max=states.shape[1] - 1)  # [B]: tokens of the prompt
        return states.gather(1, places.view(-1, 1, 1).expand(-1, -1, states.shape[-1])).squeeze(1)
    count = valid.sum(1)  # [B, 1]
    if counted is not None:
        count = count.clamp(min=1)
    if pooling == "last":
        numbers = torch.arange(states.shape[1], device=states.device).unsqueeze(-1)  # [S, 1]
        places = (numbers * valid).amax(1, keepdim=True).expand(-1, -1, states.shape[-1])  # [B, 1, E]
        return states.gather(1, places).squeeze(1)
    if pooling == "max":
        return states.masked_fill(valid == 0, torch.finfo(states.dtype).min).amax(1)
    states = states.masked_fill(valid == 0, 0)
    if pooling == "weighted_mean":
        # In float32, because the sum of the weights of 512 tokens is beyond float16.
        numbers = attention_mask.unsqueeze(-1).cumsum(1)  # of the tokens, from 1 on
        weights = numbers.to(torch.promote_types(states.dtype, torch.float32)) * valid
        return (states * (weights / weights.sum(1, keepdim=True)).to(states.dtype)).sum(1)
    divisor = count.to(states.dtype)
    return states.sum(1) / (divisor.sqrt() if pooling == "mean_sqrt" else divisor)


def normalized(vectors: Tensor) -> Tensor:
    """Return vectors [..., E] divided by their L2 norms, as torch.nn.functional.normalize does."""
    least = max(1e-12, torch.finfo(vectors.dtype).tiny)  # torch's 1e-12 is zero in float16
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=least)


class HeadModule(NamedTuple):
    """The module of a head: its name in an encoder, which names of parameters begin with, and its class."""

    name: str
    make: Any


HEADS: dict[type[Head], HeadModule] = {
    MaskedLMHead: HeadModule("masked_lm", MaskedLM),
    ClassificationHead: HeadModule("classifier", Classifier),
    QuestionAnsweringHead: HeadModule("answer_span", AnswerSpan),
    PoolingHead: HeadModule("pooler", Pooler),
    TokenVectorsHead: HeadModule("token_vectors", TokenVectors),
    TokenWeightsHead: HeadModule("token_weights", TokenWeights),
    SpladeHead: HeadModule("masked_lm", Splade),
    CombinedHead: HeadModule("combined", Combined),
    TextVectorHead: HeadModule("vector", TextVector),
}
"""The modules of all heads."""
