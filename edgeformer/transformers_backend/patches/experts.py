"""Recognize the experts of a module by running them, and replace them by `ops.mixture_of_experts`.

Experts of transformers that take part in its experts interface (`use_experts_implementation`) say how their stacked
parameters lie: gate and up in one product or no gate, rows one after the other or interleaved, transposed, biases. What
they compute between the two products is found by running a small copy of them on random numbers; nothing is decided by
the name of a class or of an activation. Any other experts stay transformers' code.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.checkpoints.expert_weights import read_expert
from edgeformer.config import FeedForwardConfig
from edgeformer.errors import ExportError
from edgeformer.layers.experts import StackedFeedForward
from edgeformer.models.without_values import without_values
from edgeformer.ops.activation import ACTIVATIONS
from edgeformer.transformers_backend.float64 import agree, computing_in_float64
from edgeformer.transformers_backend.transformers_shim import experts_options, run_experts_eagerly

EXPERTS_TOLERANCE = 1e-11
"""Largest difference over the largest output: two float64 orders of the sums differ by less."""

MAGNITUDES = (1.0, 60.0)
"""Factors of the random inputs: a limit of the activations weighs nothing in the first, and much in the second."""

TRIED, HIDDEN, INNER, TOKENS = 2, 4, 6, 5
"""Experts of the small copy, its hidden and intermediate size, and the tokens that it is run on."""


@dataclass(frozen=True)
class ExpertsLayout:
    """How the stacked parameters of transformers' experts lie; the fields are the options of its experts interface.

    gate_up_proj [X, 2F, E] has the rows of the gate, then those of up, or one of each in turn if they are not
    concatenated; up_proj [X, F, E] is in its place where there is no gate; down_proj is [X, E, F]. The last two axes
    are swapped if they are transposed. Biases are [X, 2F] or [X, F], and [X, E].
    """

    is_concatenated: bool
    is_transposed: bool
    has_bias: bool
    has_gate: bool
    has_post_expert_norm: bool

    @property
    def first(self) -> str:
        """Return the name of the parameter of the first product."""
        return "gate_up_proj" if self.has_gate else "up_proj"

    def shapes(self, experts: int, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all parameters by name."""
        rows = 2 * inner if self.has_gate else inner
        matrices = {self.first: (rows, hidden), "down_proj": (hidden, inner)}
        shapes = {
            name: (experts, *(reversed(shape) if self.is_transposed else shape)) for name, shape in matrices.items()
        }
        biases = {f"{name}_bias": (experts, shape[0]) for name, shape in matrices.items()}
        return shapes | biases if self.has_bias else shapes

    def sources(self) -> dict[str, tuple[str, str]]:
        """Return for each parameter of ours the one of transformers that has it, and which rows of that."""
        parts = {"gate": (self.first, "gate"), "up": (self.first, "up")} if self.has_gate else {"up": (self.first, "")}
        parts["down"] = ("down_proj", "")
        weights = {f"{ours}.weight": source for ours, source in parts.items()}
        biases = {f"{ours}.bias": (f"{theirs}_bias", rows) for ours, (theirs, rows) in parts.items()}
        return weights | biases if self.has_bias else weights

    def cut(self, rows: str, expert: Tensor) -> Tensor:
        """Return the rows of the gate or of up, or all of them, [outputs, inputs] or [outputs], of one expert."""
        tensor = expert.T if self.is_transposed and expert.dim() == 2 else expert
        if not rows:
            return tensor
        if self.is_concatenated:
            return tensor.chunk(2)[0 if rows == "gate" else 1]
        return tensor[(0 if rows == "gate" else 1) :: 2]


@dataclass(frozen=True)
class ExpertsForm:
    """How one module of experts calls the op, and how its parameters lie.

    config: the network of one expert. weighted_input: as in the op.
    """

    config: FeedForwardConfig
    num_experts: int
    hidden_size: int
    weighted_input: bool
    layout: ExpertsLayout

    def build(self, dtype: torch.dtype) -> StackedFeedForward:
        """Return our layer, its parameters on the meta device; its inputs are those of transformers' experts."""
        with without_values():
            layer = StackedFeedForward(
                self.config, self.num_experts, self.hidden_size, self.weighted_input, dtype
            ).requires_grad_(False)
        return layer

    def readers(self, name: str, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, "StackReader"]]:
        """Return readers of our layer's parameters by their names; `weights` has those of the module `name`."""
        for ours, (theirs, rows) in self.layout.sources().items():
            yield f"{name}.{ours}", StackReader(weights, f"{name}.{theirs}", partial(self.layout.cut, rows))


