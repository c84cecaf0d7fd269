"""A language model: alone, or reading the states of an encoder."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.config import DecoderConfig
from edgeformer.layers import Cache
from edgeformer.models.stack import Run, Stack


class Decoder(Stack):
    """A stack and a head. A tied head is the embedding under a second name."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype = torch.float32, source_size: int = 0):
        super().__init__(config, dtype, source_size)
        self.config = config
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias, dtype=dtype)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        caches: Sequence[Cache],
        sources: Sequence[Cache] = (),
        source_mask: Tensor | None = None,
    ) -> tuple[Tensor, list[Cache]]:
        """The forward contract of a decoder.

        input_ids int64 [B, S], attention_mask int64 [B, T], caches: past (key, value) of each block, [B, K, P, D]
        → logits [B, S, V] and the present caches, [B, K, T, D]. Where blocks read an encoder, sources are its keys and
        values for each of them, [B, H, source, D], and source_mask int64 [B, source] its padding.
        """
        x, run = self.embed(input_ids, attention_mask, source_mask)
        presents = []
        for index, past in enumerate(caches):
            x, present = self.run_block(index, x, past, run, sources[index] if sources else None)
            presents.append(present)
        return self.unembed(x), presents

    def embed(self, input_ids: Tensor, attention_mask: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Run]:
        """Embeddings of tokens and positions [B, S, E], and what the blocks of this run share."""
        positions = ops.token_positions(attention_mask, input_ids)
        x = self.embedding_norm(self.add_positions(self.embed_tokens(input_ids), positions))
        key_positions = ops.key_positions(attention_mask)
        biases = self.shared_biases(positions, key_positions, x.dtype)
        return x, Run(attention_mask, positions, key_positions, biases, source_mask)

    def unembed(self, x: Tensor) -> Tensor:
        """Final norm and head: [B, S, E] → logits [B, S, V]."""
        logits: Tensor = self.head(self.final_norm(x))
        if self.config.logit_scale != 1:
            logits = logits * self.config.logit_scale
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
