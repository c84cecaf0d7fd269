"""Recognize the RMSNorms of a module by running them, and replace them by `ops.rms_norm`.

The name of a class proves nothing: each candidate is run in float64 on random inputs of several magnitudes, and is
replaced only where it computes x / sqrt(mean(x²) + ε) times its weight, one plus its weight, or nothing, with an ε
among its attributes. Any other norm stays transformers' code.
"""

import copy
import inspect
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.transformers_backend.float64 import agree, computing_in_float64

RMS_NORM_TOLERANCE = 1e-11
"""Largest difference over the largest output: two float64 orders of the formula differ by less, an ε of 1e-5 instead
of 1e-6 by far more."""

MAGNITUDES = (1e-3, 1.0, 1e3)
"""Factors of the random inputs: ε weighs much in the first, and nothing in the last."""

Gain = Literal["weight", "1 + weight", "none"]


@dataclass(frozen=True)
class RMSNormForm:
    """The formula of one norm. gain: the factor after normalizing; size: elements of a vector, E."""

    gain: Gain
    epsilon: float
    size: int


class PatchedRMSNorm(nn.Module):
    """An RMSNorm of transformers as our op; its one parameter, `gain` [E], is absent where the form has none."""

    def __init__(self, form: RMSNormForm, dtype: torch.dtype):
        super().__init__()
        self.form = form
        self.gain: Tensor | None
        gain = None if form.gain == "none" else nn.Parameter(torch.empty(form.size, dtype=dtype, device="meta"))
        self.register_parameter("gain", gain)

    @property
    def weight(self) -> Tensor | None:
        """The gain; some code of transformers asks it for its dtype."""
        return self.gain

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [..., E] over its last axis."""
        return ops.rms_norm(x, self.gain, self.form.epsilon)


def find_rms_norms(model: nn.Module, width: int) -> tuple[dict[str, RMSNormForm], list[str]]:
    """Return the RMSNorms by module name, and the class names of other norms that are not LayerNorm.

    width: elements of the vectors that a norm without a weight is tried on.
    """
    forms, others = {}, set()
    for name, module in model.named_modules():
        if "Norm" not in type(module).__name__ or list(module.children()):
            continue
        form = rms_norm_form(module, width)
        if form is not None:
            forms[name] = form
        elif not isinstance(module, nn.LayerNorm):
            others.add(type(module).__name__)
    return forms, sorted(others)


def rms_norm_form(module: nn.Module, width: int) -> RMSNormForm | None:
    """Run a copy of a norm and return its form, or None where it is no RMSNorm over the last axis."""
    parameters = dict(module.named_parameters())
    inputs = inspect.signature(module.forward).parameters  # a norm with a gate has two, though it may do without
    if len(inputs) != 1 or len(parameters) > 1 or any(value.dim() != 1 for value in parameters.values()):
        return None
    generator = torch.Generator().manual_seed(0)
    name, weight = next(iter(parameters.items()), (None, None))
    size = width if weight is None else len(weight)
    norm = copy.deepcopy(module).eval()
    known = torch.rand(size, generator=generator, dtype=torch.float64) + 0.5
    if name is not None:
        norm.register_parameter(name, nn.Parameter(known, requires_grad=False))
    # The mean of x is not 0, or a LayerNorm would compute the same.
    x = torch.randn(3, 5, size, generator=generator, dtype=torch.float64) + 0.7
    gains: dict[Gain, Tensor | None] = {"none": None} if weight is None else {"weight": known, "1 + weight": 1 + known}
    # The ε is one of the numbers among the module's attributes.
    epsilons = sorted({value for value in vars(module).values() if isinstance(value, float) and 0 < value < 0.1})
    for gain, factor in gains.items():
        for epsilon in epsilons:
            if all(_computes(norm, x * magnitude, factor, epsilon) for magnitude in MAGNITUDES):
                return RMSNormForm(gain, epsilon, size)
    return None


@torch.no_grad()
def _computes(norm: nn.Module, x: Tensor, gain: Tensor | None, epsilon: float) -> bool:
    """Return whether `norm` computes our op of x [..., E]."""
    try:
        with computing_in_float64():
            actual = norm(x)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):  # the norm takes other inputs
        return False
    return agree(actual, ops.rms_norm(x, gain, epsilon), RMS_NORM_TOLERANCE)
