"""The processors of pictures: every number of what happens to a picture before a graph reads it."""

from dataclasses import dataclass
from math import ceil, floor, isqrt, sqrt
from typing import Literal

from edgeformer.documents.schema import check

Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Filters of a resize, with the names of Pillow."""

CHANNELS = 3
"""Channels of a picture: red, green, blue."""

LARGEST_SIDE = 4096
"""Pixels of a side of what a graph reads, at most; the largest that is known is 1,536."""

MOST_TILES = 64
"""Tiles of a picture, at most, beside the whole picture; the most that are known are 36."""


@dataclass(frozen=True, kw_only=True)
class PictureSize:
    """Height and width of a picture, in pixels."""

    height: int
    width: int

    def __post_init__(self) -> None:
        for field in ("height", "width"):
            value = getattr(self, field)
            check(0 < value <= LARGEST_SIDE, self, field, f"between 1 and {LARGEST_SIDE:,}")

    def __str__(self) -> str:
        return f"{self.width} × {self.height}"


@dataclass(frozen=True, kw_only=True)
class Resize:
    """A resize, bit for bit as Pillow computes it.

    Attributes:
        size: of the result; None where `shortest_edge` decides.
        shortest_edge: pixels of the shorter side of the result, whose other side keeps the aspect, rounded down.
        resample: the filter.
    """

    size: PictureSize | None = None
    shortest_edge: int | None = None
    resample: Resample

    def __post_init__(self) -> None:
        check((self.size is None) != (self.shortest_edge is None), self, "size", "set where shortest_edge is not")
        edge = self.shortest_edge
        check(edge is None or 0 < edge <= LARGEST_SIDE, self, "shortest_edge", f"between 1 and {LARGEST_SIDE:,}")


@dataclass(frozen=True, kw_only=True)
class PixelValues:
    """How every processor makes values of pixels; the base class of all.

    Attributes:
        scale: factor of the values 0 to 255; None for 1.
        mean, std: per channel; both None where nothing is normalized.
        white_background: transparent pictures are laid on white; otherwise their transparency is dropped.
    """

    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    white_background: bool = False

    def __post_init__(self) -> None:
        check((self.mean is None) == (self.std is None), self, "std", "set where there is a mean, and only there")
        for field in ("mean", "std"):
            values = getattr(self, field)
            check(values is None or len(values) == CHANNELS, self, field, f"a list of {CHANNELS} numbers, or None")
        check(self.std is None or all(value > 0 for value in self.std), self, "std", "positive")


@dataclass(frozen=True, kw_only=True)
class FixedSizeProcessor(PixelValues):
    """A processor that makes `pixel_values` [3, height, width] of one size from every picture.

    A picture becomes RGB, is resized, cut around its centre, multiplied by `scale`, and normalized to
    (x − mean) / std per channel, in this order.

    Attributes:
        resize: None where the crop alone decides about the size.
        crop: size that is cut around the centre, with zeros where the picture is smaller; None for no crop.
    """

    kind: Literal["fixed_size"] = "fixed_size"
    resize: Resize | None = None
    crop: PictureSize | None = None

    def __post_init__(self) -> None:
        fixed = self.crop is not None or (self.resize is not None and self.resize.size is not None)
        check(fixed, self, "crop", "set where no resize decides about height and width")
        super().__post_init__()

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        resized = None if self.resize is None else self.resize.size
        size = self.crop or resized
        assert size is not None
        return size


@dataclass(frozen=True, kw_only=True)
class TilesProcessor(PixelValues):
    """A processor that cuts a picture into tiles, row by row, and adds the whole picture at the size of a tile.

    A picture becomes RGB, is resized so that its longer side is `longest_edge`, then so that both sides are multiples
    of a tile, cut, and each tile is made values of as `FixedSizeProcessor` does it. A picture of one tile is that tile
    alone. Source: transformers' Idefics3ImageProcessorPil.

    Attributes:
        tile: pixels of a side of a tile, which the graph reads.
        longest_edge: pixels of the longer side before the picture is cut; None to leave its size.
        splits: whether pictures are cut; otherwise each is resized to one tile.
        resample: the filter of all resizes.
    """

    kind: Literal["tiles"] = "tiles"
    tile: int
    longest_edge: int | None
    splits: bool = True
    resample: Resample

    def __post_init__(self) -> None:
        check(0 < self.tile <= LARGEST_SIDE, self, "tile", f"between 1 and {LARGEST_SIDE:,}")
        edge = self.longest_edge
        check(edge is None or 0 < edge <= LARGEST_SIDE, self, "longest_edge", f"between 1 and {LARGEST_SIDE:,}")
        super().__post_init__()

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        return PictureSize(height=self.tile, width=self.tile)


MOST_ASPECT = 200
"""Longer side over shorter side of a picture at most, where it is resized to a number of pixels; as in transformers."""


@dataclass(frozen=True, kw_only=True)
class GridProcessor(PixelValues):
    """A processor that keeps the aspect of a picture, within limits of its pixels, and cuts it into patches.

    A picture becomes RGB, is resized so that both sides are multiples of `patch` · `square`, is made values of as
    `FixedSizeProcessor` does it, and cut into patches [channels, frames, patch, patch], the picture in each frame.
    Squares of patches come row by row, and so do the patches in them. Source: transformers' Qwen2VLImageProcessorPil.

    Attributes:
        patch: pixels of a side of a patch.
        square: patches of a side of a square, which becomes one state.
        frames: frames of a video in a patch.
        min_pixels, max_pixels: a resized picture has no fewer and no more, as far as whole squares allow.
        resample: the filter.
    """

    kind: Literal["grid"] = "grid"
    patch: int
    square: int
    frames: int
    min_pixels: int
    max_pixels: int
    resample: Resample

    def __post_init__(self) -> None:
        for field in ("patch", "square", "frames", "min_pixels"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(self.side <= LARGEST_SIDE, self, "patch", f"of squares of {LARGEST_SIDE:,} pixels at most")
        check(self.max_pixels >= max(self.min_pixels, self.side**2), self, "max_pixels", "those of a square or more")
        super().__post_init__()

    @property
    def side(self) -> int:
        """Return the pixels of a side of a square."""
        return self.patch * self.square

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of a picture that is resized, in whole squares."""
        side, pixels = self.side, height * width
        rows, columns = round(height / side), round(width / side)
        if rows * columns * side**2 > self.max_pixels:
            by = sqrt(pixels / self.max_pixels)
            rows, columns = (max(1, floor(each / by / side)) for each in (height, width))
        elif rows * columns * side**2 < self.min_pixels:
            by = sqrt(self.min_pixels / pixels)
            rows, columns = (ceil(each * by / side) for each in (height, width))
        return rows * side, columns * side

    @property
    def most_rows(self) -> int:
        """Return the rows or columns of squares that a picture has at most.

        Rounding makes a picture of the largest aspect at most twice as long for its width.
        """
        return isqrt(2 * MOST_ASPECT * self.max_pixels) // self.side + 1


