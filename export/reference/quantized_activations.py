"""What a graph's products do to their inputs: eager PyTorch that rounds activations as MatMulNBits does.

Each block of inputs that shares a scale of the weight is rounded to 8 bits by its own largest magnitude, as
`accuracy_level` 4 of the op says; where an output has one scale, all inputs of a token are. A graph that does this
is held to eager PyTorch that does it, too.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.quantization import WeightFormat


def round_activations(module: nn.Module, formats: Mapping[str, WeightFormat]) -> None:
    """Let every layer that multiplies with a quantized weight round its input from now on."""
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        form = formats.get(first.setdefault(id(parameter), name))
        owner = module.get_submodule(name.rpartition(".")[0])
        if form is not None and not isinstance(owner, nn.Embedding):
            owner.register_forward_pre_hook(_rounding(form.block))


def _rounding(block: int | None) -> Any:
    def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, *rest = inputs
        return (rounded(x, block) if x.is_floating_point() else x, *rest)

    return hook


def rounded(x: Tensor, block: int | None) -> Tensor:
    """x [..., K] with every block of its last axis, or all of it, rounded to 255 steps around 0."""
    blocks = x.unflatten(-1, (-1, block or x.shape[-1]))
    scales = blocks.abs().amax(-1, keepdim=True) / 127
    return torch.where(scales == 0, 0, (blocks / scales).round() * scales).flatten(-2)
