"""Encoder: bidirectional attention over a text or a recording, and heads over its states."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.config import (
    AudioStem,
    ClassificationHead,
    EncoderConfig,
    MaskedLMHead,
    Pooling,
    PoolingHead,
    PoolingLayer,
    QuestionAnsweringHead,
)
from edgeformer.layers import make_norm
from edgeformer.models.stack import Run, Stack
from edgeformer.ops.activation import activate


class Encoder(Stack):
    """A stack of bidirectional blocks, and an optional head over its states."""

    def __init__(self, config: EncoderConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.config = config
        self.causal = any(attention.causal for attention in config.attentions)
        hidden = config.hidden_size
        if config.token_types:
            self.token_type_embedding = nn.Embedding(config.token_types, config.embedding_width, dtype=dtype)
        if config.embedding_size is not None:
            self.embedding_projection = nn.Linear(config.embedding_size, hidden, dtype=dtype)
        if config.audio is not None:
            self.stem = ConvolutionalStem(config.audio, hidden, dtype)
        match config.head:
            case MaskedLMHead() as head:
                self.masked_lm = MaskedLM(head, hidden, self.embedding, dtype)
            case ClassificationHead() as head:
                self.classifier = Classifier(head, hidden, dtype)
            case QuestionAnsweringHead():
                self.answer_span = nn.Linear(hidden, 2, dtype=dtype)
            case PoolingHead() as head:
                self.pooler = Pooler(head, hidden, dtype)

    def forward(
        self, inputs: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the last states [B, S, E] and, if there is a head, its output.

        A masked-LM head returns logits [B, S, V], a classification head [B, labels] or [B, S, labels], a
        question-answering head [B, S, 2], a pooling head an embedding [B, D].

        Args:
            inputs: token ids int64 [B, S], or a log-mel spectrogram [B, mel_bins, 2·S].
            attention_mask: int64 [B, S]; every row is ones, then zeros. None: all ones. In a causal model, rows may
                also be zeros, then ones, as the tokenizers of decoders pad.
            token_type_ids: int64 [B, S], if the model has several token types.
        """
        if not self.causal:
            return self._forward(inputs, attention_mask, token_type_ids)
        # A causal attention op takes the first slots of a row for its tokens: padding moves behind them, and back.
        assert attention_mask is not None and token_type_ids is None
        padding = (attention_mask.cumsum(1) == 0).sum(1, keepdim=True)  # [B, 1]: in front of the text
        outputs = self._forward(_rotated(inputs, padding), _rotated(attention_mask, padding))
        return tuple(_rotated(output, output.shape[1] - padding) if output.ndim == 3 else output for output in outputs)

    def _forward(
        self, inputs: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return what `forward` does; every row of attention_mask is ones, then zeros."""
        states = self.encode(inputs, attention_mask, token_type_ids)
        match self.config.head:
            case None:
                return (states,)
            case MaskedLMHead():
                return states, self.masked_lm(states)
            case ClassificationHead(pooling=None):
                return states, self.classifier(states)
            case ClassificationHead(pooling=pooling, skipped_token=skipped):
                assert attention_mask is not None and pooling is not None
                if skipped is not None:
                    attention_mask = attention_mask * (inputs != skipped)
                return states, self.classifier(pool(states, attention_mask, pooling))
            case QuestionAnsweringHead():
                return states, self.answer_span(states)
            case PoolingHead():
                assert attention_mask is not None
                return states, self.pooler(states, attention_mask)

    def encode(
        self, inputs: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the last states [B, S, E] without the head; arguments are those of `forward`."""
        x = self.stem(inputs) if self.config.audio is not None else self.embed_tokens(inputs)
        if self.config.token_types == 1:
            token_type_ids = torch.zeros(1, 1, dtype=torch.int64, device=x.device)  # the same for all tokens
        if token_type_ids is not None:
            x = x + self.token_type_embedding(token_type_ids)
        batch, length, _ = x.shape
        places = torch.arange(length, device=x.device).unsqueeze(0)  # [1, S]: padding is on the right
        x = self.embedding_norm(self.add_positions(x, places))
        if self.config.embedding_size is not None:
            x = self.embedding_projection(x)
        if attention_mask is None:
            attention_mask = torch.ones(batch, length, dtype=torch.int64, device=x.device)
        # Rotations are by the positions of the attention op, so that they can be folded into it.
        positions = ops.token_positions(attention_mask, attention_mask) if self.shared.rotaries else places
        run = Run(
            attention_mask=attention_mask,
            positions=positions,
            key_positions=places,
            biases=self.shared_biases(places, places, x.dtype),
            relations=self.shared_relations(places, places),
        )
        for index in range(len(self.blocks)):
            x, _ = self.run_block(index, x, (), run)
        states: Tensor = self.final_norm(x)
        return states


def _rotated(rows: Tensor, by: Tensor) -> Tensor:
    """Return rows [B, S, …], each rotated to the left by as many slots as by, int64 [B, 1] of 0 to S, says."""
    batch, length = rows.shape[:2]
    slots = torch.arange(length, device=rows.device) + by  # [B, S]
    slots = torch.where(slots < length, slots, slots - length)
    starts = torch.arange(batch, device=rows.device).unsqueeze(1) * length
    return rows.flatten(0, 1).index_select(0, (slots + starts).flatten()).view(rows.shape)


class ConvolutionalStem(nn.Module):
    """The convolutions that `AudioStem` describes."""

    def __init__(self, config: AudioStem, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.first = nn.Conv1d(config.mel_bins, hidden_size, 3, padding=1, dtype=dtype)
        self.second = nn.Conv1d(hidden_size, hidden_size, 3, stride=2, padding=1, dtype=dtype)

    def forward(self, features: Tensor) -> Tensor:
        """Return the states [B, frames / 2, E] of a spectrogram [B, mel_bins, frames]."""
        return F.gelu(self.second(F.gelu(self.first(features)))).transpose(1, 2)


class MaskedLM(nn.Module):
    """The head that `MaskedLMHead` describes."""

    def __init__(self, config: MaskedLMHead, hidden_size: int, embedding: nn.Embedding, dtype: torch.dtype):
        super().__init__()
        self.config = config
        vocab_size, width = embedding.weight.shape
        if config.activation is not None:
            self.dense = nn.Linear(hidden_size, width, bias=config.dense_bias, dtype=dtype)
        self.norm = make_norm(config.norm, width, dtype=dtype)
        self.output = nn.Linear(width, vocab_size, bias=config.bias, dtype=dtype)
        if config.tied:
            self.output.weight = embedding.weight

    def forward(self, states: Tensor) -> Tensor:
        """Return logits [B, S, V] of states [B, S, E]."""
        if self.config.activation is not None:
            states = self.norm(activate(self.config.activation, self.dense(states)))
        logits: Tensor = self.output(states)
        return logits


class Classifier(nn.Module):
    """The head that `ClassificationHead` describes, without its pooling."""

    def __init__(self, config: ClassificationHead, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        if config.dense is not None:
            self.dense = nn.Linear(hidden_size, hidden_size, bias=config.dense_bias, dtype=dtype)
        self.norm = make_norm(config.norm, hidden_size, dtype=dtype)
        self.output = nn.Linear(hidden_size, len(config.labels), bias=config.bias, dtype=dtype)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits […, labels] of states […, E]."""
        if self.config.dense is not None:
            states = self.norm(activate(self.config.dense, self.dense(states)))
        logits: Tensor = self.output(states)
        return logits


class Pooler(nn.Module):
    """The head that `PoolingHead` describes."""

    def __init__(self, config: PoolingHead, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        sizes = pairwise(config.widths(hidden_size))
        self.layers = nn.ModuleList(
            PooledLayer(layer, width, dtype) for layer, (width, _) in zip(config.layers, sizes, strict=True)
        )

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the embedding [B, D] of states [B, S, E]; attention_mask: int64 [B, S] with 0 for padding."""
        pooled = [pool(states, attention_mask, pooling) for pooling in self.config.poolings]
        x = torch.cat(pooled, -1) if len(pooled) > 1 else pooled[0]
        for layer in self.layers:
            x = layer(x)
        return normalized(x) if self.config.normalize else x


class PooledLayer(nn.Module):
    """The layer that `PoolingLayer` describes."""

    def __init__(self, config: PoolingLayer, width: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.linear = nn.Linear(width, config.size, bias=config.bias, dtype=dtype)
        if config.residual and width != config.size:
            self.residual = nn.Linear(width, config.size, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, size] of [B, width]."""
        y: Tensor = activate(self.config.activation, self.linear(x))
        if not self.config.residual:
            return y
        return y + (self.residual(x) if hasattr(self, "residual") else x)


def pool(states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """Return the vectors [B, E] of states [B, S, E], as `Pooling` says.

    attention_mask: int64 [B, S], with 0 for tokens whose states count for nothing: padding, behind the others.
    """
    if pooling == "first":
        return states[:, 0]
    valid = attention_mask.unsqueeze(-1)  # [B, S, 1]
    count = valid.sum(1)  # [B, 1]
    if pooling == "last":
        numbers = torch.arange(states.shape[1], device=states.device).unsqueeze(-1)  # [S, 1]
        places = (numbers * valid).amax(1, keepdim=True).expand(-1, -1, states.shape[-1])  # [B, 1, E]
        return states.gather(1, places).squeeze(1)
    if pooling == "max":
        return states.masked_fill(valid == 0, torch.finfo(states.dtype).min).amax(1)
    states = states.masked_fill(valid == 0, 0)
    if pooling == "weighted_mean":
        # In float32, because the sum of the weights of 512 tokens is beyond float16.
        weights = valid.cumsum(1).to(torch.promote_types(states.dtype, torch.float32)) * valid
        return (states * (weights / weights.sum(1, keepdim=True)).to(states.dtype)).sum(1)
    divisor = count.to(states.dtype)
    return states.sum(1) / (divisor.sqrt() if pooling == "mean_sqrt" else divisor)


def normalized(vectors: Tensor) -> Tensor:
    """Return vectors [B, E] divided by their L2 norms, as torch.nn.functional.normalize does."""
    least = max(1e-12, torch.finfo(vectors.dtype).tiny)  # torch's 1e-12 is zero in float16
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=least)
