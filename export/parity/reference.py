"""The reference: our eager PyTorch module over given weights, in any precision, with one block in memory at a time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from edgeformer.config import ModelConfig
from edgeformer.models import Decoder, decoder_constants

# Rows of the embedding that the head multiplies with at once: float64 copies of a large vocabulary would not fit.
VOCABULARY_CHUNK = 8192


class Reference:
    """A decoder whose parameters are read from `weights` when they are needed and let go after."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float64):
        with torch.device("meta"):
            self._decoder = Decoder(config, dtype)
        self._config = config
        self._weights = weights
        self._dtype = dtype
        for name, value in decoder_constants(config).items():
            table, _, last = name.rpartition(".")
            setattr(self._decoder.get_submodule(table), last, value.to(dtype))

    @torch.no_grad()
    def logits(self, input_ids: Tensor) -> Tensor:
        """Logits after every token of texts of equal length: int64 [B, S] → [B, S, V].

        Attention is causal, so a shorter text padded on the right has the same logits up to its end.
        """
        batch, length = input_ids.shape
        geometry = self._config.cache_geometry
        empty = torch.empty(batch, geometry.num_kv_heads, 0, geometry.head_dim, dtype=self._dtype)
        attention_mask = torch.ones(batch, length, dtype=torch.int64)
        distinct, renamed = input_ids.unique(return_inverse=True)
        with self._loaded("embedding", rows=distinct):
            x, positions = self._decoder.embed(renamed, attention_mask)
        for index in range(geometry.num_layers):
            with self._loaded(f"blocks.{index}"):
                x, _ = self._decoder.run_block(index, x, attention_mask, (empty, empty), positions)
        head = "embedding" if self._config.tied_head else "head"
        logits = []
        with self._loaded("final_norm"):
            for rows in torch.arange(self._config.vocab_size).split(VOCABULARY_CHUNK):
                with self._loaded(head, rows=rows):
                    logits.append(self._decoder.unembed(x))
        return torch.cat(logits, -1)

    @contextmanager
    def _loaded(self, name: str, rows: Tensor | None = None) -> Iterator[None]:
        """Give one submodule its parameters (or only `rows` of its weight) for a while."""
        module = self._decoder.get_submodule(name)
        for parameter, _ in list(module.named_parameters()):
            value = self._weights[f"{name}.{parameter}"]
            value = (value if rows is None else value[rows]).to(self._dtype)
            owner, _, last = parameter.rpartition(".")
            setattr(module.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
        try:
            yield
        finally:
            module.to("meta")
