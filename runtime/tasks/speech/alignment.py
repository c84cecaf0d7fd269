"""Run the alignment graph of a speech model: how much each token of a text reads each position of the recording."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import CROSS_ATTENTIONS
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import Provider
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs
from edgeformer.runtime.sessions.buffer import Buffer
from edgeformer.runtime.sessions.session import CACHE_DTYPES


def cross_attentions(
    session: Any, manifest: Manifest, provider: Provider, outputs: EncoderOutputs, tokens: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the weights of the alignment heads, float32 [B, heads, S, source], for texts int64 [B, S] of one length.

    session: of the alignment graph. outputs: of the encoder, a row for each text.
    """
    rows, length = tokens.shape
    binding = session.io_binding()
    binding.bind_cpu_input("input_ids", np.ascontiguousarray(tokens))
    binding.bind_cpu_input("decoder_attention_mask", np.ones_like(tokens))
    outputs.bind(binding)
    past = length if manifest.plan.cache_form == "static" else 0  # a static cache is a buffer for all tokens
    tensors = manifest.cache.tensors("decoder.")
    buffers = [Buffer(tensor.shape(rows, past), CACHE_DTYPES[manifest.plan.arithmetic], provider) for tensor in tensors]
    for tensor, buffer in zip(tensors, buffers, strict=True):
        buffer.put(np.zeros(buffer.shape, buffer.dtype))
        buffer.bind_input(binding, tensor.past)
    binding.bind_output(CROSS_ATTENTIONS, "cpu")
    session.run_with_iobinding(binding)
    found: NDArray[np.float32] = binding.copy_outputs_to_cpu()[0]
    return found
