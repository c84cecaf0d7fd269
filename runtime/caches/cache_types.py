"""The element types of what a decoder keeps between runs."""

from typing import NamedTuple

import numpy as np

from edgeformer.contract.tensors import ElementBytes, StateTensor
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import QuantizedCache
from edgeformer.runtime.sessions.narrow_floats import FLOAT8
from edgeformer.runtime.sessions.session import CACHE_DTYPES

QUANTIZED_DTYPES: dict[QuantizedCache, type[np.generic]] = {"int8": np.int8, "fp8": FLOAT8}
"""Element type of a cache that is quantized."""


class CacheTypes(NamedTuple):
    """The element types of a cache: of keys and values, and of states of fixed size that need not be float32."""

    tokens: type[np.generic]
    states: type[np.generic]

    def of(self, tensor: StateTensor) -> type[np.generic]:
        """Return the element type of one tensor."""
        return np.float32 if tensor.single else self.tokens if tensor.per_token else self.states

    @property
    def element_bytes(self) -> ElementBytes:
        """The bytes of one element."""
        return ElementBytes(*(np.dtype(each).itemsize for each in self))


def cache_types(manifest: Manifest) -> CacheTypes:
    """Return the element types of the decoder's self-attention cache; only keys and values are stored as fewer bits."""
    plan, states = manifest.plan, CACHE_DTYPES[manifest.plan.arithmetic]
    if plan.half_cache:
        return CacheTypes(np.float16, states)
    return CacheTypes(states if plan.quantized_cache is None else QUANTIZED_DTYPES[plan.quantized_cache], states)
