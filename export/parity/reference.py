"""The reference: our eager PyTorch module over given weights, in any precision, with one block in memory at a time."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from edgeformer.config import ModelConfig
from edgeformer.layers import Cache
from edgeformer.models import Decoder, decoder_constants

# Rows of the embedding that the head multiplies with at once: float64 copies of a large vocabulary would not fit.
VOCABULARY_CHUNK = 8192


class Reference:
    """A decoder whose parameters are read from `weights` when they are needed and let go after.

    In float64 it is what graphs are measured by; in the graph's own precision it shows what rounding alone does.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float64):
        with torch.device("meta"):
            self._decoder = Decoder(config, dtype)
        self._config = config
        self._weights = weights
        self._dtype = dtype
        for name, value in decoder_constants(config).items():
            table, _, last = name.rpartition(".")
            value = value.to(dtype) if value.is_floating_point() else value
            setattr(self._decoder.get_submodule(table), last, value)

    @torch.no_grad()
    def run(self, input_ids: Tensor, past: Callable[[int], Cache] | None = None) -> tuple[Tensor, list[Cache]]:
        """Logits after every token, [B, S, V], and the present caches, for texts of equal length int64 [B, S].

        past: keys and values of a layer before the text; by default none. Attention is causal, so the logits of a
        prefix are a prefix of the logits.
        """
        batch, length = input_ids.shape
        geometry = self._config.cache_geometry
        empty = torch.empty(batch, geometry.num_kv_heads, 0, geometry.head_dim, dtype=self._dtype)
        before = past or (lambda layer: (empty, empty))
        total = length + before(0)[0].shape[2]
        attention_mask = torch.ones(batch, total, dtype=torch.int64)
        distinct, renamed = input_ids.unique(return_inverse=True)
        with (
            self._loaded("embedding", rows=distinct),
            self._loaded("position_embedding"),
            self._loaded("embedding_norm"),
            self._loaded("relative"),
        ):
            x, run = self._decoder.embed(renamed, attention_mask)
        presents = []
        for index in range(geometry.num_layers):
            key, value = before(index)
            with self._loaded(f"blocks.{index}"):
                cache = key.to(self._dtype), value.to(self._dtype)
                x, present = self._decoder.run_block(index, x, cache, run)
            if past is None:
                presents.append(present)
        head = "embedding" if self._config.tied_head else "head"
        logits = []
        with self._loaded("final_norm"):
            for rows in torch.arange(self._config.vocab_size).split(VOCABULARY_CHUNK):
                with self._loaded(head, rows=rows):
                    logits.append(self._decoder.unembed(x))
        return torch.cat(logits, -1), presents

    @contextmanager
    def _loaded(self, name: str, rows: Tensor | None = None) -> Iterator[None]:
        """Give one submodule, if there is one, its parameters (or only `rows` of them) for a while."""
        module = self._decoder.get_submodule(name) if hasattr(self._decoder, name.partition(".")[0]) else nn.Module()
        parameters = dict(module.named_parameters())
        for parameter in parameters:
            value = self._weights[f"{name}.{parameter}"]
            value = (value if rows is None else value[rows]).to(self._dtype)
            _replace(module, parameter, nn.Parameter(value, requires_grad=False))
        try:
            yield
        finally:
            for parameter, empty in parameters.items():
                _replace(module, parameter, empty)


def _replace(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, last = name.rpartition(".")
    setattr(module.get_submodule(owner), last, parameter)


class Rounded(Mapping[str, Tensor]):
    """Weights as a graph stores them: rounding them is the user's choice of precision, not an error of the graph."""

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype):
        self._weights = weights
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name].to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
