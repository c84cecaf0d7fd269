"""Which of a module's norms are RMSNorm, found by running them.

The name of a class proves nothing: each candidate is run in float64 on random inputs of several magnitudes, and is
replaced by ours only where it computes x / sqrt(mean(x²) + ε) times its weight, one plus its weight, or nothing, with
an ε among its attributes. Any other norm stays as it is.
"""

import copy
import inspect
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.export.adapters.transformers_backend.float64 import unrounded

# Two ways to the same float64 formula differ by less, and an ε of 1e-5 instead of 1e-6 by far more.
AGREEMENT = 1e-11
MAGNITUDES = (1e-3, 1.0, 1e3)


@dataclass(frozen=True)
class RMSNormForm:
    """What a norm computes. gain: what it multiplies with; size: elements of its weight."""

    gain: Literal["weight", "1 + weight", "none"]
    epsilon: float
    size: int


class PatchedRMSNorm(nn.Module):
    """An RMSNorm of transformers as our op; its one parameter, `gain`, is what it multiplies with."""

    def __init__(self, form: RMSNormForm, dtype: torch.dtype):
        super().__init__()
        self.form = form
        gain = None if form.gain == "none" else nn.Parameter(torch.empty(form.size, dtype=dtype, device="meta"))
        self.register_parameter("gain", gain)

    def forward(self, x: Tensor) -> Tensor:
        """[..., E] → [..., E]."""
        return ops.rms_norm(x, self.gain, self.form.epsilon)


def find_rms_norms(model: nn.Module, width: int) -> tuple[dict[str, RMSNormForm], list[str]]:
    """The norms that are RMSNorm, by the name of the module, and the names of classes of those that are not.

    width: the size of vectors that a norm without a weight is tried on.
    """
    forms, others = {}, []
    for name, module in model.named_modules():
        if "Norm" not in type(module).__name__ or list(module.children()):
            continue
        form = rms_norm_form(module, width)
        if form is not None:
            forms[name] = form
        elif not isinstance(module, nn.LayerNorm):
            others.append(type(module).__name__)
    return forms, sorted(set(others))


def rms_norm_form(module: nn.Module, width: int) -> RMSNormForm | None:
    """Run a copy of the module and find the form that it has; None where it is no RMSNorm over the last dimension."""
    parameters = dict(module.named_parameters())
    required = [
        parameter
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if len(required) != 1 or len(parameters) > 1 or any(value.dim() != 1 for value in parameters.values()):
        return None
    generator = torch.Generator().manual_seed(0)
    name, weight = next(iter(parameters.items()), (None, None))
    size = width if weight is None else len(weight)
    probe = copy.deepcopy(module).eval()
    known = torch.rand(size, generator=generator, dtype=torch.float64) + 0.5
    if name is not None:
        probe.register_parameter(name, nn.Parameter(known, requires_grad=False))
    # With a mean that is not 0, so that a LayerNorm is told from it.
    x = torch.randn(3, 5, size, generator=generator, dtype=torch.float64) + 0.7
    gains: dict[Literal["weight", "1 + weight", "none"], Tensor | None] = (
        {"none": None} if weight is None else {"weight": known, "1 + weight": 1 + known}
    )
    for gain, factor in gains.items():
        for epsilon in _epsilons(module):
            if all(_agrees(probe, x * magnitude, factor, epsilon) for magnitude in MAGNITUDES):
                return RMSNormForm(gain, epsilon, size)
    return None


def _epsilons(module: nn.Module) -> list[float]:
    """Numbers among the module's attributes that may be its ε."""
    return sorted({value for value in vars(module).values() if isinstance(value, float) and 0 < value < 0.1})


@torch.no_grad()
def _agrees(norm: nn.Module, x: Tensor, gain: Tensor | None, epsilon: float) -> bool:
    try:
        with unrounded():
            actual = norm(x)
    except (RuntimeError, ValueError, TypeError, IndexError):  # made for inputs of another form
        return False
    if not isinstance(actual, Tensor) or actual.shape != x.shape:
        return False
    expected = ops.rms_norm(x, gain, epsilon)
    return bool((actual - expected).abs().max() <= AGREEMENT * expected.abs().max())
