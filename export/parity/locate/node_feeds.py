"""Inputs on which the nodes of a graph are run: random tokens, caches and masks of a few short rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import REQUEST_LENGTH, SHAPES
from edgeformer.export.lower import LoweringOptions
from edgeformer.models.graph_specs import GraphSpec
from edgeformer.models.model_spec import ModelSpec

Array = NDArray[Any]

TOKENS = 12
"""Tokens of the longest row, cached ones included."""
SOURCE = 7
"""Length of the longest source that a decoder reads; it differs from TOKENS, so that the two cannot be mixed up."""
SEED = 0


@dataclass(frozen=True)
class Feed:
    """Inputs of a graph for one run.

    written: which positions of the rows hold tokens so far, [B, T]; for a decoder, which slots of its cache do after
    the run. padding: which of the new positions hold no token, [B, S].
    """

    name: str
    inputs: dict[str, Array]
    written: NDArray[np.bool_]
    padding: NDArray[np.bool_]


def make_feeds(
    spec: GraphSpec, model_spec: ModelSpec, precision: np.dtype[Any], lowering: LoweringOptions
) -> list[Feed]:
    """Return the feeds of a graph; their rows are shorter where the model's context is.

    A decoder is fed a padded batch of prompts, a chunk after a past, and a batch of single steps after pasts of
    different lengths; an encoder a padded batch of texts, one recording, or pictures. With a dynamic cache only the
    mask marks padding, which our ops do not read for positions, so its rows have no padding.
    """
    form = lowering.cache_form
    context = spec.stack.context_length if spec.stack is not None else model_spec.context_length
    total = min(TOKENS, context)
    feeds: list[tuple[str, tuple[int, ...], int, int]]
    if spec.stack is not None and spec.stack.audio is not None:
        # One row: it has no padding, and every value of the graph is kept for its thousands of frames.
        feeds = [("recording", (context,), context, 0)]
    elif spec.stack is not None and spec.stack.patch_stem is not None:
        feeds = [("pictures", (context, context), context, 0)]
    elif spec.stack is not None and spec.stack.padded_grids:
        counts = tuple(grid.patches for grid in spec.stack.padded_grids[:2])
        feeds = [("pictures", counts, max(counts), 0)]
    elif not spec.caches:
        feeds = [("batch of texts", (total, max(total // 2, 1)), total, 0)]
    else:
        prompt, chunk = max(total - 3, 1), max(total // 2 - 1, 1)
        shorter = (lambda length: length) if form == "dynamic" else (lambda length: max(length // 2, 1))
        feeds = [("prompt", (prompt, shorter(prompt)), prompt, prompt if form == "static" else 0)]
        if total > 1:
            # A graph that takes both forms gets a dynamic cache for the chunk and a static one for the steps.
            past = total if form == "static" else total - chunk
            slots = total - 1 if form == "dynamic" else total
            feeds += [("chunk", (total,), chunk, past), ("step", (total, shorter(total)), 1, slots)]
    # The standard's Attention multiplies masked slots by zero, which must not give NaN.
    unwritten = 0.0 if lowering.ops == "standard" and form == "static" else np.nan
    maker = _FeedMaker(spec, model_spec, precision, unwritten)
    return [maker.feed(name, np.array(rows), new, past) for name, rows, new, past in feeds]


class _FeedMaker:
    """Makes random feeds of one graph. unwritten: the number in cache slots that hold no token."""

    def __init__(self, spec: GraphSpec, model_spec: ModelSpec, precision: np.dtype[Any], unwritten: float):
        self._spec, self._model_spec, self._precision, self._unwritten = spec, model_spec, precision, unwritten
        self._random = np.random.default_rng(SEED)

    def feed(self, name: str, lengths: NDArray[np.int64], new: int, past: int) -> Feed:
        """Return a feed of rows of `lengths` tokens whose last `new` are new, and a cache of `past` slots.

        In a batch of prompts, shorter rows have fewer new tokens.
        """
        written = np.arange(lengths.max()) < lengths[:, None]
        source = written
        if self._spec.caches:
            source = np.arange(SOURCE) < np.array([SOURCE, SOURCE // 2])[: len(lengths), None]
        sizes = {
            "batch_size": len(lengths), "sequence_length": new, "past_sequence_length": past,
            "total_sequence_length": written.shape[1], "source_length": source.shape[1],
            "num_patches": written.shape[1],
        }  # fmt: skip
        before = np.arange(past) < lengths[:, None] - new
        inputs: dict[str, Array] = {}
        for tensor in self._spec.inputs:
            if tensor.name == REQUEST_LENGTH:  # a constant of the graph
                continue
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims]
            if tensor.name.endswith("attention_mask"):
                inputs[tensor.name] = (source if "source_length" in tensor.dims else written).astype(np.int64)
            elif tensor.name == SHAPES:
                assert self._spec.stack is not None
                grids = self._spec.stack.padded_grids[: len(lengths)]
                inputs[tensor.name] = np.array([(grid.rows, grid.columns) for grid in grids], np.int64)
            elif tensor.integer:
                inputs[tensor.name] = self._random.integers(0, self._vocab_size(tensor.name), shape)
            else:
                # Random keys and values make every cache different; they are rounded, so that casting adds no error.
                value = self._random.normal(size=shape).astype(self._precision).astype(np.float64)
                if "past_sequence_length" in tensor.dims:
                    value = np.where(before[:, None, :, None], value, self._unwritten)
                elif "source_length" in tensor.dims:
                    value = np.where(source[:, None, :, None], value, 0.0)
                inputs[tensor.name] = value
        return Feed(name, inputs, written, padding=np.arange(new) >= lengths[:, None])

    def _vocab_size(self, name: str) -> int:
        """Return the number of different ids that an input may hold."""
        stack = self._spec.stack
        if stack is None:
            return self._model_spec.vocab_size
        return stack.token_types if name == "token_type_ids" else stack.vocab_size
