"""The requests that a model serves: how they are checked, the memory that they need, and where their rows begin."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.errors import RequestError
from edgeformer.manifest.accounting import cache_element_bytes
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import Provider
from edgeformer.runtime.generation.scheduling import Beginnings, ScheduledRequest
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import onnxruntime
from edgeformer.runtime.steps.decode_graph import DecodeGraph
from edgeformer.runtime.steps.new_decoder import new_row_runner
from edgeformer.runtime.tasks.causal_lm import CausalLM
from edgeformer.runtime.tasks.model import Model

DEFAULT_MEMORY = 4 * 10**9
"""Bytes for caches, where the system does not tell how many are free."""


class Service(Beginnings, ABC):
    """A model's requests, and rows that come and go.

    graph: what the rows run. memory: bytes that all running requests may need together.
    """

    def __init__(self, model: Model, graph: DecodeGraph, max_rows: int, memory: int | None):
        _check_engine_runs(model)
        self.manifest: Manifest = model.manifest
        self.memory = default_memory(model.provider) if memory is None else memory
        self._rows = max_rows
        self._row_bytes: dict[int, int] = {}  # by tokens
        self._on_device = model.provider.on_device
        from_context = range(self.manifest.context_length + 1)
        # On the CPU a row takes memory as it is written, and on a device all rows take it now.
        most = self.memory // max_rows if self._on_device else self.memory
        self.capacity = bisect_right(from_context, most, key=self.cache_bytes) - 1
        if self.capacity < 2:
            raise RequestError(
                f"memory is {self.memory} bytes, and a row of two tokens takes {self.cache_bytes(2)}. Give the engine "
                f"more memory{', or fewer rows' if self._on_device else ''}."
            )
        super().__init__(new_row_runner(graph, max_rows, self.capacity, model.provider, model.captures))

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of a row of this many tokens."""
        if tokens not in self._row_bytes:
            self._row_bytes[tokens] = row_bytes(self.manifest, tokens)
        return self._row_bytes[tokens]

    def check_fits(self, needed: int, tokens: int) -> None:
        """Raise RequestError for a request that could not run even alone."""
        if needed > self.memory or tokens > self.capacity:
            raise RequestError(
                f"the request can need {tokens} tokens, {needed / 1e6:.1f} MB of cache, and this engine has "
                f"{self.memory / 1e6:.1f} MB for all rows and {self.capacity} tokens for each. Shorten the prompt, "
                "lower max_new_tokens, or give the engine more memory."
            )

    @abstractmethod
    def request(self, prompt: Any, keywords: dict[str, Any]) -> ScheduledRequest:
        """Return a checked request, which has no stream yet; called from any thread.

        keywords: those of `Engine.submit`; they are taken out. Raises RequestError for one that cannot be served.
        """

    def begin(
        self, request: ScheduledRequest, places: Sequence[int], running: Sequence[ScheduledRequest], free_bytes: int
    ) -> None:
        """Choose a row for a request, and make it empty; see `Beginnings.begin`."""
        request.place = places[0]
        self._vacate(request, free_bytes)

    def move(self, request: ScheduledRequest, place: int) -> None:
        """Move a request to another row; its old one is free then."""
        source, request.place = request.place, place
        self._vacate(request, request.needed)
        self.decoder.move(source, place)
        self.decoder.release(source)

    def leave(self, request: ScheduledRequest) -> None:
        """Free the row of a request that has ended."""
        self.decoder.release(request.place)

    def _vacate(self, request: ScheduledRequest, free_bytes: int) -> None:
        """Make the row of a request empty. Its memory stays, if the request may need half of it, or more.

        Memory that the request does not need stays only if all rows could have as much, so that it keeps no request
        of that size out. free_bytes: as of `begin`.
        """
        self._count_surplus(request)
        of_row = self._bytes_of_row(request)
        if request.extra_bytes > max(0, min(of_row, free_bytes - request.needed, self.memory // self._rows - of_row)):
            self.decoder.release(request.place)
            request.extra_bytes = 0
        self.decoder.take(request.place)

    def _count_surplus(self, request: ScheduledRequest) -> None:
        """Take account of the memory that the row of a request takes already, and the request does not need."""
        taken = self.cache_bytes(self.decoder.written(request.place))
        request.extra_bytes = max(0, taken - self._bytes_of_row(request))

    def _bytes_of_row(self, request: ScheduledRequest) -> int:
        """Return the bytes of its row that a request may need."""
        return self.cache_bytes(len(request.row.prompt) + request.row.max_new_tokens)


def row_bytes(manifest: Manifest, tokens: int, cache: CacheGeometry | None = None) -> int:
    """Return the bytes of a row of this many tokens in the cache of a bundle, or of another of its graphs."""
    element = cache_element_bytes(manifest)
    if cache is not None:
        return cache.size_in_bytes(element, 1, tokens)
    return manifest.cache.size_in_bytes(element, 1, tokens, manifest.windows or ())


def default_memory(provider: Provider) -> int:
    """Return half of the bytes that are free now, so that prompts, weights and other programs have the rest."""
    available = sessions_of(provider).free_memory(onnxruntime())
    return DEFAULT_MEMORY if available is None else available // 2


def _check_engine_runs(model: Model) -> None:
    """Raise RequestError for a model whose rows an engine cannot run."""
    if model.provider.on_device and not isinstance(model, CausalLM):
        raise RequestError(
            "an engine runs encoder-decoders on the CPU. Load the bundle with provider='cpu', or call generate."
        )
    if model.manifest.plan.cache_form == "dynamic":
        raise RequestError(
            f"this bundle has a dynamic cache (--ops {model.manifest.plan.ops}), and an engine needs a static one, "
            "whose rows come and go without moving the others. Export it with --ops ort, or with --cache static."
        )
