"""Where prompts are cut that have blocks: tokens that attend both ways, which one run reads and no prefix divides.

    prompt   …  31  [odd] [even] [even]  32  [odd] [even] [even]  33  …
    pieces   text ─┘ └────── block ───┘  └┘  └────── block ────┘  └─ text, in chunks

A number that stands for a state (`picture_rows.picture_numbers`) is odd where a block begins, counted from the
vocabulary, and even inside, so that two pictures side by side are two blocks, and tokens alone say where each ends.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import PictureTextConfig
from edgeformer.manifest.manifest import Manifest


def is_inside(tokens: NDArray[np.int64], vocab_size: int) -> NDArray[np.bool_]:
    """Return which tokens are numbers inside a block, behind its first."""
    return (tokens >= vocab_size) & ((tokens - vocab_size) % 2 == 0)


def has_blocks(manifest: Manifest) -> bool:
    """Return whether prompts of a model have blocks."""
    return isinstance(manifest.model, PictureTextConfig) and manifest.model.bidirectional is not None


def piece_end(tokens: Sequence[int] | NDArray[np.int64], start: int, chunk: int, vocab_size: int) -> int:
    """Return where the piece of a prompt ends that begins at `start`: a block, or up to `chunk` tokens before one.

    Raises ValueError for a start inside a block.
    """
    rest = np.asarray(tokens[start:], np.int64)
    inside = is_inside(rest, vocab_size)
    if inside[0]:
        raise ValueError(f"token {start} of the prompt is inside a block, which one run reads")
    if rest[0] >= vocab_size:
        ends = np.flatnonzero(~inside[1:])
        return start + (int(ends[0]) + 1 if len(ends) else len(rest))
    blocks = np.flatnonzero(rest[:chunk] >= vocab_size)
    return start + (int(blocks[0]) if len(blocks) else min(chunk, len(rest)))


def prefix_end(tokens: Sequence[int] | NDArray[np.int64], length: int, vocab_size: int) -> int:
    """Return the most tokens of a prompt, up to `length`, that end at no place inside a block."""
    outside = np.flatnonzero(~is_inside(np.asarray(tokens[: length + 1], np.int64), vocab_size))
    return length if length >= len(tokens) else int(outside[-1]) if len(outside) else 0
