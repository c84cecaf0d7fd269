"""Pictures and texts for the comparison of models that read both: what their modules and transformers' are run on."""

import numpy as np
import torch
from torch import Tensor

from edgeformer.checkpoints.source import ModelSource
from edgeformer.config import SoundTextConfig, TowerTextConfig
from edgeformer.models.pictures.comparison import PLACEHOLDER, BeyondLimit, Packed, PicturesInText
from edgeformer.runtime.media.pictures.positions import picture_spans, positions_of
from edgeformer.runtime.media.pictures.processors import new_processor
from edgeformer.runtime.media.pictures.processors.processor import Packing, Processor


def pictures_in_text(source: ModelSource, config: TowerTextConfig, text: Tensor) -> PicturesInText | None:
    """Return pictures of noise, and a text [1, N] with them: one or two at its beginning and one at its end.

    None where config.json names no token that stands for a picture.
    """
    assert source.pictures is not None, "every such model has a processor"
    placeholders = (source.hf_config.get(name) for name in ("image_token_id", "image_token_index"))
    placeholder = next((each for each in placeholders if isinstance(each, int)), None)
    if placeholder is None:
        return None
    text = torch.where(text == placeholder, (text + 1) % config.vocab_size, text)
    processor = new_processor(source.pictures)
    if config.picture_tokens is None:
        return _any_size(config, processor, text)
    if processor.packing(*SIZES[0]) is not None:
        return _packed(config.picture_tokens, processor, text)
    return _one_size(config, config.picture_tokens, text)


def _any_size(config: TowerTextConfig, processor: Processor, text: Tensor) -> PicturesInText:
    """Return three pictures of any size; a token is between them, since transformers takes pictures that touch for one.

    That is where positions have axes.
    """
    generator, side = torch.Generator().manual_seed(1), config.projector.side  # of a square, in patches
    sizes = [(grid.rows, grid.columns) for grid in config.tower.sample_grids]
    counts, numbers = zip(*map(config.tower.values_shape, config.tower.sample_grids), strict=True)
    grids = torch.tensor([[1, rows * side, columns * side] for rows, columns in sizes])
    pixels = torch.randn(sum(counts), numbers[0], generator=generator).double()
    states = [torch.full((1, rows * columns), PLACEHOLDER) for rows, columns in sizes]
    text = torch.cat((states[0], text[:, :1], states[1], text[:, 1:], states[2]), 1)
    spans = picture_spans(text[0].tolist(), PLACEHOLDER, sizes)
    positions = torch.from_numpy(positions_of(text.shape[1], spans)).unsqueeze(1)
    theirs = processor.for_library(pixels.numpy(), grids.numpy())
    return PicturesInText(
        text=text,
        pictures=list(zip(pixels.split(counts), grids.split(1), strict=True)),
        theirs={name: torch.from_numpy(value) for name, value in theirs.items()},
        positions=None if config.axes is None else positions,
    )


def _one_size(config: TowerTextConfig, count: int, text: Tensor) -> PicturesInText:
    """Return three pictures of one size. count: states of each."""
    generator, [grid] = torch.Generator().manual_seed(1), config.tower.sample_grids
    batch = (1, 3) if config.tiled else (3,)
    pixels = torch.randn(*batch, *config.tower.values_shape(grid), generator=generator).double()
    picture = torch.full((1, count), PLACEHOLDER)
    # transformers takes pictures side by side for one, where their states attend to each other.
    between = [text[:, :1]] if config.bidirectional == "pictures" else []
    parts = [picture, *between, picture, text, picture]
    if config.bidirectional == "prompt":
        parts = [picture, picture, picture, text]
    return PicturesInText(text=torch.cat(parts, 1), pictures=[(pixels,)], theirs={"pixel_values": pixels})


def sounds_in_text(config: SoundTextConfig, text: Tensor) -> PicturesInText:
    """Return windows of noise, and a text [1, N] with them: two at its beginning and one at its end.

    Of a tower that is masked, the first one is whole, and the others have some frames and few.
    """
    generator, tower = torch.Generator().manual_seed(1), config.tower
    features = torch.randn(WINDOWS, tower.mel_bins, tower.frames, generator=generator).double()
    theirs, lengths = {"input_features": features}, [tower.frames] * WINDOWS
    if tower.masked:
        lengths = [tower.frames, tower.frames // 2 + 1, 9]
        mask = torch.arange(tower.frames) < torch.tensor(lengths).unsqueeze(1)
        theirs["feature_attention_mask"] = mask.to(torch.int64)
    counts = [tower.states_of(length) // config.projector.joined for length in lengths]
    first, second, last = (torch.full((1, count), PLACEHOLDER) for count in counts)
    rows = torch.cat([torch.arange(count) + index * config.picture_tokens for index, count in enumerate(counts)])
    return PicturesInText(
        text=torch.cat((first, text[:, :1], second, text[:, 1:], last), 1),
        pictures=[tuple(theirs.values())],
        theirs=theirs,
        packed=Packed(rows=rows.unsqueeze(1), weights=torch.ones(len(rows), 1, dtype=torch.float64)),
    )


WINDOWS = 3
"""Windows of sound."""
SIZES = ((61, 97), (97, 61))
"""Height and width of pictures whose tiles are put together."""


def _packed(count: int, processor: Processor, text: Tensor) -> PicturesInText:
    """Return two pictures in tiles whose states are put together, and a text with them. count: states of a tile."""
    noise = np.random.default_rng(1)
    values = [processor.values(noise.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]
    most = max(map(len, values))  # transformers reads as many tiles of each, of which those behind the last are zero
    pixels = torch.stack([torch.from_numpy(np.pad(each, [(0, most - len(each)), *[(0, 0)] * 3])) for each in values])
    pixels = pixels.double()
    packings = [packing for packing in (processor.packing(*size) for size in SIZES) if packing is not None]
    taps = max(packing.rows.shape[1] for packing in packings)
    rows = [
        np.pad(packing.rows, ((0, 0), (0, taps - packing.rows.shape[1]))) + index * most * count
        for index, packing in enumerate(packings)
    ]
    weights = [np.pad(packing.weights, ((0, 0), (0, taps - packing.rows.shape[1]))) for packing in packings]
    first, second = (torch.full((1, len(each)), PLACEHOLDER) for each in rows)
    return PicturesInText(
        text=torch.cat((first, text, second), 1),
        pictures=[(pixels.flatten(0, 1),)],
        theirs={"pixel_values": pixels, "image_sizes": torch.tensor(SIZES)},
        packed=_of_packing(Packing(np.concatenate(rows), np.concatenate(weights))),
        beyond=None if processor.limit is None else _beyond(count, processor, processor.limit),
    )


def _of_packing(packing: Packing) -> Packed:
    return Packed(rows=torch.from_numpy(packing.rows), weights=torch.from_numpy(packing.weights))


def _beyond(count: int, processor: Processor, size: tuple[int, int]) -> BeyondLimit:
    """Return short random states of tiles of a picture of so many that they are interpolated."""
    packing = processor.packing(*size)
    assert packing is not None
    generator = torch.Generator().manual_seed(2)
    tiles = 1 + int(packing.rows.max()) // count
    states = torch.randn(tiles, count, 3, generator=generator, dtype=torch.float64)
    states[:, -1] = states[0, -1]  # the newline
    return BeyondLimit(states=states, size=torch.tensor(size), packed=_of_packing(packing))
