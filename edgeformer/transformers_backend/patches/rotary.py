"""Recognize rotary embeddings by running them, and compute them from tables with `ops.rotary_embedding`.

A modeling file has a module that computes cosines and sines of positions, and a function that rotates queries and keys
by them. Neither is recognized by its name: the module's own buffers must reproduce its output as
cos(position · frequency), and the function must return for random heads what our op returns with one of `ROTATIONS`.
Where either computes something else, transformers' own code is exported: slower, and as right as before.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.errors import ExportError
from edgeformer.transformers_backend.float64 import agree, computing_in_float64

ROTARY_TOLERANCE = 1e-8
"""Largest difference over the largest value, in float64: angles of positions in the millions leave about 1e-10."""

PROBED_POSITIONS = 97
"""Positions of the random heads that a function is tried on: more than it takes to tell rotations apart."""

TABLES = ("cos", "sin", "negative_sin")
Tables = Mapping[str, Tensor]
"""Rows of all positions, [C, R/2] each; negative_sin is present only where a rotation is by the negative angle."""

Layout = Literal["halves", "twice", "pairs"]
"""How a module returns the cosines of R/2 pairs: once, the whole row repeated, or each element repeated."""

LAYOUTS: dict[Layout, Callable[[Tensor], Tensor]] = {
    "halves": lambda table: table,
    "twice": lambda table: torch.cat((table, table), -1),
    "pairs": lambda table: table.repeat_interleave(2, -1),
}


@dataclass(frozen=True)
class RotaryForm:
    """The formula of a rotary module for one kind of layer: cos and sin of position · frequency, times a factor."""

    frequencies: tuple[float, ...]
    factor: float
    layout: Layout

    def tables(self, context_length: int) -> dict[str, Tensor]:
        """Compute the tables in float64."""
        positions = torch.arange(context_length, dtype=torch.float64)
        angles = torch.outer(positions, torch.tensor(self.frequencies, dtype=torch.float64))
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        return {"cos": cos, "sin": sin, "negative_sin": -sin}

    def rows(self, tables: Tables, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of positions int64 [B, S] in the layout of the original module."""
        layout = LAYOUTS[self.layout]
        return layout(tables["cos"][positions]), layout(tables["sin"][positions])


@dataclass(frozen=True)
class Rotation:
    """How a function rotates heads.

    pairing: element i is rotated with i + R/2 (half) or 2i with 2i + 1 (interleaved); gathered is interleaved with the
    result in halves. heads_axis: the axis of the heads in the inputs, 1 or 2. backwards: by the negative angle.
    """

    pairing: Literal["half", "interleaved", "gathered"]
    heads_axis: int
    backwards: bool

    def __call__(self, x: Tensor, positions: Tensor, tables: Tables) -> Tensor:
        """Rotate x, [B, H, S, D] or [B, S, H, D] as `heads_axis` says, by the angles of positions int64 [B, S]."""
        cos, sin = tables["cos"], tables["negative_sin" if self.backwards else "sin"]
        heads = x.transpose(1, 2) if self.heads_axis == 1 else x  # [B, S, H, D]
        if self.pairing == "gathered":
            half = cos.shape[-1]
            pairs = heads[..., : 2 * half].unflatten(-1, (half, 2)).transpose(-1, -2).flatten(-2)
            heads = torch.cat((pairs, heads[..., 2 * half :]), -1) if heads.shape[-1] > 2 * half else pairs
        flat = heads.flatten(2)  # [B, S, H·D]
        rotated = ops.rotary_embedding(flat, positions, cos, sin, heads.shape[2], self.pairing == "interleaved")
        rotated = rotated.unflatten(-1, (heads.shape[2], heads.shape[3]))
        return rotated.transpose(1, 2) if self.heads_axis == 1 else rotated


ROTATIONS = tuple(
    Rotation(pairing, heads_axis, backwards)
    for backwards in (False, True)
    for pairing in ("half", "interleaved", "gathered")
    for heads_axis in (1, 2)
)


@dataclass(eq=False)
class Angles:
    """Cosines and sines that a patched rotary module returned, and the tables and positions that they are rows of.

    name: of the module and the kind of layer. cos, sin: recognized by identity where a function is given them.
    """

    name: str
    form: RotaryForm
    positions: Tensor
    tables: Tables
    cos: Tensor
    sin: Tensor


