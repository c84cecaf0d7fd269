"""The keys and values of the sources of all rows of an engine, written when a request gets its row.

    keys of layer i    [ row 0 | row 1 | … ]    a row: [H, length, D], of which the mask says what is the source's

`length` is that of the longest source since the rows were last all free. Slots behind a source are zero, because
attention multiplies them with zero.
"""

from typing import Any

import numpy as np

from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs, bind_mask
from edgeformer.runtime.sessions.buffer import Buffer, Rows
from edgeformer.runtime.sessions.session import CACHE_DTYPES


class CrossRows:
    """Keys, values and masks for `rows` rows of a decoder, on the CPU."""

    def __init__(self, manifest: Manifest, rows: int):
        geometry = None if manifest.model is None else manifest.model.output_stack.cross_geometry
        assert geometry is not None
        self._dtype = CACHE_DTYPES[manifest.plan.arithmetic]
        self._geometry, self._tensors = geometry, geometry.tensors("encoder.")
        self._rows = rows
        self._allocate(1)

    def bytes(self, length: int) -> int:
        """Return the bytes of a row for a source of this length."""
        return self._geometry.size_in_bytes(np.dtype(self._dtype).itemsize, 1, length)

    def bind(self, binding: Any, rows: Rows = None) -> None:
        """Bind keys, values and mask of all rows, or of some, as inputs of the decoder graph."""
        bind_mask(binding, self._mask, rows)
        for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
            buffer.bind_input(binding, tensor.past, rows)

    def reserve(self, length: int, used: range) -> bool:
        """Make room for a source of this length, and keep the used rows; return whether buffers have moved."""
        if length == self._length or (used and length < self._length):
            return False
        rows = slice(used.start, used.stop)
        mask, buffers, kept = self._mask, self._buffers, self._length
        self._allocate(length)
        self._mask[rows, :kept] = mask[rows, :length]
        for new, old in zip(self._buffers, buffers, strict=True):
            new.host()[rows, :, :kept] = old.host()[rows, :, :length]
        return True

    def write(self, row: int, outputs: EncoderOutputs) -> None:
        """Replace a row by the outputs for one source."""
        length = outputs.mask.shape[1]
        self._mask[row] = 0
        self._mask[row, :length] = outputs.mask[0]
        arrays = [array for layer in outputs.read() for array in layer]
        for buffer, array in zip(self._buffers, arrays, strict=True):
            content = buffer.host()[row]
            content[:, :length], content[:, length:] = array[0], 0

    def move(self, source: int, target: int) -> None:
        """Replace a row by a copy of another one."""
        self._mask[target] = self._mask[source]
        for buffer in self._buffers:
            buffer.host()[target] = buffer.host()[source]

    def _allocate(self, length: int) -> None:
        self._length = length
        self._mask = np.zeros((self._rows, length), np.int64)
        self._buffers = [Buffer.reserved(each.shape(self._rows, length), self._dtype) for each in self._tensors]
