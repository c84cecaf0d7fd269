"""Towers of pictures of any size: patches as a processor has cut them, whose places follow from the picture's grid.

A graph of such a tower reads one picture: its patches, and its rows and columns of them. All that depends on these two
numbers is computed of integers in the graph, so that every client can run it that has the patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.config import GridVisionConfig, RotaryConfig
from edgeformer.layers import make_norm
from edgeformer.layers.attention.patch_windows import PatchBlocks
from edgeformer.layers.position import TokenAngles
from edgeformer.models.pictures.table_positions import antialiased
from edgeformer.models.stack import Run, Stack


@dataclass(frozen=True)
class PatchPlaces:
    """Where patches stand in a picture, in the order in which the blocks of a tower read them.

    Attributes:
        rows, columns: of each patch, int64 [P].
        windows: the window of each patch, int64 [P], in ascending order; None without windows.
        order: which of the given patches it is, int64 [P].
        restored: places of the patches of each square, int64 [squares · square²]: squares row by row.
    """

    rows: Tensor
    columns: Tensor
    windows: Tensor | None
    order: Tensor
    restored: Tensor

    @classmethod
    def of(cls, grid: Tensor, patches: int, square: int, window: int | None) -> "PatchPlaces":
        """Return the places of so many patches, which come in squares.

        grid: [[1, rows, columns]] of patches. window: squares of a side of a window; None for none.
        """
        height, width = grid[0, 1] // square, grid[0, 2] // square  # in squares
        number, inside = _divided(torch.arange(patches, device=grid.device), square**2)
        squares = torch.arange(patches // square**2, device=grid.device)
        if window is None:
            row, column = _divided(number, width)
            windows, place = None, squares
        else:
            row, column, windows = _in_windows(number, height, width, window)
            place = _place_in_windows(*_divided(squares, width), height, width, window)
        down, right = _divided(inside, square)
        within = torch.arange(square**2, device=grid.device)
        return cls(
            rows=row * square + down,
            columns=column * square + right,
            windows=windows,
            order=(row * width + column) * square**2 + inside,
            restored=(place.unsqueeze(1) * square**2 + within).view(-1),
        )


def _divided(numbers: Tensor, by: Tensor | int) -> tuple[Tensor, Tensor]:
    """Return quotients and remainders of numbers that are not negative."""
    return numbers // by, numbers % by


def _in_windows(place: Tensor, height: Tensor, width: Tensor, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, column and window of the squares at places in the order of windows.

    A strip of windows has window · width squares, but for the last one, and a window of it as many rows as the strip.
    """
    strip, in_strip = _divided(place, window * width)
    rows = torch.minimum(height - strip * window, torch.full_like(height, window))
    number, in_window = _divided(in_strip, window * rows)
    columns = torch.minimum(width - number * window, torch.full_like(width, window))
    down, right = _divided(in_window, columns)
    return strip * window + down, number * window + right, strip * width + number


def _place_in_windows(row: Tensor, column: Tensor, height: Tensor, width: Tensor, window: int) -> Tensor:
    """Return the places of squares in the order of windows."""
    strip, down = _divided(row, window)
    number, right = _divided(column, window)
    rows = torch.minimum(height - strip * window, torch.full_like(height, window))
    columns = torch.minimum(width - number * window, torch.full_like(width, window))
    return strip * window * width + number * window * rows + down * columns + right


