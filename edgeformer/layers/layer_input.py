"""Embeddings per layer: all inputs of blocks, and the branch of a block that reads its own."""

import torch
from torch import Tensor, nn

from edgeformer.config import LayerInputConfig, PerLayerEmbedding
from edgeformer.layers.norm import make_norm
from edgeformer.ops.activation import activate


class LayerInputs(nn.Module):
    """The inputs of all blocks of a decoder; see `PerLayerEmbedding`."""

    def __init__(
        self, config: PerLayerEmbedding, num_layers: int, hidden_size: int, vocab_size: int, dtype: torch.dtype
    ):
        super().__init__()
        self.config, self.num_layers, self.whole = config, num_layers, config.rows >= vocab_size
        width = num_layers * config.size
        self.embedding = nn.Embedding(config.rows, width, dtype=dtype)
        self.projection = nn.Linear(hidden_size, width, bias=False, dtype=dtype)
        self.norm = make_norm(config.norm, config.size, dtype=dtype)

    def forward(self, input_ids: Tensor, x: Tensor) -> Tensor:
        """Return the inputs [B, S, layers, size] of input_ids int64 [B, S] with the embeddings x [B, S, E]."""
        rows = self.places(input_ids)
        projected = self.projected(x)
        return self.added(projected, self.embedding(rows))

    def places(self, input_ids: Tensor) -> Tensor:
        """Return the places of tokens in the table."""
        return input_ids if self.whole else torch.where(input_ids < self.config.rows, input_ids, 0)

    def projected(self, x: Tensor) -> Tensor:
        """Return the part [B, S, layers, size] that follows from embeddings x [B, S, E]."""
        shape = *x.shape[:-1], self.num_layers, self.config.size
        normed: Tensor = self.norm((self.projection(x) * x.shape[-1] ** -0.5).view(shape))
        return normed

    def added(self, projected: Tensor, rows: Tensor) -> Tensor:
        """Return the inputs of their part that follows from embeddings, and rows of the table [B, S, layers · size]."""
        return (projected + rows.view(projected.shape) * self.config.size**0.5) * 0.5**0.5


class LayerInput(nn.Module):
    """The branch of a block that reads its input; see `LayerInputConfig`."""

    def __init__(self, config: LayerInputConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.gate = nn.Linear(hidden_size, config.size, bias=False, dtype=dtype)
        self.projection = nn.Linear(config.size, hidden_size, bias=False, dtype=dtype)
        self.norm = make_norm(config.norm, hidden_size, dtype=dtype)

    def forward(self, x: Tensor, layer_input: Tensor) -> Tensor:
        """Return what is added to x [B, S, E]; layer_input: [B, S, size]."""
        normed: Tensor = self.norm(self.projection(activate(self.config.activation, self.gate(x)) * layer_input))
        return normed
