"""Eager PyTorch that quantizes activations as MatMulNBits does.

With `accuracy_level` 4 that op rounds each block of inputs that shares a weight scale to 8 bits, by the block's own
largest magnitude. Per-channel products do so with all inputs of a token. Graphs with such products are compared with
eager PyTorch that rounds the same way.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from edgeformer.export.quantize.rounding import in_blocks
from edgeformer.layers.experts import StackedFeedForward, StackedLinear
from edgeformer.manifest.quantization import WeightFormat


def round_activations(module: nn.Module, formats: Mapping[str, WeightFormat]) -> None:
    """Make every layer that multiplies with a quantized weight round its input. formats: by parameter name."""
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        form = formats.get(first[id(parameter)])
        owner = module.get_submodule(name.rpartition(".")[0])
        if form is not None and isinstance(owner, StackedLinear):
            experts = module.get_submodule(name.rsplit(".", 2)[0])
            assert isinstance(experts, StackedFeedForward)
            experts.rounded = partial(fake_quantize_activations, block=form.block)  # all layers have one format
            continue
        if form is not None and not isinstance(owner, nn.Embedding):
            owner.register_forward_pre_hook(partial(_round_input, form.block))


def _round_input(block: int | None, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    x, *rest = inputs
    return (fake_quantize_activations(x, block) if x.is_floating_point() else x, *rest)


def fake_quantize_activations(x: Tensor, block: int | None) -> Tensor:
    """Return x [..., K] quantized to −127 … 127 and back, with one scale per block of its last axis.

    block: its size, which the last one may lack some of; None for one scale per token.
    """
    blocks = in_blocks(x, block)
    scales = blocks.abs().amax(-1, keepdim=True) / 127
    rounded = torch.where(scales == 0, 0, (blocks / scales).round() * scales).flatten(-2)
    return rounded[..., : x.shape[-1]]
