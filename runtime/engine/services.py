"""The requests that a model serves: how they are checked, the memory that they need, and the rows that they run in."""

import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from edgeformer.errors import RequestError
from edgeformer.manifest import Manifest
from edgeformer.runtime.adapters import check_adapter
from edgeformer.runtime.causal_lm import CausalLM
from edgeformer.runtime.decoder import Logits
from edgeformer.runtime.engine.cross_rows import CrossRows
from edgeformer.runtime.engine.request import EngineRequest
from edgeformer.runtime.engine.row_adapters import RowAdapters
from edgeformer.runtime.engine.row_decoder import RowDecoder
from edgeformer.runtime.engine.stream import EngineStream
from edgeformer.runtime.generation_config import GenerationConfig, GenerationOptions
from edgeformer.runtime.model import Model
from edgeformer.runtime.prefix_cache import PrefixCache
from edgeformer.runtime.seq2seq import Seq2SeqLM
from edgeformer.runtime.seq2seq_requests import new_row, source_tokens
from edgeformer.runtime.session import cache_dtype
from edgeformer.runtime.static_cache import available_memory

Wake = Callable[[], None]
"""Tells the engine's thread that a stream was cancelled."""

DEFAULT_MEMORY = 4 * 10**9
"""Bytes for caches, where the system does not tell how many are free."""


PREFIX_SHARE = 4
"""The prefixes that an engine keeps take at most this part of the bytes of its rows, unless it is told."""


class Service(ABC):
    """A model's requests and their rows. memory: bytes that all running requests may need together."""

    _prefixes: PrefixCache | None = None

    def __init__(self, model: Any, max_rows: int, memory: int | None):
        _check_engine_runs(model)
        self.manifest: Manifest = model.manifest
        self.memory = default_memory() if memory is None else memory
        session: Any = model.session
        from_context = range(self.manifest.context_length + 1)
        self.capacity = bisect_right(from_context, self.memory, key=self.cache_bytes) - 1
        if self.capacity < 2:
            raise RequestError(
                f"memory is {self.memory} bytes, and a row of two tokens takes {self.cache_bytes(2)}. Give the engine "
                "more memory."
            )
        self.decoder = RowDecoder(session, self.manifest, max_rows, self.capacity, "cpu", *self._inputs(model))

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of a row of this many tokens."""
        itemsize = np.dtype(cache_dtype(self.manifest)).itemsize
        return self.manifest.cache.size_in_bytes(itemsize, 1, tokens, self.manifest.windows or ())

    def check_fits(self, needed: int, tokens: int) -> None:
        """Raise RequestError for a request that could not run even alone."""
        if needed > self.memory or tokens > self.capacity:
            raise RequestError(
                f"the request can need {tokens} tokens, {needed / 1e6:.1f} MB of cache, and this engine has "
                f"{self.memory / 1e6:.1f} MB for all rows. Shorten the prompt, lower max_new_tokens, or give the "
                "engine more memory."
            )

    @abstractmethod
    def request(self, wake: Wake, prompt: Any, /, **keywords: Any) -> EngineRequest:
        """Return a checked request; called from any thread. Raises RequestError for one that cannot be served."""

    def begin(self, request: EngineRequest) -> None:
        """Make the row of a request ready for its prompt."""
        self.decoder.take(request.place)

    def move(self, source: int, target: int) -> None:
        """Replace a row by a copy of another one."""
        self.decoder.move(source, target)

    def keep(self, request: EngineRequest, tokens: Sequence[int], logits: Logits | None = None) -> None:
        """Keep what a row holds for these tokens for later requests with its adapter, where the model can."""
        if self._prefixes is not None:
            self._prefixes.keep(self.decoder, request.place, tokens, logits, request.adapter or "")

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for later requests."""
        return 0 if self._prefixes is None else self._prefixes.bytes

    def release(self, row: int) -> None:
        """Give the memory of a row back that no request has any more."""
        self.decoder.release(row)

    def _inputs(self, model: Any) -> tuple[Any, ...]:
        """Return the decoder's encoder outputs and its prefill session."""
        return (None, model.prefill_session)