@dataclass(frozen=True, kw_only=True)
class AspectTilesProcessor(PixelValues):
    """A processor that resizes a picture to the grid of tiles whose aspect is nearest to its own, and cuts it.

    A picture becomes RGB, is resized to fill the grid, cut into tiles row by row, and followed by the whole picture at
    the size of a tile; each is made values of as `FixedSizeProcessor` does it. A picture of one tile is that tile
    alone. Source: InternVL (arXiv 2404.16821), transformers' GotOcr2ImageProcessorPil.

    Attributes:
        tile: pixels of a tile, which the graph reads.
        min_tiles, max_tiles: tiles of a grid.
        resample: the filter of all resizes.
    """

    kind: Literal["aspect_tiles"] = "aspect_tiles"
    tile: PictureSize
    min_tiles: int
    max_tiles: int
    resample: Resample

    def __post_init__(self) -> None:
        check(0 < self.max_tiles <= MOST_TILES, self, "max_tiles", f"between 1 and {MOST_TILES}")
        check(0 < self.min_tiles <= self.max_tiles, self, "min_tiles", f"between 1 and max_tiles ({self.max_tiles})")
        super().__post_init__()

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        return self.tile


@dataclass(frozen=True, kw_only=True)
class AnyResolutionProcessor(PixelValues):
    """A processor that fits a picture into a grid of tiles, and puts the states of the tiles together again.

    The whole picture is resized to a tile, whatever its aspect. Then the picture is resized to the largest that keeps
    its aspect in the grid that loses the fewest of its pixels, surrounded by zeros, and cut into tiles row by row. Of
    the states of the tiles, one image, rows and columns that show nothing but these zeros are left out, and a learned
    state ends each row. Source: LLaVA-NeXT, transformers' LlavaNextImageProcessorPil, LlavaNextModel.

    Attributes:
        tile: pixels of a side of a tile, which the graph reads.
        patches: states of a side of a tile.
        grids: rows and columns of tiles that a picture may be fit into.
        max_tiles: the states of a picture of more than 1.21 times so many tiles are interpolated to as many as these
            have; None for no limit. Source: LLaVA-OneVision (arXiv 2408.03326).
        squares: whether a picture that is not alone in a prompt is made a square of one tile instead, with the mean
            colour beside it.
        resample: the filter of all resizes.
    """

    kind: Literal["any_resolution"] = "any_resolution"
    tile: int
    patches: int
    grids: tuple[tuple[int, int], ...]
    max_tiles: int | None = None
    squares: bool = False
    resample: Resample

    def __post_init__(self) -> None:
        check(0 < self.tile <= LARGEST_SIDE, self, "tile", f"between 1 and {LARGEST_SIDE:,}")
        check(0 < self.patches <= self.tile, self, "patches", "between 1 and tile")
        fits = all(len(grid) == 2 and min(grid) > 0 and grid[0] * grid[1] <= MOST_TILES for grid in self.grids)
        check(len(self.grids) > 0 and fits, self, "grids", f"pairs of numbers, each of {MOST_TILES} tiles at most")
        check(self.max_tiles is None or self.max_tiles > 0, self, "max_tiles", "positive, or None")
        check(not self.squares or self.mean is not None, self, "squares", "False without a mean colour")
        super().__post_init__()

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        return PictureSize(height=self.tile, width=self.tile)


