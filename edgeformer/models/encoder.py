"""Encoder: bidirectional attention over a text or a recording, and heads over its states."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.config import AudioStem, EncoderConfig, PoolingHead, TokenDropout
from edgeformer.models.heads import HEADS
from edgeformer.models.stack import Run, Stack


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
        if config.token_projection is not None:
            width = config.token_projection.size * (3 if config.token_projection.trigrams else 1)
            self.token_projection = nn.Linear(width, hidden, dtype=dtype)
        if config.audio is not None:
            self.stem = ConvolutionalStem(config.audio, hidden, dtype)
        if config.head is not None:
            self.head_name, make = HEADS[type(config.head)]
            setattr(self, self.head_name, make(config.head, hidden, self.embedding, dtype))

    def forward(
        self, inputs: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the last states [B, S, E] and the outputs of the head, in the order of `EncoderConfig.head_outputs`.

        Args:
            inputs: token ids int64 [B, S], or a log-mel spectrogram [B, mel_bins, 2·S].
            attention_mask: int64 [B, S]; every row is ones, then zeros. None: all ones. In a causal model, rows may
                also be zeros, then ones, as the tokenizers of decoders pad.
            token_type_ids: int64 [B, S], if the model has several token types.
        """
        if not self.causal:
            return self.read(inputs, attention_mask, token_type_ids)
        # A causal attention op takes the first slots of a row for its tokens: padding moves behind them, and back.
        assert attention_mask is not None and token_type_ids is None
        padding = (attention_mask.cumsum(1) == 0).sum(1, keepdim=True)  # [B, 1]: in front of the text
        outputs = self.read(_rotated(inputs, padding), _rotated(attention_mask, padding))
        per_token = (True, *(output.per_token for output in self.config.head_outputs))
        return tuple(
            _rotated(output, output.shape[1] - padding) if tokens else output
            for output, tokens in zip(outputs, per_token, strict=True)
        )

    def read(
        self, inputs: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return what `forward` does; every row of attention_mask is ones, then zeros."""
        return self.with_head(self.encode(inputs, attention_mask, token_type_ids), inputs, attention_mask)

    def with_head(self, states: Tensor, inputs: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the last states [B, S, E], and what the head makes of them."""
        if self.config.head is None:
            return (states,)
        return states, *getattr(self, self.head_name).read(states, inputs, attention_mask)

    def encode(
        self, inputs: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the last states [B, S, E] without the head; arguments are those of `forward`."""
        states: Tensor = self.final_norm(self.encode_blocks(inputs, attention_mask, token_type_ids))
        return states

    def encode_blocks(
        self, inputs: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return what `encode` does, in front of the final norm."""
        if isinstance(self.config.head, PoolingHead) and self.config.head.skips_prompt:
            inputs = torch.where(inputs < 0, -1 - inputs, inputs)
        x = self.stem(inputs) if self.config.audio is not None else self.embed_tokens(inputs)
        if self.config.token_dropout is not None:
            x = _without_masks(x, inputs, attention_mask, self.config.token_dropout)
        if self.config.token_projection is not None:
            rows = _trigrams(x, attention_mask) if self.config.token_projection.trigrams else x
            x = self.token_projection(rows)
        if self.config.token_types == 1:
            token_type_ids = torch.zeros(1, 1, dtype=torch.int64, device=x.device)  # the same for all tokens
        if token_type_ids is not None:
            x = x + self.token_type_embedding(token_type_ids)
        return self.encode_embeddings(x, attention_mask)

    def encode_embeddings(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return what `encode_blocks` does, of embeddings [B, S, E] without positions."""
        batch, length, _ = x.shape
        places = torch.arange(length, device=x.device).unsqueeze(0)  # [1, S]: padding is on the right
        x = self.embedding_norm(self.add_positions(x, places))
        if self.config.embedding_size is not None:
            x = self.embedding_projection(x)
        if attention_mask is None:
            attention_mask = torch.ones(batch, length, dtype=torch.int64, device=x.device)
        # Rotations are by the positions of the attention op, so that they can be folded into it.
        # They have none for tokens that attention does not see.
        folds = self.shared.rotaries and not self.config.reads_unattended
        positions = ops.token_positions(attention_mask, attention_mask) if folds else places
        run = Run(
            attention_mask=attention_mask,
            positions=positions,
            key_positions=places,
            biases=self.shared_biases(places, places, x.dtype),
            relations=self.shared_relations(places, places),
        )
        for index in range(len(self.blocks)):
            x, _ = self.run_block(index, x, (), run)
        return x


def _without_masks(rows: Tensor, ids: Tensor, attention_mask: Tensor | None, dropout: TokenDropout) -> Tensor:
    """Return rows [B, S, W] of tokens, zeros for masks and the others scaled by how many tokens of a text are masks."""
    masks = ids == dropout.mask_token  # [B, S]
    seen = torch.ones_like(ids) if attention_mask is None else attention_mask
    lengths = seen.sum(1).clamp(min=1).to(torch.float32)
    observed = (masks.to(torch.int64) * seen).sum(1).to(torch.float32) / lengths
    factors = ((1 - dropout.trained) / (1 - observed)).unsqueeze(1)  # [B, 1], in float32 in transformers, too
    return rows * torch.where(masks, torch.zeros_like(factors), factors).unsqueeze(-1).to(rows.dtype)


def _trigrams(rows: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return, for rows [B, S, W] of tokens, those of the next token, the token, and the one before: [B, S, 3·W]."""
    if attention_mask is not None:
        rows = rows * attention_mask.unsqueeze(-1).to(rows.dtype)  # padding is no neighbour
    places = torch.arange(rows.shape[1], device=rows.device)
    last = rows.shape[1] - 1
    after = rows.index_select(1, (places + 1).clamp(max=last)) * (places < last).unsqueeze(-1).to(rows.dtype)
    before = rows.index_select(1, (places - 1).clamp(min=0)) * (places > 0).unsqueeze(-1).to(rows.dtype)
    return torch.cat([after, rows, before], -1)


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
