"""The processor of pictures: every number of what happens to a picture before a graph reads it."""

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
class FixedSizeProcessor:
    """A processor that makes `pixel_values` [3, height, width] of one size from every picture.

    A picture becomes RGB, is resized, cut around its centre, multiplied by `scale`, and normalized to
    (x − mean) / std per channel, in this order.

    Attributes:
        resize: None where the crop alone decides about the size.
        crop: size that is cut around the centre, with zeros where the picture is smaller; None for no crop.
        scale: factor of the values 0 to 255; None for 1.
        mean, std: per channel; both None where nothing is normalized.
        white_background: transparent pictures are laid on white; otherwise their transparency is dropped.
    """

    kind: Literal["fixed_size"] = "fixed_size"
    resize: Resize | None = None
    crop: PictureSize | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    white_background: bool = False

    def __post_init__(self) -> None:
        fixed = self.crop is not None or (self.resize is not None and self.resize.size is not None)
        check(fixed, self, "crop", "set where no resize decides about height and width")
        _check_normalization(self)

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        resized = None if self.resize is None else self.resize.size
        size = self.crop or resized
        assert size is not None
        return size


@dataclass(frozen=True, kw_only=True)
class TilesProcessor:
    """A processor that cuts a picture into tiles, row by row, and adds the whole picture at the size of a tile.

    A picture becomes RGB, is resized so that its longer side is `longest_edge`, then so that both sides are multiples
    of a tile, cut, and each tile is made values of as `FixedSizeProcessor` does it. A picture of one tile is that tile
    alone. Source: transformers' Idefics3ImageProcessorPil.

    Attributes:
        tile: pixels of a side of a tile, which the graph reads.
        longest_edge: pixels of the longer side before the picture is cut; None to leave its size.
        splits: whether pictures are cut; otherwise each is resized to one tile.
        resample: the filter of all resizes.
        scale, mean, std, white_background: see `FixedSizeProcessor`.
    """

    kind: Literal["tiles"] = "tiles"
    tile: int
    longest_edge: int | None
    splits: bool = True
    resample: Resample
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    white_background: bool = False

    def __post_init__(self) -> None:
        check(0 < self.tile <= LARGEST_SIDE, self, "tile", f"between 1 and {LARGEST_SIDE:,}")
        edge = self.longest_edge
        check(edge is None or 0 < edge <= LARGEST_SIDE, self, "longest_edge", f"between 1 and {LARGEST_SIDE:,}")
        _check_normalization(self)

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        return PictureSize(height=self.tile, width=self.tile)


MOST_ASPECT = 200
"""Longer side over shorter side of a picture at most, where it is resized to a number of pixels; as in transformers."""