@dataclass(frozen=True, kw_only=True)
class PatchTilesProcessor(PixelValues):
    """A processor that keeps the aspect of a small picture, cuts a large one into tiles, and both into patches.

    A picture becomes RGB and is resized to whole squares of patches with about its aspect, as many as become
    `min_tokens` to `max_tokens` states. A picture of more than `tolerance` times so many is also resized to the grid of
    tiles whose aspect is nearest to its own, and cut into tiles, row by row; the whole one follows them. Resizes are
    those of torch. Squares of patches come row by row, and so do the patches [patch, patch, channels] in them; their
    values are (x − mean / scale) / (std / scale). Source: transformers' Lfm2VlImageProcessor.

    Attributes:
        patch: pixels of a side of a patch.
        square: patches of a side of a square, which becomes one state.
        tile: pixels of a side of a tile.
        min_tiles, max_tiles: tiles of a grid; both 1 where no picture is cut.
        min_tokens, max_tokens: states of a picture that is not cut.
        tolerance: see above.
        resample: the filter of all resizes.
    """

    kind: Literal["patch_tiles"] = "patch_tiles"
    patch: int
    square: int
    tile: int
    min_tiles: int
    max_tiles: int
    min_tokens: int
    max_tokens: int
    tolerance: float
    resample: Resample

    def __post_init__(self) -> None:
        check(self.patch > 0 and self.square > 0, self, "patch", "positive, as square is")
        fits = 0 < self.tile <= LARGEST_SIDE and self.tile % self.side == 0
        check(fits, self, "tile", f"a multiple of {self.side} pixels, up to {LARGEST_SIDE:,}")
        # With one tile, states are counted as for another size.
        tiles = self.min_tiles == self.max_tiles == 1 or 2 <= self.min_tiles <= self.max_tiles <= MOST_TILES
        check(tiles, self, "min_tiles", f"1 as max_tiles, or 2 to {MOST_TILES} and no more than max_tiles")
        check(0 < self.min_tokens <= self.max_tokens, self, "min_tokens", "positive, and no more than max_tokens")
        check(self.max_tokens * self.side**2 <= LARGEST_SIDE**2, self, "max_tokens", f"of {LARGEST_SIDE:,}² pixels")
        check(self.tolerance > 0, self, "tolerance", "positive")
        super().__post_init__()

    @property
    def side(self) -> int:
        """Return the pixels of a side of a square."""
        return self.patch * self.square

    @property
    def most_patches(self) -> int:
        """Return the patches of a picture that the tower reads at most."""
        return max(self.max_tokens * self.square**2, (self.tile // self.patch) ** 2)


PictureProcessor = (
    FixedSizeProcessor
    | GridProcessor
    | TilesProcessor
    | AspectTilesProcessor
    | AnyResolutionProcessor
    | PatchTilesProcessor
)
"""The kinds of processors, told apart by `kind`."""