class CausalService(Service):
    """Requests of a decoder-only model."""

    def __init__(
        self,
        model: CausalLM,
        max_rows: int,
        memory: int | None,
        prefill_graph_steps: bool,
        prefix_cache_bytes: int | None,
    ):
        super().__init__(model, max_rows, memory)
        self._model = model
        self._prefixes = PrefixCache(self.memory // PREFIX_SHARE if prefix_cache_bytes is None else prefix_cache_bytes)
        self.decoder.prefill_graph_steps = prefill_graph_steps
        if model.adapters:
            self.decoder.adapters = RowAdapters(model, max_rows)

    def request(self, wake: Wake, prompt: Any, /, **keywords: Any) -> EngineRequest:
        """Return a checked request; keywords: those of `CausalLM.generate`."""
        adapter = keywords.pop("adapter", None)
        if adapter is not None:
            check_adapter(self.manifest, adapter)
        row = self._model.new_row(prompt, **keywords)
        tokens = len(row.prompt) + row.max_new_tokens
        needed = self.cache_bytes(tokens)
        self.check_fits(needed, tokens)
        return EngineRequest(row, EngineStream(row, wake), needed, adapter=adapter)

    def begin(self, request: EngineRequest) -> None:
        """Start the row with the longest prefix of its prompt that is kept, of those that its adapter computed."""
        started = time.perf_counter()
        super().begin(request)
        if self.decoder.adapters is not None:
            self.decoder.adapters.set(request.place, request.adapter)
        assert self._prefixes is not None
        prompt, adapter = request.row.prompt, request.adapter or ""
        prefix = self._prefixes.restore(self.decoder, request.place, prompt, adapter)
        request.prefilled = request.row.cached_tokens = prefix.length
        request.fork, request.first_logits = prefix.fork, prefix.logits
        request.row.prefill_seconds += time.perf_counter() - started


class Seq2SeqService(Service):
    """Requests of an encoder-decoder. The encoder runs when a request gets its row."""

    def __init__(self, model: Seq2SeqLM, max_rows: int, memory: int | None):
        self._cross = CrossRows(model.manifest, max_rows)
        self._model = model
        super().__init__(model, max_rows, memory)

    def request(self, wake: Wake, prompt: Any, /, **keywords: Any) -> EngineRequest:
        """Return a checked request.

        prompt: the source. keywords: those of `Seq2SeqLM.stream`, and for a translation source_language and
        target_language. Beams of the model's own config are left out, as in a stream.
        """
        source, config = prompt, keywords.pop("config", None)
        start, processors = keywords.pop("prompt", None), keywords.pop("logits_processors", ())
        languages = {name: keywords.pop(name, None) for name in ("source_language", "target_language")}
        options = cast(GenerationOptions, {"num_beams": GenerationConfig().replaced_by(config).num_beams} | keywords)
        if any(languages.values()):
            [source], first, options = self._model.translation_of([source], **languages, options=options)
            start = first if start is None else start
        if options["num_beams"] != 1:
            raise RequestError("an engine searches with no beams; use generate, or num_beams=1.")
        checked = self._model.request(start, config, options, processors)
        inputs, mask = self._model.encoder_inputs([source])
        text = source_tokens(self._model, [source], checked.config)[0]
        row = new_row(self._model, checked, text, int(mask.sum()))
        tokens = len(row.prompt) + row.max_new_tokens
        needed = self.cache_bytes(tokens) + self._cross.bytes(mask.shape[1])
        self.check_fits(needed, tokens)
        return EngineRequest(row, EngineStream(row, wake), needed, (inputs, mask))

    def begin(self, request: EngineRequest) -> None:
        """Run the encoder, and keep what it returns in the row's keys and values of the source."""
        started = time.perf_counter()
        super().begin(request)
        inputs, mask = request.source
        if self._cross.reserve(mask.shape[1], used=request.place):
            self.decoder.forget_bindings()
        self._cross.write(request.place, self._model.run_encoder_inputs(inputs, mask))
        request.row.prefill_seconds += time.perf_counter() - started

    def move(self, source: int, target: int) -> None:
        """Replace a row, and what belongs to its source, by a copy of another one."""
        super().move(source, target)
        self._cross.move(source, target)

    def _inputs(self, model: Any) -> tuple[Any, ...]:
        return (self._cross,)


def default_memory() -> int:
    """Return half of the bytes that are free now, so that prompts, weights and other programs have the rest."""
    available = available_memory()
    return DEFAULT_MEMORY if available is None else available // 2


def _check_engine_runs(model: Model) -> None:
    """Raise RequestError for a model whose rows an engine cannot run."""
    if model.provider != "cpu":
        raise RequestError("an engine runs on the CPU. Load the bundle with provider='cpu', or call generate.")
    if model.manifest.cache_form == "dynamic":
        raise RequestError(
            f"this bundle has a dynamic cache (--ops {model.manifest.ops}), and an engine needs a static one, whose "
            "rows come and go without moving the others. Export it with --ops ort, or with --cache static."
        )