@dataclass(frozen=True, kw_only=True)
class GridProcessor:
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
        scale, mean, std, white_background: see `FixedSizeProcessor`.
    """

    kind: Literal["grid"] = "grid"
    patch: int
    square: int
    frames: int
    min_pixels: int
    max_pixels: int
    resample: Resample
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    white_background: bool = False

    def __post_init__(self) -> None:
        for field in ("patch", "square", "frames", "min_pixels"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(self.side <= LARGEST_SIDE, self, "patch", f"of squares of {LARGEST_SIDE:,} pixels at most")
        check(self.max_pixels >= max(self.min_pixels, self.side**2), self, "max_pixels", "those of a square or more")
        _check_normalization(self)

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


def _check_normalization(config: "PictureProcessor") -> None:
    """Check `mean` and `std`."""
    check((config.mean is None) == (config.std is None), config, "std", "set where there is a mean, and only there")
    for field in ("mean", "std"):
        values = getattr(config, field)
        check(values is None or len(values) == CHANNELS, config, field, f"a list of {CHANNELS} numbers, or None")
    check(config.std is None or all(value > 0 for value in config.std), config, "std", "positive")


@dataclass(frozen=True, kw_only=True)
class AspectTilesProcessor:
    """A processor that resizes a picture to the grid of tiles whose aspect is nearest to its own, and cuts it.

    A picture becomes RGB, is resized to fill the grid, cut into tiles row by row, and followed by the whole picture at
    the size of a tile; each is made values of as `FixedSizeProcessor` does it. A picture of one tile is that tile
    alone. Source: InternVL (arXiv 2404.16821), transformers' GotOcr2ImageProcessorPil.

    Attributes:
        tile: pixels of a tile, which the graph reads.
        min_tiles, max_tiles: tiles of a grid.
        resample: the filter of all resizes.
        scale, mean, std, white_background: see `FixedSizeProcessor`.
    """

    kind: Literal["aspect_tiles"] = "aspect_tiles"
    tile: PictureSize
    min_tiles: int
    max_tiles: int
    resample: Resample
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    white_background: bool = False

    def __post_init__(self) -> None:
        check(0 < self.max_tiles <= MOST_TILES, self, "max_tiles", f"between 1 and {MOST_TILES}")
        check(0 < self.min_tiles <= self.max_tiles, self, "min_tiles", f"between 1 and max_tiles ({self.max_tiles})")
        _check_normalization(self)

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        return self.tile


@dataclass(frozen=True, kw_only=True)
class AnyResolutionProcessor:
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
        scale, mean, std, white_background: see `FixedSizeProcessor`.
    """

    kind: Literal["any_resolution"] = "any_resolution"
    tile: int
    patches: int
    grids: tuple[tuple[int, int], ...]
    max_tiles: int | None = None
    squares: bool = False
    resample: Resample
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    white_background: bool = False

    def __post_init__(self) -> None:
        check(0 < self.tile <= LARGEST_SIDE, self, "tile", f"between 1 and {LARGEST_SIDE:,}")
        check(0 < self.patches <= self.tile, self, "patches", "between 1 and tile")
        fits = all(len(grid) == 2 and min(grid) > 0 and grid[0] * grid[1] <= MOST_TILES for grid in self.grids)
        check(len(self.grids) > 0 and fits, self, "grids", f"pairs of numbers, each of {MOST_TILES} tiles at most")
        check(self.max_tiles is None or self.max_tiles > 0, self, "max_tiles", "positive, or None")
        check(not self.squares or self.mean is not None, self, "squares", "False without a mean colour")
        _check_normalization(self)

    @property
    def size(self) -> PictureSize:
        """Return the size of what the graph reads."""
        return PictureSize(height=self.tile, width=self.tile)


@dataclass(frozen=True, kw_only=True)
class PatchTilesProcessor:
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
        scale, mean, std, white_background: see `FixedSizeProcessor`.
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
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    white_background: bool = False

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
        _check_normalization(self)

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


@dataclass(frozen=True, kw_only=True)
class PromptText:
    """How the text of a prompt with pictures is written before it is encoded, as transformers' processor writes it.

    Tokens at its seams follow from the text around: a line break before a picture of Gemma 3 becomes one token with
    those that its processor writes there.

    Attributes:
        spelled: stands for a picture in a prompt.
        written: what takes its place, with the placeholder in it.
        after_last: written behind the last picture.
        end: written behind the prompt.
        adds_special_tokens: whether the tokenizer then adds its special tokens, where it adds any.
    """

    spelled: str
    written: str
    after_last: str = ""
    end: str = ""
    adds_special_tokens: bool = True

    def __post_init__(self) -> None:
        check(self.spelled != "", self, "spelled", "a text that stands for a picture")

    def of(self, prompt: str) -> str:
        """Return the text to encode of a prompt; one without pictures stays as it is."""
        before, spelled, behind = prompt.rpartition(self.spelled)
        if not spelled:
            return prompt
        return f"{before.replace(self.spelled, self.written)}{self.written}{self.after_last}{behind}{self.end}"


