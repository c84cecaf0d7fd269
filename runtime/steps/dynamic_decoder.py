"""A decoder over the dynamic cache, which every run takes and returns anew."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provider
from edgeformer.runtime.caches.dynamic_cache import DynamicCache
from edgeformer.runtime.sessions.session import cache_dtype
from edgeformer.runtime.steps.decoder import Decoder, Logits, Mask, Tokens


class DynamicDecoder(Decoder):
    """A decoder over a cache that every run returns anew; its slots are in the order of the runs, padding included."""

    cache: DynamicCache

    def prefill_padded(self, tokens: NDArray[np.int64], mask: Mask) -> Logits:
        """Append prompts [B, S] with padding anywhere to empty rows; mask: bool [B, S], False at padding."""
        return self._run_batch(tokens, mask)

    def _bind_step(self) -> None:
        """Bind nothing: tokens and logits are bound already, and the cache changes with every step."""

    def decode_one_token(self, tokens: Tokens, active: Mask | None = None) -> Logits:
        """Run a step over a mask of the cache's current slots."""
        self._tokens[:, 0] = tokens
        new = np.ones_like(self._tokens, np.bool_) if active is None else active[:, None]
        self._run(self._step_session, self._step, new)
        return self._logits[:, 0]

    def _new_cache(
        self, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, prefix: str
    ) -> DynamicCache:
        return DynamicCache(manifest.cache, cache_dtype(manifest), batch_size, capacity, provider, prefix)

    def _over_cache(self, binding: Any, new: Mask, row: int | None) -> AbstractContextManager[NDArray[np.int64]]:
        return self.cache.grow(binding, new, row)
