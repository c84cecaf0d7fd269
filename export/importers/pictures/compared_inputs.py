"""Pictures and texts for the comparison of models that read both: what their modules and transformers' are run on."""

import numpy as np
import torch
from torch import Tensor

from edgeformer.checkpoints.source import ModelSource
from edgeformer.config import GridVisionConfig, PictureTextConfig
from edgeformer.models.compared import PLACEHOLDER
from edgeformer.runtime.media.pictures.kinds import new_processor
from edgeformer.runtime.media.pictures.positions import picture_spans, positions_of
from edgeformer.runtime.media.pictures.processor import Processor


def pictures_in_text(source: ModelSource, config: PictureTextConfig, text: Tensor) -> list[Tensor] | None:
    """Return three pictures of noise, and a text [1, N] with them: two at its beginning and one at its end.

    Where the states of tiles are put together, there are two, with their sizes and how that is done (`Packing`). Of
    pictures of any size there are also the rows and columns of patches [3, 3], and positions [3, 1, N] if these have
    axes; a token is between them, since transformers takes pictures that touch for one. None where config.json names no
    token that stands for a picture.
    """
    assert source.pictures is not None, "every such model has a processor"
    generator, vision = torch.Generator().manual_seed(1), config.vision
    placeholders = (source.hf_config.get(name) for name in ("image_token_id", "image_token_index"))
    placeholder = next((each for each in placeholders if isinstance(each, int)), None)
    if placeholder is None:
        return None
    text = torch.where(text == placeholder, (text + 1) % config.vocab_size, text)
    if vision.kind == "grid_vision":
        sizes = picture_sizes(vision)
        grids = torch.tensor([[1, rows * vision.square, columns * vision.square] for rows, columns in sizes])
        pixels = torch.randn(int(grids.prod(1).sum()), vision.patches.inputs, generator=generator).double()
        pictures = [torch.full((1, rows * columns), PLACEHOLDER) for rows, columns in sizes]
        text = torch.cat((pictures[0], text[:, :1], pictures[1], text[:, 1:], pictures[2]), 1)
        spans = picture_spans(text[0].tolist(), PLACEHOLDER, sizes)
        positions = torch.from_numpy(positions_of(text.shape[1], spans)).unsqueeze(1)
        return [pixels, text, grids, *([] if config.axes is None else [positions])]
    processor, count = new_processor(source.pictures), config.picture_tokens
    assert count is not None, "of pictures of one size"
    if processor.packing(*SIZES[0]) is not None:
        return _packed_in_text(count, processor, text)
    patches, batch = vision.patches, (1, 3) if config.tiled else (3,)
    pixels = torch.randn(*batch, patches.channels, patches.height, patches.width, generator=generator).double()
    picture = torch.full((1, count), PLACEHOLDER)
    # transformers takes pictures side by side for one, where their states attend to each other.
    between = [text[:, :1]] if config.bidirectional == "pictures" else []
    if config.bidirectional == "prompt":
        return [pixels, torch.cat((picture, picture, picture, text), 1)]
    return [pixels, torch.cat((picture, *between, picture, text, picture), 1)]


def picture_sizes(vision: GridVisionConfig) -> list[tuple[int, int]]:
    """Return rows and columns of squares of three pictures: beyond a window on both sides, within one, a line."""
    side = WINDOW if vision.attention_windows is None else vision.attention_windows.squares
    return [(side + 1, side + 2), (2, 3), (1, 2 * side + 1)]


WINDOW = 3
"""Squares of a side of a window, where there is none."""
SIZES = ((61, 97), (97, 61))
"""Height and width of pictures whose tiles are put together."""


def _packed_in_text(count: int, processor: Processor, text: Tensor) -> list[Tensor]:
    """Return two pictures in tiles, a text with them, their sizes, and how the states of the tiles are put together.

    count: states of a tile.

    Where there is a limit of states, what `_packed_beyond` returns follows.
    """
    noise = np.random.default_rng(1)
    values = [processor.values(noise.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]
    most = max(map(len, values))  # transformers reads as many tiles of each, of which those behind the last are zero
    pixels = torch.stack([torch.from_numpy(np.pad(each, [(0, most - len(each)), *[(0, 0)] * 3])) for each in values])
    packings = [packing for packing in (processor.packing(*size) for size in SIZES) if packing is not None]
    taps = max(packing.rows.shape[1] for packing in packings)
    rows = [
        np.pad(packing.rows, ((0, 0), (0, taps - packing.rows.shape[1]))) + index * most * count
        for index, packing in enumerate(packings)
    ]
    weights = [np.pad(packing.weights, ((0, 0), (0, taps - packing.rows.shape[1]))) for packing in packings]
    first, second = (torch.full((1, len(each)), PLACEHOLDER) for each in rows)
    together = (torch.from_numpy(np.concatenate(each)) for each in (rows, weights))
    inputs = [pixels.double(), torch.cat((first, text, second), 1), torch.tensor(SIZES), *together]
    return inputs if processor.limit is None else [*inputs, *_packed_beyond(count, processor, processor.limit)]


def _packed_beyond(count: int, processor: Processor, size: tuple[int, int]) -> list[Tensor]:
    """Return short random states of tiles, the size of a picture of so many that they are interpolated, and how."""
    packing = processor.packing(*size)
    assert packing is not None
    generator = torch.Generator().manual_seed(2)
    tiles = 1 + int(packing.rows.max()) // count
    states = torch.randn(tiles, count, 3, generator=generator, dtype=torch.float64)
    states[:, -1] = states[0, -1]  # the newline
    return [states, torch.tensor(size), torch.from_numpy(packing.rows), torch.from_numpy(packing.weights)]