@dataclass(frozen=True)
class StackReader:
    """Reads one of our stacked parameters [X, …], as a whole or one expert of it, from one of transformers'.

    cut: returns the part of one expert's tensor that our parameter has.
    """

    weights: Mapping[str, Tensor]
    name: str
    cut: Callable[[Tensor], Tensor]

    def __call__(self) -> Tensor:
        """Return the whole parameter."""
        return torch.stack([self.cut(expert) for expert in self.weights[self.name]])

    def read_expert(self, expert: int) -> Tensor:
        """Return one expert of it."""
        return self.cut(read_expert(self.weights, self.name, expert))


def find_experts(model: nn.Module) -> dict[str, ExpertsForm]:
    """Return the experts of transformers' experts interface by module name.

    Raises ExportError where the op does not compute the same.
    """
    known: dict[object, ExpertsForm | None] = {}
    forms = {}
    for name, module in model.named_modules():
        options = experts_options(module)
        if options is None:
            continue
        layout = ExpertsLayout(**options)
        shapes = tuple((key, value.shape) for key, value in module.named_parameters())
        key = type(module), shapes, repr(getattr(module, "act_fn", None)), tuple(_numbers(module))
        if key not in known:
            known[key] = experts_form(module, layout)
        form = known[key]
        if form is None:
            raise ExportError(
                f"{name} ({type(module).__name__}) computes something else with its experts than the op "
                "mixture_of_experts. Only a family file can export it."
            )
        forms[name] = form
    return forms


def experts_form(module: nn.Module, layout: ExpertsLayout) -> ExpertsForm | None:
    """Run a small copy of a module of experts and return its form, or None where the op does not compute the same."""
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    if len(shapes.get("down_proj", ())) != 3:
        return None
    experts, *down = shapes["down_proj"]
    hidden, inner = reversed(down) if layout.is_transposed else down
    if layout.has_post_expert_norm or shapes != layout.shapes(experts, hidden, inner):
        return None
    generator = torch.Generator().manual_seed(0)
    small = copy.deepcopy(module).eval()
    run_experts_eagerly(small)
    for name, shape in layout.shapes(TRIED, HIDDEN, INNER).items():
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        small.register_parameter(name, nn.Parameter(value, requires_grad=False))
    x = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    chosen = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0], [1, 0]])
    weights = torch.rand(chosen.shape, generator=generator, dtype=torch.float64) + 0.3
    expected = [_run(small, x * magnitude, chosen, weights) for magnitude in MAGNITUDES]
    if any(found is None for found in expected):
        return None
    stacked = {name: getattr(small, name) for name in shapes}
    for config, weighted_input in _candidates(module, layout):
        form = ExpertsForm(config, TRIED, HIDDEN, weighted_input, layout)
        layer = form.build(torch.float64)
        for name, reader in form.readers("", {f".{name}": value for name, value in stacked.items()}):
            owner, _, last = name.removeprefix(".").rpartition(".")
            layer.get_submodule(owner)._parameters[last] = nn.Parameter(reader(), requires_grad=False)
        outputs = (layer(x * magnitude, chosen, weights) for magnitude in MAGNITUDES)
        if all(agree(theirs, ours, EXPERTS_TOLERANCE) for theirs, ours in zip(expected, outputs, strict=True)):
            real = FeedForwardConfig(**vars(config) | {"intermediate_size": inner})
            return ExpertsForm(real, experts, hidden, weighted_input, layout)
    return None


def _candidates(module: nn.Module, layout: ExpertsLayout) -> Iterator[tuple[FeedForwardConfig, bool]]:
    """Return configs of one expert, with the numbers among the module's attributes as limits and slopes."""
    numbers = list(_numbers(module))
    for activation, weighted in product(ACTIVATIONS, (False, True)):
        betas = (1.0, *numbers) if activation == "silu" else (1.0,)
        limits = (None, *(number for number in numbers if number > 0)) if layout.has_gate else (None,)
        offsets = (0.0, 1.0) if layout.has_gate else (0.0,)
        for beta, limit, offset in product(betas, limits, offsets):
            yield (
                FeedForwardConfig(
                    intermediate_size=INNER, activation=activation, bias=layout.has_bias, gated=layout.has_gate,
                    beta=beta, limit=limit, up_offset=offset,
                ),
                weighted,
            )  # fmt: skip


def _numbers(module: nn.Module) -> Iterator[float]:
    values: list[Any] = [value for value in vars(module).values() if isinstance(value, float) and value > 0]
    return iter(sorted(set(values)))


@torch.no_grad()
def _run(module: nn.Module, x: Tensor, chosen: Tensor, weights: Tensor) -> Any:
    """Return what transformers' own code of the experts computes, or None where it takes other inputs."""
    try:
        with computing_in_float64():
            return module(x, chosen, weights)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
