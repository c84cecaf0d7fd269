"""What a graph's products do to their inputs: eager PyTorch that rounds activations as MatMulNBits does.

Each block of inputs that shares a scale of the weight is rounded to 8 bits by its own largest magnitude, as
`accuracy_level` 4 of the op says. A graph that does this is held to eager PyTorch that does it, too.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.manifest import Manifest
from edgeformer.quantization import WeightFormat


def formats_of(manifest: Manifest) -> dict[str, WeightFormat]:
    """The format of every parameter of a bundle that is quantized."""
    return {
        parameter: stored.quantized
        for stored in manifest.weights.values()
        for parameter in stored.parameters
        if stored.quantized is not None
    }


def round_activations(module: nn.Module, formats: Mapping[str, WeightFormat]) -> None:
    """Let every linear layer whose weight is quantized round its input from now on."""
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        form = formats.get(first.setdefault(id(parameter), name))
        owner = module.get_submodule(name.rpartition(".")[0])
        if form is not None and isinstance(owner, nn.Linear):
            owner.register_forward_pre_hook(_rounding(form.block))


def _rounding(block: int) -> Any:
    def hook(layer: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        return rounded(inputs[0], block)

    return hook


def rounded(x: Tensor, block: int) -> Tensor:
    """x [..., K] with every block of its last axis rounded to 255 steps around 0."""
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1, keepdim=True) / 127
    return torch.where(scales == 0, 0, (blocks / scales).round() * scales).flatten(-2)
