"""Rotary embeddings of transformers as tables and our op, both found by running the originals.

A modeling file has a module that makes cosines and sines of positions, and a function that turns queries and keys by
them. Neither is known by name: the module's own buffers must reproduce its output as cos(position · frequency), and the
function's output on random numbers must be that of our op in one of the pairings below. Where one of them is something
else, it stays as it is: slower, and as right as before.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.errors import ExportError
from edgeformer.export.adapters.transformers_backend.float64 import unrounded

# Both sides are float64; angles of positions in the millions leave about 1e-10.
AGREEMENT = 1e-8

Layout = Literal["halves", "twice", "pairs"]
"""How the cosines of R/2 pairs stand in what the module returns: once, side by side twice, or each twice in a row."""

LAYOUTS: dict[Layout, Callable[[Tensor], Tensor]] = {
    "halves": lambda table: table,
    "twice": lambda table: torch.cat((table, table), -1),
    "pairs": lambda table: table.repeat_interleave(2, -1),
}


@dataclass(frozen=True)
class RotaryForm:
    """What a rotary module computes for one kind of layer: cos and sin of position · frequency, times a factor."""

    frequencies: tuple[float, ...]
    factor: float
    layout: Layout

    def tables(self, context_length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions, float64 [C, R/2] each."""
        positions = torch.arange(context_length, dtype=torch.float64)
        angles = torch.outer(positions, torch.tensor(self.frequencies, dtype=torch.float64))
        return angles.cos() * self.factor, angles.sin() * self.factor


