"""The encoder's outputs: the keys and values of sources, computed once per request and bound to every decode step.

    encoder graph:  sources, padded on the right  →  keys and values for every layer of the decoder

    keys of layer i    [ row 0 | row 1 | … ]    a row: [H, length, D], of which the mask says what is the source's

The decoder takes them as inputs. They are written again only where a row moves, or where a request gets a row of an
engine (`EncoderOutputs.empty`): `length` is then that of the longest source since the rows were last all free. Slots
behind a source are zero, because attention multiplies them with zero.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.sessions.buffer import Buffer, Rows
from edgeformer.runtime.sessions.narrow_floats import element_type
from edgeformer.runtime.sessions.session import CACHE_DTYPES

STATES = "last_hidden_state"


class EncoderOutputs:
    """The keys and values of sources for cross-attention, a row of the decoder for each source.

    mask: int64 [rows, source], zero at padding. states: the encoder's last hidden state, float32 [B, source, E], which
    the decoder does not need. session: the encoder's, of outputs that it computed.
    """

    def __init__(self, manifest: Manifest, mask: NDArray[np.int64], buffers: list[Buffer], provider: Provider):
        self.mask = mask
        self.session: Any = None
        self.states = np.empty((0, 0, 0), np.float32)
        self._manifest = manifest
        self._geometry = _geometry(manifest)
        self._tensors = self._geometry.tensors("encoder.")
        self._buffers = buffers
        self._provider = provider

    @classmethod
    def run(
        cls,
        session: Any,
        manifest: Manifest,
        inputs: Mapping[str, NDArray[Any]],
        mask: NDArray[np.int64],
        provider: Provider,
    ) -> Self:
        """Run an encoder on B sources. inputs, mask: the encoder's."""
        batch, length = mask.shape
        tensors, dtype = _geometry(manifest).tensors("encoder."), CACHE_DTYPES[manifest.plan.arithmetic]
        provider = provider if provider.addresses_rows else CPU  # graphs are bound to each row of them
        outputs = cls(
            manifest, mask.copy(), [Buffer(each.shape(batch, length), dtype, provider) for each in tensors], provider
        )
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, element_type(array.dtype), array.shape, array.ctypes.data)
        assert manifest.model is not None
        states = np.empty((batch, length, manifest.model.input_stack.hidden_size), np.float32)
        binding.bind_output(STATES, "cpu", 0, states.dtype, states.shape, states.ctypes.data)
        for tensor, buffer in zip(tensors, outputs._buffers, strict=True):
            buffer.bind_output(binding, tensor.present)
        session.run_with_iobinding(binding)
        outputs.session, outputs.states = session, states
        return outputs

    @classmethod
    def empty(cls, manifest: Manifest, rows: int) -> Self:
        """Return rows on the CPU that take memory once they are written."""
        outputs = cls(manifest, np.zeros((rows, 0), np.int64), [], CPU)
        outputs._allocate(rows, 1)
        return outputs

    @property
    def bytes(self) -> int:
        """The size of the keys and values."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def row_bytes(self, length: int) -> int:
        """Return the bytes of a row for a source of this length."""
        itemsize = np.dtype(CACHE_DTYPES[self._manifest.plan.arithmetic]).itemsize
        return self._geometry.elements(1, length) * itemsize

    def repeated(self, copies: int) -> Self:
        """Return the same outputs with `copies` rows of the decoder for each row of these."""
        if copies == 1:
            return self
        rows = np.repeat(np.arange(len(self.mask)), copies)
        buffers = [_selected(each, rows, self._provider) for each in self._buffers]
        made = type(self)(self._manifest, self.mask[rows], buffers, self._provider)
        made.session, made.states = self.session, self.states
        return made

    def reserve(self, length: int, used: range) -> bool:
        """Make room for a source of this length, and keep the used rows; return whether buffers have moved."""
        had = self.mask.shape[1]
        if length == had or (used and length < had):
            return False
        rows, mask, buffers = slice(used.start, used.stop), self.mask, self._buffers
        self._allocate(len(mask), length)
        self.mask[rows, :had] = mask[rows, :length]
        for new, old in zip(self._buffers, buffers, strict=True):
            new.host()[rows, :, :had] = old.host()[rows, :, :length]
        return True

    def write(self, row: int, outputs: "EncoderOutputs") -> None:
        """Replace a row by the outputs for one source."""
        length = outputs.mask.shape[1]
        self.mask[row] = 0
        self.mask[row, :length] = outputs.mask[0]
        for buffer, other in zip(self._buffers, outputs._buffers, strict=True):
            content = buffer.host()[row]
            content[:, :length], content[:, length:] = other.host()[0], 0

    def move(self, source: int, target: int) -> None:
        """Replace a row by a copy of another one."""
        self.mask[target] = self.mask[source]
        for buffer in self._buffers:
            content = buffer.host()
            content[target] = content[source]
            buffer.put(content)

    def read(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return copies of the keys and values of each layer: [rows, H, source, D]."""
        arrays = [buffer.host().copy() for buffer in self._buffers]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def bind(self, binding: Any, rows: Rows = None) -> None:
        """Bind keys, values and mask of all rows, or of some, as inputs of the decoder graph.

        The mask must stay where it is until the graph has run.
        """
        mask = self.mask
        if rows is not None:
            mask = mask[rows : rows + 1] if isinstance(rows, int) else mask[rows.start : rows.stop]
        binding.bind_input("encoder_attention_mask", "cpu", 0, mask.dtype, mask.shape, mask.ctypes.data)
        for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
            buffer.bind_input(binding, tensor.past, rows)

    def _allocate(self, rows: int, length: int) -> None:
        dtype = CACHE_DTYPES[self._manifest.plan.arithmetic]
        self.mask = np.zeros((rows, length), np.int64)
        self._buffers = [Buffer.reserved(each.shape(rows, length), dtype) for each in self._tensors]


def _geometry(manifest: Manifest) -> CacheGeometry:
    geometry = None if manifest.model is None else manifest.model.output_stack.cross_geometry
    assert geometry is not None
    return geometry


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
