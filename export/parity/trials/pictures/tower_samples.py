"""Pictures of noise for the trials of towers, and what graphs and modules read of them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from edgeformer.config import PictureTower
from edgeformer.contract.tensors import PATCH_MASK
from edgeformer.export.parity.trials.protocol import Array
from edgeformer.runtime.tasks.vision.tower_inputs import tower_inputs

PADDING = 3.0
"""Standard deviation of the noise in padding, which must have no part in what is computed."""


class TowerSamples:
    """Makes pictures that a tower reads: of one size, or of the sizes that its config has to try it with."""

    def __init__(self, tower: PictureTower):
        self._tower = tower

    def picture(self, salt: int) -> Array:
        """Return a picture of noise, as large as normalized pixels are, in the form that the runtime's reader has."""
        if self._tower.kind == "vision":
            patches = self._tower.patches
            shape = patches.channels, patches.height, patches.width
        else:
            grid = self._tower.padded_grids[salt % len(self._tower.padded_grids)]
            shape = grid.rows, grid.columns, self._tower.patches.inputs
        return np.random.default_rng(salt).standard_normal(shape, np.float32)

    def feeds(self, pictures: Sequence[Array]) -> dict[str, Array]:
        """Return the inputs of a graph for a batch, padded with noise where the runtime pads with zeros."""
        found = tower_inputs(self._tower, pictures)
        if PATCH_MASK in found:
            noise = np.random.default_rng(0).standard_normal(found["pixel_values"].shape, np.float32)
            found["pixel_values"] += PADDING * noise * (found[PATCH_MASK] == 0)[..., None]
        return found

    def tensors(self, *pictures: Array) -> list[Tensor]:
        """Return the inputs of a module, which are not made by what the runtime feeds to graphs."""
        parts = [torch.from_numpy(each) for each in pictures]
        if self._tower.kind == "vision":
            return [torch.stack(parts)]
        counts = torch.tensor([each.shape[0] * each.shape[1] for each in parts])
        values = pad_sequence([each.flatten(0, 1) for each in parts], batch_first=True)
        mask = (torch.arange(values.shape[1]) < counts.unsqueeze(1)).to(torch.int64)
        return [values, mask, torch.tensor([each.shape[:2] for each in parts])]