@dataclass(frozen=True)
class Turn:
    """How a function turns heads: which elements pair up, where its heads are, and the sense of rotation.

    pairing: element i with i + R/2 (half), 2i with 2i + 1 (interleaved), or the latter with its result in halves
    (gathered). heads_axis: of the four-dimensional inputs, 1 or 2. backwards: by the negative angle.
    """

    pairing: Literal["half", "interleaved", "gathered"]
    heads_axis: int
    backwards: bool

    def __call__(self, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn x, four-dimensional with its heads on `heads_axis`; tables [C, R/2], `sin` negated where backwards."""
        heads = x.transpose(1, 2) if self.heads_axis == 1 else x  # [B, S, H, D]
        if self.pairing == "gathered":
            half = cos.shape[-1]
            pairs = heads[..., : 2 * half].unflatten(-1, (half, 2)).transpose(-1, -2).flatten(-2)
            heads = torch.cat((pairs, heads[..., 2 * half :]), -1) if heads.shape[-1] > 2 * half else pairs
        flat = heads.flatten(2)  # [B, S, H·D]
        turned = ops.rotary_embedding(flat, positions, cos, sin, heads.shape[2], self.pairing == "interleaved")
        turned = turned.unflatten(-1, (heads.shape[2], heads.shape[3]))
        return turned.transpose(1, 2) if self.heads_axis == 1 else turned


TURNS = tuple(
    Turn(pairing, heads_axis, backwards)
    for backwards in (False, True)
    for pairing in ("half", "interleaved", "gathered")
    for heads_axis in (1, 2)
)


def makes_angles(module: nn.Module) -> bool:
    """Whether a module looks like one that makes cosines and sines: no weights, and positions among its arguments."""
    if any(True for _ in module.parameters()) or any(True for _ in module.children()):
        return False
    return "position_ids" in inspect.signature(module.forward).parameters


class RotaryProbe:
    """A rotary module of transformers, to be asked what it computes for each kind of layer."""

    def __init__(self, module: nn.Module, name: str, context_length: int):
        self._module = copy.deepcopy(module)
        self._name = name
        self._context_length = context_length

    def form(self, layer_type: Mapping[str, Any]) -> RotaryForm | None:
        """Find the form; None where the module computes something else.

        layer_type: further arguments of its forward. Raises ExportError where what it computes depends on how long the
        text is.
        """
        length = self._context_length
        short = torch.arange(min(length, 8)).unsqueeze(0)
        whole = torch.cat((short, torch.tensor([[length // 2, length - 1]])), 1)
        returned = [self._run(positions, layer_type) for positions in (short, whole)]
        if any(pair is None for pair in returned):
            return None
        (cos, _), (long_cos, long_sin) = returned  # type: ignore[misc]
        if not torch.equal(cos, long_cos[:, : cos.shape[1]]):
            config = getattr(self._module, "config", None)
            parameters = getattr(config, "rope_parameters", None) or {}
            original = parameters.get("original_max_position_embeddings")
            hint = (
                f"Export with --context-length {original}." if original else "Export with a smaller --context-length."
            )
            raise ExportError(
                f"{self._name} ({type(self._module).__name__}) turns by other angles where a text is longer than it "
                f"was trained for, so that no table holds for the whole context of {length}. {hint}"
            )
        for layout, spread in LAYOUTS.items():
            for frequencies in self._candidates(long_cos.shape[-1] // (1 if layout == "halves" else 2)):
                factor = long_cos[0, 0, 0].item()  # of position 0, whose cosine is 1
                angles = whole[0].to(torch.float64)[:, None] * frequencies
                expected = spread(angles.cos() * factor), spread(angles.sin() * factor)
                if all(
                    _close(actual[0], wanted) for actual, wanted in zip((long_cos, long_sin), expected, strict=True)
                ):
                    return RotaryForm(tuple(frequencies.tolist()), factor, layout)
        return None

    def _candidates(self, count: int) -> Iterator[Tensor]:
        for buffer in self._module.buffers():
            if buffer.shape == (count,):
                yield buffer.to(torch.float64)

    @torch.no_grad()
    def _run(self, positions: Tensor, layer_type: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
        with unrounded():
            returned = self._module(torch.zeros(1, dtype=torch.float64), positions, **layer_type)
        if not isinstance(returned, tuple) or len(returned) != 2:
            return None
        cos, sin = returned
        fits = isinstance(cos, Tensor) and cos.dim() == 3 and cos.shape == sin.shape
        return (cos, sin) if fits and cos.shape[1] == positions.shape[1] else None


def find_turn(function: Callable[..., Any], arguments: "RotaryCall", form: RotaryForm) -> Turn | None:
    """Run `function` on random heads of the same sizes, and find the turn that it makes; None where it is another."""
    generator = torch.Generator().manual_seed(0)
    batch, length = arguments.positions.shape
    positions = torch.arange(batch * length).reshape(batch, length) % 97  # every row stands elsewhere
    tables = form.tables(97)
    cos, sin = (LAYOUTS[form.layout](table[positions]) for table in tables)
    heads = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in arguments.heads]
    try:
        with torch.no_grad(), unrounded():
            returned = arguments.call(function, heads, cos, sin)
    except (RuntimeError, ValueError, TypeError, IndexError):  # made for inputs of another form
        return None
    outputs = returned if isinstance(returned, tuple) else (returned,)
    for turn in TURNS:
        sine = -tables[1] if turn.backwards else tables[1]
        try:
            turned = [turn(x, positions, tables[0], sine) for x in heads]
        except (RuntimeError, IndexError):  # sizes that do not fit this axis
            continue
        if len(turned) == len(outputs) and all(_close(*pair) for pair in zip(outputs, turned, strict=True)):
            return turn
    return None


class RotaryCall:
    """The arguments of one call of such a function: heads to turn, and the cosines and sines that a module made."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], positions: Tensor,
        is_cos: Callable[[Any], bool], is_sin: Callable[[Any], bool],
    ):  # fmt: skip
        self._bound = inspect.signature(function).bind(*args, **kwargs)
        given = self._bound.arguments
        self._cos = [name for name, value in given.items() if is_cos(value)]
        self._sin = [name for name, value in given.items() if is_sin(value)]
        self._heads = [
            name
            for name, value in given.items()
            if isinstance(value, Tensor) and value.is_floating_point() and name not in (*self._cos, *self._sin)
        ]
        self.positions = positions
        self.heads: list[Tensor] = [given[name] for name in self._heads]

    @property
    def key(self) -> tuple[Any, ...]:
        """What decides how the function turns; the same with any batch and length."""
        others = {name: value for name, value in self._bound.arguments.items() if not isinstance(value, Tensor)}
        return (*((x.dim(), x.shape[-1]) for x in self.heads), repr(others))

    def call(self, function: Callable[..., Any], heads: list[Tensor], cos: Tensor, sin: Tensor) -> Any:
        """Call the function with other tensors in the same places."""
        given = dict(self._bound.arguments)
        given |= dict.fromkeys(self._cos, cos) | dict.fromkeys(self._sin, sin)
        given |= dict(zip(self._heads, heads, strict=True))
        bound = inspect.BoundArguments(self._bound.signature, given)
        return function(*bound.args, **bound.kwargs)


def _close(actual: Any, expected: Tensor) -> bool:
    if not isinstance(actual, Tensor) or actual.shape != expected.shape:
        return False
    return bool((actual - expected).abs().max() <= AGREEMENT * expected.abs().max())
