"""The encoder's outputs for a batch of sources: computed once per request and bound to every decode step.

    encoder graph:  sources, padded on the right  →  keys and values for every layer of the decoder [B, H, source, D]

The decoder takes them as inputs. They are only written again where rows are left out of a batch.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provider
from edgeformer.runtime.caches.static_cache import move_rows
from edgeformer.runtime.sessions.buffer import Buffer, Rows
from edgeformer.runtime.sessions.narrow_floats import element_type
from edgeformer.runtime.sessions.session import CACHE_DTYPES

STATES = "last_hidden_state"


class CrossCache(Protocol):
    """The keys and values of sources, for some rows of a decoder."""

    def bind(self, binding: Any, rows: Rows = None) -> None:
        """Bind keys, values and mask of all rows, or of some, as inputs of the decoder graph."""


class EncoderOutputs:
    """The keys and values of the sources for cross-attention, a row of the decoder for each source.

    inputs, mask: the encoder's, for B sources. The attribute mask is int64 [rows, source], zero at padding; states is
    the encoder's last hidden state, float32 [B, source, E], which the decoder does not need; session is the encoder's.
    """

    def __init__(
        self,
        session: Any,
        manifest: Manifest,
        inputs: Mapping[str, NDArray[Any]],
        mask: NDArray[np.int64],
        provider: Provider,
    ):
        config = manifest.model
        assert config is not None
        geometry = config.output_stack.cross_geometry
        assert geometry is not None
        batch, length = mask.shape
        dtype = CACHE_DTYPES[manifest.plan.arithmetic]
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, element_type(array.dtype), array.shape, array.ctypes.data)
        self.states = np.empty((batch, length, config.input_stack.hidden_size), np.float32)
        states = self.states
        binding.bind_output(STATES, "cpu", 0, states.dtype, states.shape, states.ctypes.data)
        tensors = geometry.tensors("encoder.")
        buffers = [Buffer(tensor.shape(batch, length), dtype, provider) for tensor in tensors]
        for tensor, buffer in zip(tensors, buffers, strict=True):
            buffer.bind_output(binding, tensor.present)
        session.run_with_iobinding(binding)
        self.session = session
        self.mask = mask.copy()  # `reorder` writes it
        self._buffers = {tensor.past: buffer for tensor, buffer in zip(tensors, buffers, strict=True)}
        self._provider = provider

    @property
    def bytes(self) -> int:
        """The size of the keys and values."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def repeated(self, copies: int) -> Self:
        """Return the same outputs with `copies` rows of the decoder for each row of these."""
        if copies == 1:
            return self
        rows = np.repeat(np.arange(len(self.mask)), copies)
        made = copy(self)
        made.mask = self.mask[rows]
        made._buffers = {name: _selected(each, rows, self._provider) for name, each in self._buffers.items()}
        return made

    def reorder(self, parents: NDArray[np.int64]) -> None:
        """Replace every row r below len(parents) by a copy of row parents[r], in place."""
        self.mask[: len(parents)] = self.mask[parents]
        for buffer in self._buffers.values():
            move_rows(buffer, parents)

    def read(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return copies of the keys and values of each layer: [rows, H, source, D]."""
        arrays = [buffer.host().copy() for buffer in self._buffers.values()]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def bind(self, binding: Any, rows: Rows = None) -> None:
        """Bind keys, values and mask of all rows, or of some, as inputs of the decoder graph."""
        bind_mask(binding, self.mask, rows)
        for name, buffer in self._buffers.items():
            buffer.bind_input(binding, name, rows)


def bind_mask(binding: Any, mask: NDArray[np.int64], rows: Rows) -> None:
    """Bind the mask of all rows of the decoder, or of some; it must stay where it is until the graph has run."""
    if rows is not None:
        mask = mask[rows : rows + 1] if isinstance(rows, int) else mask[rows.start : rows.stop]
    binding.bind_input("encoder_attention_mask", "cpu", 0, mask.dtype, mask.shape, mask.ctypes.data)


def _selected(buffer: Buffer, rows: NDArray[np.int64], provider: Provider) -> Buffer:
    """Return a buffer with copies of these rows."""
    selected = Buffer((len(rows), *buffer.shape[1:]), buffer.dtype.type, provider)
    content = selected.host()
    np.take(buffer.host(), rows, 0, out=content, mode="clip")  # the other modes copy once more
    selected.put(content)
    return selected


def pad_right(rows: list[list[int]], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return token ids of several texts as one array, padded on the right, and its mask: int64 [B, longest] each."""
    longest = max(map(len, rows))
    ids = np.full((len(rows), longest), pad, np.int64)
    mask = np.zeros((len(rows), longest), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return ids, mask


def check_length(tokens: int, context_length: int, what: str) -> None:
    """Raise RequestError for a text that is longer than the encoder's context; what: names the text."""
    if tokens > context_length:
        raise RequestError(
            f"{what} has {tokens} tokens, and the model takes {context_length} at most. Shorten it or split it."
        )
