"""Towers of pictures of any size that read batches of them, padded to the most patches of one."""

import torch
from torch import Tensor, nn

from edgeformer.config import NaflexVisionConfig
from edgeformer.models.pictures.table_positions import antialiased
from edgeformer.models.pictures.vision import PictureLabels, PooledAttention
from edgeformer.models.stack import Run, Stack


class NaflexVisionEncoder(Stack):
    """A stack of bidirectional blocks over the patches of pictures of any size; see `NaflexVisionConfig`."""

    def __init__(self, config: NaflexVisionConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.config = config
        hidden = config.hidden_size
        self.stem = nn.Linear(config.patches.inputs, hidden, bias=config.patches.bias, dtype=dtype)
        if config.pooler is not None:
            self.pooler = PooledAttention(config.pooler, hidden, dtype)
        if config.classifier is not None:
            self.classifier = PictureLabels(config.classifier, hidden, 0, dtype)

    def forward(self, pixel_values: Tensor, pixel_attention_mask: Tensor, spatial_shapes: Tensor) -> tuple[Tensor, ...]:
        """Return the last states [B, P, E] and what is computed of them: pooled [B, E], logits [B, labels].

        pixel_values: patches row by row, [B, P, side² · channels], in any float type. pixel_attention_mask: int64
        [B, P], ones and then zeros for padding. spatial_shapes: rows and columns of patches, int64 [B, 2].
        """
        x = self.stem(pixel_values.to(self.stem.weight.dtype)) + self._positions(spatial_shapes, pixel_values.shape[1])
        x = self.embedding_norm(x)
        places = torch.arange(x.shape[1], device=x.device).unsqueeze(0)  # [1, P]
        run = Run(attention_mask=pixel_attention_mask, positions=places, key_positions=places, biases={})
        for index in range(len(self.blocks)):
            x, _ = self.run_block(index, x, (), run)
        outputs = [self.final_norm(x)]
        if self.config.pooler is not None:
            outputs.append(self.pooler(outputs[0], pixel_attention_mask))
        if self.config.classifier is not None:
            outputs.append(self.classifier(outputs[0], pixel_attention_mask))
        return tuple(outputs)

    def _positions(self, shapes: Tensor, length: int) -> Tensor:
        """Return the learned positions of patches, [B, P, E]: the borders of the table are those of the picture."""
        side, dtype = self.config.table_side, self.stem.weight.dtype
        rows, columns = shapes[:, :1], shapes[:, 1:]  # [B, 1]
        numbers = torch.arange(length, device=shapes.device).unsqueeze(0)
        # Padding has the last row, so that no weights of it are divided by zero.
        row, column = torch.minimum(numbers // columns, rows - 1), numbers % columns
        wide = torch.promote_types(dtype, torch.float32)  # half precision has no room for the products
        down, right = (antialiased(*each, side, wide) for each in ((row, rows), (column, columns)))  # [B, P, side]
        parts = (down.unsqueeze(3) * right.unsqueeze(2)).flatten(2).to(dtype)
        table: Tensor = self.position_embedding(torch.arange(side**2, device=shapes.device))
        return parts @ table
