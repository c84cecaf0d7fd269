"""Feed a merged decoder as transformers.js and Optimum do."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.export.parity.judge import Caches
from edgeformer.export.parity.locate.cut_graph import ELEMENT_TYPES
from edgeformer.runtime.encoder_outputs import EncoderOutputs

Array = NDArray[Any]


class MergedRows:
    """Rows that read sources: their first run makes keys and values of the encoder's states, all others hand them back.

    States are NaN from the second run on, where nothing may read them.
    """

    def __init__(self, session: Any, sources: EncoderOutputs):
        self._session = session
        self._outputs = [value.name for value in session.get_outputs()]
        self._feeds: dict[str, Array] = {"encoder_hidden_states": sources.states, "use_cache_branch": np.array([False])}
        for value in session.get_inputs():
            if value.name == "encoder_attention_mask":  # recordings have none
                self._feeds[value.name] = sources.mask
            elif value.name.startswith("past_key_values."):
                _, heads, _, head_dim = value.shape
                empty = len(sources.mask), heads, 0, head_dim
                self._feeds[value.name] = np.zeros(empty, ELEMENT_TYPES[value.type])

    def feed(self, tokens: NDArray[np.int64], first: int) -> Array:
        """The `first` tokens of every row [B, n] in one run, then the others one by one: logits [B, n, V]."""
        return np.concatenate([self._run(part) for part in np.split(tokens, range(first, tokens.shape[1]), 1)], 1)

    def _run(self, tokens: NDArray[np.int64]) -> Array:
        logits, *presents = self._session.run(self._outputs, self._feeds | {"input_ids": tokens})
        pasts = [name.replace("present", "past_key_values") for name in self._outputs[1:]]
        self._feeds |= dict(zip(pasts, presents, strict=True))
        self._feeds["encoder_hidden_states"] = np.full_like(self._feeds["encoder_hidden_states"], np.nan)
        self._feeds["use_cache_branch"] = np.array([True])
        return logits

    def read(self, part: str) -> Caches:
        """Keys and values of the first row, layer by layer [H, n, D]; part: `decoder.` or `encoder.`"""
        caches = [each[0] for name, each in self._feeds.items() if part in name and name.startswith("past_key_values.")]
        return list(zip(caches[::2], caches[1::2], strict=True))
