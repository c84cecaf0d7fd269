"""Decoder: a causal language model, or the decoder of an encoder-decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.config import DecoderConfig, RotaryConfig
from edgeformer.layers import Cache, LayerCache
from edgeformer.layers.layer_input import LayerInputs
from edgeformer.layers.mtp import MultiTokenPrediction
from edgeformer.layers.position import TokenAngles, angles_by_length
from edgeformer.layers.residual import StreamProjections
from edgeformer.models.stack import Run, Stack


class Decoder(Stack):
    """A stack and a head. The weight of a tied head is the parameter of the embedding.

    Args:
        source_size: width of the encoder's states; 0 without cross-attention.
    """

    def __init__(self, config: DecoderConfig, dtype: torch.dtype = torch.float32, source_size: int = 0):
        super().__init__(config, dtype, source_size)
        self.config = config
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias, dtype=dtype)
        embedding, altup = config.per_layer_embedding, config.blocks[0].altup
        if embedding is not None:
            sizes = len(config.blocks), config.hidden_size, config.vocab_size
            self.per_layer_embedding = LayerInputs(embedding, *sizes, dtype)
        if altup is not None:
            self.streams = StreamProjections(altup.streams, config.hidden_size, dtype)
            self.merged_streams = StreamProjections(altup.streams, config.hidden_size, dtype)
        if config.mtp is not None:
            self.mtp = MultiTokenPrediction(config.mtp, config.hidden_size, dtype)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        caches: Sequence[LayerCache],
        encoder_caches: Sequence[Cache] = (),
        source_mask: Tensor | None = None,
        request_length: Tensor | None = None,
    ) -> tuple[Tensor, list[LayerCache]]:
        """Return logits [B, S, V] and, per block, what it keeps, such as key and value, each [B, K, T, D].

        Args:
            input_ids: the new tokens, int64 [B, S].
            attention_mask: int64 [B, T]; every row is ones, then zeros.
            caches: what each block keeps of the past, in the order of `BlockConfig.states`: key and value, each
                [B, K, P, D], and states of fixed size; () for a block that keeps nothing.
            encoder_caches: for cross-attention, key and value of each block, each [B, H, source, D].
            source_mask: for cross-attention, int64 [B, source] with 0 for padding.
            request_length: the most tokens that each row will have, int64 [B or 1], where rotary embeddings depend on
                it; None for T.
        """
        x, run = self._begin_request(input_ids, attention_mask, source_mask, request_length)
        return self.run_blocks(x, run, caches, encoder_caches)

    def forward_with_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        caches: Sequence[LayerCache],
        request_length: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, list[LayerCache]]:
        """Return logits [B, S, V], the states that drafts are made from [B, S, E], and per block what it keeps.

        These states are what the head reads, or what the final norm reads where `MTPConfig.normalized` is false.
        """
        x, run = self._begin_request(input_ids, attention_mask, None, request_length)
        x, presents = self._through_blocks(x, run, caches)
        states = self.final_states(x)
        normalized = self.config.mtp is None or self.config.mtp.normalized
        return self.logits_of(states), states if normalized else x, presents

    def predict(
        self, input_ids: Tensor, attention_mask: Tensor, states: Tensor, caches: Sequence[LayerCache]
    ) -> tuple[Tensor, Tensor, list[LayerCache]]:
        """Run the layer that drafts tokens; return its logits [B, S, V], its states [B, S, E] and its present cache.

        input_ids: int64 [B, S], the tokens behind those of `states` [B, S, E]. attention_mask: int64 [B, T] of the
        layer's own tokens. caches: what it keeps of these, of a single block.
        """
        config = self.config.mtp
        assert config is not None and config.block.attention is not None
        positions, key_positions = ops.token_positions(attention_mask, input_ids), ops.key_positions(attention_mask)
        x = self.embed_tokens(input_ids)
        run = Run(attention_mask, positions, key_positions, self.shared_biases(positions, key_positions, x.dtype))
        context = self._attention_context(config.block.attention, run)
        predicted, present = self.mtp(x, states.to(x.dtype), caches[0], context)
        return self.logits_of(self.mtp.head_states(predicted)), predicted, [present]

    def _begin_request(
        self, input_ids: Tensor, attention_mask: Tensor, source_mask: Tensor | None, request_length: Tensor | None
    ) -> tuple[Tensor, Run]:
        x, run = self.embed(input_ids, attention_mask, source_mask)
        if self.config.short_context is not None:
            if request_length is None:
                request_length = torch.tensor([attention_mask.shape[1]])
            run.angles.update(self.angles_by_length(run.positions, request_length))
        return x, run

    def angles_by_length(self, positions: Tensor, request_length: Tensor) -> dict[RotaryConfig, TokenAngles]:
        """Return the angles of tokens by the rotary embeddings that turn long requests by other factors."""
        return {
            rotary: angles_by_length(self.rotary_table(rotary), positions, request_length, rotary.long.above)
            for rotary in self.shared.rotaries
            if rotary.long is not None
        }

    def run_blocks(
        self,
        x: Tensor,
        run: Run,
        caches: Sequence[LayerCache],
        encoder_caches: Sequence[Cache] = (),
        added: Sequence[Tensor] = (),
    ) -> tuple[Tensor, list[LayerCache]]:
        """Return what `forward` returns, of what `embed` returns.

        added: states [B, S, E] that are added behind the first blocks, one for each.
        """
        x, presents = self._through_blocks(x, run, caches, encoder_caches, added)
        return self.unembed(x), presents

    def _through_blocks(
        self,
        x: Tensor,
        run: Run,
        caches: Sequence[LayerCache],
        encoder_caches: Sequence[Cache] = (),
        added: Sequence[Tensor] = (),
    ) -> tuple[Tensor, list[LayerCache]]:
        """Return what the last block makes of x, and what each block keeps."""
        presents: list[LayerCache] = []
        for index, past in enumerate(caches):
            attention = self.config.blocks[index].attention
            shared = None if attention is None or attention.shares is None else presents[attention.shares][:2]
            encoder_cache = encoder_caches[index] if encoder_caches else None
            x, present = self.run_block(index, x, (*(shared or ()), *past), run, encoder_cache)
            presents.append(present)
            if index < len(added):
                x = x + added[index]
        return x, presents

    def embed(self, input_ids: Tensor, attention_mask: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Run]:
        """Return the embeddings of tokens and positions, and the inputs that all blocks share.

        Embeddings are [B, S, E], or [B, S, N, E] for the residual streams of AltUp.
        """
        return self.begin(self.embed_tokens(input_ids), input_ids, attention_mask, source_mask)

    def begin(
        self,
        x: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor,
        source_mask: Tensor | None = None,
        layer_rows: Tensor | None = None,
    ) -> tuple[Tensor, Run]:
        """Return what `embed` returns, of embeddings x [B, S, E] of the tokens.

        input_ids: these, or x where there are none. layer_rows: [B, S, layers · size], the rows of tokens in the table
            of the per-layer embedding, where there are no tokens to read them of.
        """
        positions = ops.token_positions(attention_mask, input_ids)
        x = self.embedding_norm(self.add_positions(x, positions))
        key_positions = ops.key_positions(attention_mask)
        biases = self.shared_biases(positions, key_positions, x.dtype)
        recurrent = any(block.recurrent is not None for block in self.config.blocks)
        token_mask = ops.token_mask(attention_mask, input_ids) if recurrent else None
        layer_inputs = None
        if self.config.per_layer_embedding is not None:
            embedding = self.per_layer_embedding
            if layer_rows is None:
                layer_inputs = embedding(input_ids, x)
            else:
                layer_inputs = embedding.added(embedding.projected(x), layer_rows)
        run = Run(attention_mask, positions, key_positions, biases, source_mask, token_mask, layer_inputs=layer_inputs)
        return (x if self.config.blocks[0].altup is None else self.streams(x)), run

    def unembed(self, x: Tensor) -> Tensor:
        """Apply the final norm and the head: x [B, S, E], or streams [B, S, N, E] → logits [B, S, V]."""
        return self.logits_of(self.final_states(x))

    def final_states(self, x: Tensor) -> Tensor:
        """Apply the final norm: x [B, S, E], or streams [B, S, N, E] → states [B, S, E]."""
        if self.config.blocks[0].altup is not None:
            x = self.merged_streams(x).mean(2)
        states: Tensor = self.final_norm(x)
        return states

    def logits_of(self, states: Tensor) -> Tensor:
        """Apply the head: states [B, S, E] → logits [B, S, V]."""
        logits: Tensor = self.head(states)
        if self.config.logit_scale != 1:
            logits = logits * self.config.logit_scale
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
