"""Recognize how a module counts the positions of tokens, by running it.

Some modules embed positions by a module of their own, an embedding that is given positions and adds an offset to them.
It is replaced where it returns the rows of its weight for position + offset. Others number their tokens from another
number than 0 on: one more than that of the padding token, as RoBERTa does.
"""

import copy
import inspect

import torch
from torch import Tensor, nn

TRIED = 5
"""Positions that a module is run on."""


def find_position_embeddings(model: nn.Module) -> dict[str, int]:
    """Return the offsets of the embeddings that are given positions, by module name."""
    offsets = {name: position_offset(module) for name, module in model.named_modules()}
    return {name: offset for name, offset in offsets.items() if offset is not None}


def position_offset(module: nn.Module) -> int | None:
    """Return what an embedding adds to the positions that it is given, or None for any other module."""
    if not isinstance(module, nn.Embedding) or "position_ids" not in inspect.signature(module.forward).parameters:
        return None
    embedding = copy.deepcopy(module)
    numbers = torch.arange(module.num_embeddings, dtype=torch.float64)
    embedding.weight = nn.Parameter(numbers.unsqueeze(1), requires_grad=False)  # each row is its own number
    rows = _rows(embedding, torch.arange(TRIED))
    if rows is None or rows.numel() != TRIED:
        return None
    offset = int(rows.flatten()[0])
    return offset if torch.equal(rows.flatten(), offset + torch.arange(TRIED, dtype=torch.float64)) else None


def _rows(embedding: nn.Module, positions: Tensor) -> Tensor | None:
    """Return the rows of some positions; the first argument is token ids or their shape, which positions make idle."""
    tokens = torch.zeros(1, len(positions), dtype=torch.int64)
    for first in (tokens, tokens.shape):
        try:
            rows: Tensor = embedding(first, position_ids=positions)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            continue
        return rows
    return None


def first_position(model: nn.Module) -> int:
    """Return the position that a model gives its first token where none are given."""
    for module in model.modules():
        create = getattr(module, "create_position_ids_from_input_ids", None)
        padding = getattr(module, "padding_idx", None)
        if create is None or not isinstance(padding, int) or isinstance(module, nn.Embedding):
            continue
        positions = create(torch.full((1, TRIED), padding + 1), padding)
        if torch.equal(positions - positions[0, 0], torch.arange(TRIED).unsqueeze(0)):
            return int(positions[0, 0])
    return 0