@dataclass(frozen=True, kw_only=True)
class RepeatedPlaceholder:
    """A placeholder of a picture in a prompt that becomes the same token, once for each of the picture's states.

    Attributes:
        token: the placeholder.
        count: states of a picture.
        text: how prompts are written; None for as they are, with the placeholder in them.
    """

    kind: Literal["repeated"] = "repeated"
    token: int
    count: int
    text: PromptText | None = None

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture; `token` stands for each state. It is not cut into rows and columns."""
        return [self.token] * self.count


@dataclass(frozen=True, kw_only=True)
class TiledPlaceholder:
    """A placeholder that becomes marks which say which tile of a picture follows, and the states of the tile.

        border name(1, 1) token × count border name(1, 2) … row_end border name(2, 1) … rows_end
        border whole token × count border

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of a tile.
        border: tokens before each tile and behind the last one.
        names: of tiles, by row and column.
        whole: name of the whole picture.
        row_end, rows_end: tokens behind a row that another follows, and behind the last one.
    """

    kind: Literal["tiles"] = "tiles"
    token: int
    count: int
    border: tuple[int, ...]
    names: tuple[tuple[tuple[int, ...], ...], ...]
    whole: tuple[int, ...]
    row_end: tuple[int, ...]
    rows_end: tuple[int, ...]

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture of so many tiles beside the whole one; `token` stands for each state."""
        states, found = [self.token] * self.count, list[int]()
        for row in range(rows):
            for column in range(columns):
                found += [*self.border, *self.names[row][column], *states]
            found += self.rows_end if row == rows - 1 else self.row_end
        return [*found, *self.border, *self.whole, *states, *self.border]


@dataclass(frozen=True, kw_only=True)
class GridPlaceholder:
    """A placeholder that becomes the same token, once for each square of a picture of any size.

    Attributes:
        token: the placeholder.
        video: the placeholder of a video, which is not read; None where there is none.
    """

    kind: Literal["grid"] = "grid"
    token: int
    video: int | None = None

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture of so many squares; `token` stands for each state."""
        return [self.token] * (rows * columns)


@dataclass(frozen=True, kw_only=True)
class EnclosedPlaceholder:
    """A placeholder that becomes the states of all tiles and of the whole picture, between two marks.

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of a tile, and of the whole picture.
        start, end: tokens before and behind the states.
    """

    kind: Literal["enclosed"] = "enclosed"
    token: int
    count: int
    start: tuple[int, ...]
    end: tuple[int, ...]

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture of so many tiles beside the whole one; `token` stands for each state."""
        return [*self.start, *[self.token] * (self.count * (rows * columns + 1)), *self.end]


@dataclass(frozen=True, kw_only=True)
class RowsPlaceholder:
    """A placeholder that becomes the states of the whole picture, and rows of states that a learned one ends.

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of the whole picture.
    """

    kind: Literal["rows"] = "rows"
    token: int
    count: int

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int) -> list[int]:
        """Return the tokens of a picture with so many rows and columns of states; `token` stands for each."""
        return [self.token] * (self.count + rows * (columns + 1))


@dataclass(frozen=True, kw_only=True)
class NamedTilesPlaceholder:
    """A placeholder that becomes the states of tiles, each behind its name, and of the whole picture, between marks.

        start name(1, 1) token × count name(1, 2) … whole token × rows · columns end

    Attributes:
        token: the placeholder, which stands for each state, too.
        count: states of a tile.
        start, end: tokens before and behind all of these.
        names: of tiles, by row and column.
        whole: name of the whole picture, where tiles stand before it.
        special_tokens: whether the tokenizer adds its special tokens to a prompt with pictures.
    """

    kind: Literal["named_tiles"] = "named_tiles"
    token: int
    count: int
    start: tuple[int, ...]
    names: tuple[tuple[tuple[int, ...], ...], ...]
    whole: tuple[int, ...]
    end: tuple[int, ...]
    special_tokens: bool

    def __post_init__(self) -> None:
        check(self.count > 0, self, "count", "positive")

    def expanded(self, rows: int, columns: int, whole_rows: int = 1, whole_columns: int = 1) -> list[int]:
        """Return the tokens of a picture of so many tiles beside the whole one, which has so many states."""
        found = list(self.start)
        for row in range(rows):
            for column in range(columns):
                found += [*self.names[row][column], *[self.token] * self.count]
        name = self.whole if rows * columns else ()
        return [*found, *name, *[self.token] * (whole_rows * whole_columns), *self.end]


Placeholder = (
    GridPlaceholder
    | RepeatedPlaceholder
    | TiledPlaceholder
    | EnclosedPlaceholder
    | RowsPlaceholder
    | NamedTilesPlaceholder
)
"""The kinds of placeholders, told apart by `kind`."""
