"""Tensors that a checkpoint may store although the config determines them: tables, masks, counted positions.

Nothing reads them: a model of edgeformer computes them. Each is compared with what takes its place before it is left
out, because a checkpoint may hold another table than its config.json says. `Family.computed_tensors` names them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from edgeformer.config import ModelConfig, SinusoidalPositions, StackConfig
from edgeformer.families import Computed
from edgeformer.layers.position import rotary_frequencies, sinusoidal_table

ANGLE_ERROR = 4e-7
"""Error of a sine per position, in radians: transformers multiplies positions by frequencies in float32, each of which
has a relative error of a few times 2⁻²⁴ after its exponential."""

LOWEST = -1e4
"""The largest number that masks attention: float16's tables use it, others are further below."""


def difference(kind: Computed, stored: Tensor, config: ModelConfig, name: str) -> str | None:
    """Return how a stored tensor differs from what takes its place, to follow "the tensor"; None where it does not.

    name: that of the tensor in the checkpoint, which says whether it belongs to an encoder or a decoder.
    """
    stacks = _stacks(config, name)
    match kind:
        case "positions":
            counted = torch.arange(stored.numel(), dtype=torch.float64)
            return None if torch.equal(stored.double().flatten(), counted) else "does not count from 0"
        case "zeros":
            return "is not zero" if stored.any() else None
        case "masking_value":
            return None if stored.numel() == 1 and stored.item() <= LOWEST else f"is not one number below {LOWEST:.0f}"
        case "causal_mask":
            return _mask_difference(stored, stacks)
        case "rotary_frequencies":
            return _frequency_difference(stored, stacks)
        case "sinusoids":
            return _sinusoid_difference(stored, stacks)


def _stacks(config: ModelConfig, name: str) -> list[StackConfig]:
    """Return the stack of the model to which a tensor of the checkpoint belongs."""
    named: list[StackConfig] = [stack for half, stack in config.stacks.items() if f"{half}." in name]
    return [*named, config.output_stack][:1]


def _mask_difference(stored: Tensor, stacks: list[StackConfig]) -> str | None:
    """Compare a mask [..., N, N] with a causal one, or with one of a layer's window."""
    size = stored.shape[-1]
    if stored.dim() < 2 or stored.shape[-2] != size or stored.numel() != size * size:
        return f"is no square mask, but {list(stored.shape)}"
    visible = torch.ones(size, size, dtype=torch.bool).tril()
    masks = [visible]
    windows = {attention.window for stack in stacks for attention in stack.attentions} - {None}
    masks += [visible.triu(1 - window) for window in windows if window is not None]
    matches = any(torch.equal(stored.reshape(size, size) != 0, mask) for mask in masks)
    return None if matches else "is neither a causal mask nor one of the window of a layer"


def _frequency_difference(stored: Tensor, stacks: list[StackConfig]) -> str | None:
    """Compare frequencies [R/2] with those of the rotary embeddings, before and after their scaling."""
    rotaries = {attention.rotary for stack in stacks for attention in stack.attentions if attention.rotary is not None}
    # A table of transformers 4 is not scaled where its code divided the positions instead.
    choices = [rotary_frequencies(each) for rotary in rotaries for each in (rotary, replace(rotary, scaling=None))]
    tolerance = 1e-5 + 4 * _epsilon(stored)
    found = stored.double().flatten()
    for expected in choices:
        if found.shape == expected.shape and ((found - expected).abs() <= tolerance * expected.abs() + 1e-7).all():
            return None
    return "does not hold the frequencies that config.json implies" if choices else "belongs to no rotary embedding"


def _sinusoid_difference(stored: Tensor, stacks: list[StackConfig]) -> str | None:
    """Compare a table [rows, E], whose row r belongs to the position r − offset, with the computed one."""
    positions, width = stacks[0].position_embedding, stacks[0].embedding_width
    assert isinstance(positions, SinusoidalPositions), "a family says that its positions are sinusoids"
    if stored.dim() != 2 or stored.shape[1] != width or len(stored) <= positions.offset:
        return f"is no table of positions: it is {list(stored.shape)}"
    found = stored[positions.offset :].double()
    expected = sinusoidal_table(positions, len(found), width)
    tolerance = ANGLE_ERROR * (1 + torch.arange(len(found)) + positions.offset).double() + _epsilon(stored)
    worst = ((found - expected).abs() - tolerance.unsqueeze(1)).max().item()
    return None if worst <= 0 else f"differs from sines and cosines by {(found - expected).abs().max().item():.1e}"


def _epsilon(stored: Tensor) -> float:
    return torch.finfo(stored.dtype).eps if stored.is_floating_point() else 0.0