class GridVisionEncoder(Stack):
    """A stack of bidirectional blocks over the patches of a picture; see `GridVisionConfig`."""

    def __init__(self, config: GridVisionConfig, dtype: torch.dtype = torch.float32):
        super().__init__(config, dtype)
        self.config = config
        inputs = config.patches.inputs
        self.stem_norm = make_norm(config.patches.norm, inputs, dtype=dtype)
        self.stem = nn.Linear(inputs, config.hidden_size, bias=config.patches.bias, dtype=dtype)
        self.stem_output_norm = make_norm(config.patches.norm, config.hidden_size, dtype=dtype)

    def states_after(self, pixel_values: Tensor, grid: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Return the states [1, P, E] after so many blocks each, in the order of the given patches.

        pixel_values: patches [P, channels · frames · side²], in any float type. grid: [[1, rows, columns]] of patches.
        """
        config, count = self.config, pixel_values.shape[0]
        windows = config.attention_windows
        places = PatchPlaces.of(grid, count, config.square, None if windows is None else windows.squares)
        if windows is not None:
            pixel_values = pixel_values.index_select(0, places.order)
        if config.patches.centred:
            pixel_values = 2 * (pixel_values - 0.5)
        x = self.stem_norm(pixel_values.to(self.stem.weight.dtype))
        x = self.stem_output_norm(self.stem(x)).unsqueeze(0)  # [1, P, E]
        if config.axis_tables is not None:
            x = x + self._of_axes(places)
        elif config.table_side is not None:
            interpolated = self._antialiased if config.antialiased else self._interpolated
            x = x + interpolated(places, grid, config.table_side)
        x = self.embedding_norm(x)
        ones = torch.ones(1, count, dtype=torch.int64, device=x.device)
        order = ops.token_positions(ones, x)
        run = Run(ones, order, order, {}, angles=self._angles(places, order))
        within = run
        if places.windows is not None and windows is not None:
            length = (windows.squares * config.square) ** 2
            within = replace(run, patch_blocks=PatchBlocks.of(places.windows, length, x.dtype))
        states = [x]
        for index in range(max(layers)):
            everywhere = windows is None or index in windows.everywhere
            x, _ = self.run_block(index, x, (), run if everywhere else within)
            states.append(x)
        found = [self.final_norm(states[layer]) if layer == len(self.blocks) else states[layer] for layer in layers]
        return [each.index_select(1, places.restored) for each in found]

    def without_prefix(self, states: Tensor) -> Tensor:
        """Return the states: all are those of patches."""
        return states

    def _angles(self, places: PatchPlaces, order: Tensor) -> dict[RotaryConfig, TokenAngles]:
        """Return the angles of patches, by their order, int64 [1, P]: of their rows, then of their columns."""
        found: dict[RotaryConfig, TokenAngles] = {}
        for rotary in self.shared.rotaries:
            table = self.rotary_table(rotary)
            if rotary.halves:
                turns = torch.stack((places.columns, places.rows), 1).view(1, -1)  # [1, 2·P]
                found[rotary] = TokenAngles.of(table.cos[turns], table.sin[turns])
                continue
            axes = [(each, each) for each in (table.cos, table.sin)]
            if self.config.alternating:
                axes = [(each[:, 0::2], each[:, 1::2]) for each in (table.cos, table.sin)]
            cos, sin = (torch.cat((rows[places.rows], columns[places.columns]), -1) for rows, columns in axes)
            found[rotary] = TokenAngles(cos, sin, order)
        return found

    def _of_axes(self, places: PatchPlaces) -> Tensor:
        """Return the learned positions of patches, [1, P, E]: those of their columns and of their rows, added."""
        columns, rows = places.columns, places.rows
        if self.config.axis_tables == "alternating":
            columns, rows = 2 * columns, 2 * rows + 1
        else:
            assert self.config.table_side is not None, "the config has checked it"
            rows = rows + self.config.table_side
        return (self.position_embedding(columns) + self.position_embedding(rows)).unsqueeze(0)

    def _antialiased(self, places: PatchPlaces, grid: Tensor, side: int) -> Tensor:
        """Return the learned positions of patches, [1, P, E]: the borders of the table are those of the picture."""
        dtype = self.stem.weight.dtype
        wide = torch.promote_types(dtype, torch.float32)  # half precision has no room for the products
        axes = ((places.rows, grid[0, 1]), (places.columns, grid[0, 2]))
        rows, columns = (antialiased(index, count, side, wide) for index, count in axes)  # [P, side]
        parts = (rows.unsqueeze(2) * columns.unsqueeze(1)).view(-1, side**2).to(dtype)
        positions = self.position_embedding(torch.arange(side**2, device=grid.device))
        return (parts @ positions).unsqueeze(0)

    def _interpolated(self, places: PatchPlaces, grid: Tensor, side: int) -> Tensor:
        """Return the learned positions of patches, [1, P, E]: the corners of the table are those of the picture.

        Where the table is bordered, its borders are.
        """
        dtype: torch.dtype = self.position_embedding.weight.dtype  # type: ignore[assignment]  # of a parameter
        wide = torch.promote_types(dtype, torch.float32)  # half precision has no room for the products
        axes = []
        for index, count in ((places.rows, grid[0, 1]), (places.columns, grid[0, 2])):
            # Integers say exactly between which rows of the table a patch is, and in which part of their distance.
            if self.config.bordered:
                steps, where = 2 * count, ((2 * index + 1) * side - count).clamp(min=0)
            else:
                steps, where = (count - 1).clamp(min=1), index * (side - 1)
            first, rest = _divided(where, steps)
            part = (rest.to(wide) / steps.to(wide)).unsqueeze(1)
            last = (first + 1).clamp(max=side - 1)
            axes.append(((first, 1 - part), (last, part)))
        rows, columns = axes
        taps = [
            self.position_embedding(y * side + x) * (down * right).to(dtype) for y, down in rows for x, right in columns
        ]
        return (taps[0] + taps[1] + taps[2] + taps[3]).unsqueeze(0)