class RotationCall:
    """One call of a function that rotates, its arguments sorted into heads, cosines, sines and others."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], angles: Angles):
        self.function = function
        self.angles = angles
        self._bound = inspect.signature(function).bind(*args, **kwargs)
        self.heads: list[Tensor] = [value for value in self._bound.arguments.values() if self._is_heads(value)]

    def _is_heads(self, value: Any) -> bool:
        is_table = value is self.angles.cos or value is self.angles.sin
        return isinstance(value, Tensor) and value.is_floating_point() and not is_table

    @property
    def key(self) -> object:
        """Return what the rotation depends on, the same for any batch and length."""
        others = {name: value for name, value in self._bound.arguments.items() if not isinstance(value, Tensor)}
        sizes = tuple((x.dim(), x.shape[-1]) for x in self.heads)
        return self.function.__module__, self.function.__name__, self.angles.name, sizes, repr(others)

    def original(self, heads: list[Tensor], cos: Tensor, sin: Tensor) -> tuple[Any, ...]:
        """Call the function with other tensors in the same places, and return all that it returns."""
        left = iter(heads)

        def replaced(value: Any) -> Any:
            if value is self.angles.cos:
                return cos
            return sin if value is self.angles.sin else next(left) if self._is_heads(value) else value

        given = {name: replaced(value) for name, value in self._bound.arguments.items()}
        bound = inspect.BoundArguments(self._bound.signature, given)
        returned = self.function(*bound.args, **bound.kwargs)
        return returned if isinstance(returned, tuple) else (returned,)


def computes_angles(module: nn.Module) -> bool:
    """Return whether a module may compute cosines and sines: it has no weights, and takes positions."""
    if any(True for _ in module.parameters()) or any(True for _ in module.children()):
        return False
    return "position_ids" in inspect.signature(module.forward).parameters


def rotary_form(module: nn.Module, name: str, context_length: int, layer_type: Mapping[str, Any]) -> RotaryForm | None:
    """Run a rotary module and return its form for one kind of layer, or None where it computes something else.

    layer_type: further arguments of its forward. Raises ExportError where what it computes depends on how long the
    text is.
    """
    short = torch.arange(min(context_length, 8)).unsqueeze(0)
    long = torch.cat((short, torch.tensor([[context_length // 2, context_length - 1]])), 1)
    of_short, of_long = (_cos_and_sin(module, positions, layer_type) for positions in (short, long))
    if of_short is None or of_long is None:
        return None
    cos = of_long[0]
    if not torch.equal(of_short[0], cos[:, : short.shape[1]]):
        parameters = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
        original = parameters.get("original_max_position_embeddings")
        hint = f"Export with --context-length {original}." if original else "Export with a smaller --context-length."
        raise ExportError(
            f"{name} ({type(module).__name__}) rotates by other angles where a text is longer than it was trained for, "
            f"so that no table holds for the whole context of {context_length}. {hint}"
        )
    factor = cos[0, 0, 0].item()  # position 0 is the first, and cos(0) is 1
    for layout, spread in LAYOUTS.items():
        pairs = cos.shape[-1] // (1 if layout == "halves" else 2)
        for frequencies in (buffer.double() for buffer in module.buffers() if buffer.shape == (pairs,)):
            angles = long[0].double()[:, None] * frequencies
            expected = spread(angles.cos() * factor), spread(angles.sin() * factor)
            if all(agree(table[0], rows, ROTARY_TOLERANCE) for table, rows in zip(of_long, expected, strict=True)):
                return RotaryForm(tuple(frequencies.tolist()), factor, layout)
    return None


@torch.no_grad()
def _cos_and_sin(module: nn.Module, positions: Tensor, layer_type: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Run a rotary module in float64; return [1, S, R/2 or R] each, or None where it returns something else."""
    with computing_in_float64():
        returned = module(torch.zeros(1, dtype=torch.float64), positions, **layer_type)
    if not isinstance(returned, tuple) or len(returned) != 2:
        return None
    cos, sin = returned
    fits = isinstance(cos, Tensor) and cos.dim() == 3 and cos.shape == sin.shape
    return (cos, sin) if fits and cos.shape[1] == positions.shape[1] else None


def find_rotation(call: RotationCall) -> Rotation | None:
    """Run a function on random heads of the same sizes; return its rotation, or None where it is none of ours."""
    generator = torch.Generator().manual_seed(0)
    batch, length = call.angles.positions.shape
    positions = torch.arange(batch * length).reshape(batch, length) % PROBED_POSITIONS  # other ones in every row
    tables = call.angles.form.tables(PROBED_POSITIONS)
    heads = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in call.heads]
    try:
        with torch.no_grad(), computing_in_float64():
            expected = call.original(heads, *call.angles.form.rows(tables, positions))
    except (RuntimeError, ValueError, TypeError, IndexError):  # the function takes inputs of another shape
        return None
    for rotation in ROTATIONS:
        try:
            rotated = [rotation(x, positions, tables) for x in heads]
        except (RuntimeError, IndexError):  # the sizes do not fit this axis
            continue
        if len(rotated) == len(expected) and all(
            agree(theirs, ours, ROTARY_TOLERANCE) for theirs, ours in zip(expected, rotated, strict=True)
        ):
            return rotation
    return None
