"""The requests that a model serves: how they are checked, the memory that they need, and the rows that they run in."""

import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from edgeformer.errors import RequestError
from edgeformer.manifest import Manifest
from edgeformer.manifest_parts import Provider
from edgeformer.runtime.adapters import check_adapter
from edgeformer.runtime.causal_lm import CausalLM
from edgeformer.runtime.cuda_machine import free_gpu_memory
from edgeformer.runtime.decoder import Logits
from edgeformer.runtime.engine.cross_rows import CrossRows
from edgeformer.runtime.engine.device_row_decoder import DeviceRowDecoder
from edgeformer.runtime.engine.held_rows import HeldRow, HeldRows, common_length
from edgeformer.runtime.engine.request import EngineRequest
from edgeformer.runtime.engine.row_adapters import RowAdapters
from edgeformer.runtime.engine.row_decoder import RowDecoder
from edgeformer.runtime.engine.row_drafts import drafts_of
from edgeformer.runtime.engine.stream import EngineStream
from edgeformer.runtime.generation_config import GenerationConfig, GenerationOptions
from edgeformer.runtime.model import Model
from edgeformer.runtime.prefix_cache import SHORTEST, PrefixCache
from edgeformer.runtime.seq2seq import Seq2SeqLM
from edgeformer.runtime.seq2seq_requests import new_row, source_tokens
from edgeformer.runtime.session import cache_dtype, onnxruntime
from edgeformer.runtime.static_cache import available_memory

Wake = Callable[[], None]
"""Tells the engine's thread that a stream was cancelled."""

DEFAULT_MEMORY = 4 * 10**9
"""Bytes for caches, where the system does not tell how many are free."""


PREFIX_SHARE = 4
"""The prefixes that an engine keeps take at most this part of the bytes of its rows, unless it is told."""


class Service(ABC):
    """A model's requests and their rows. memory: bytes that all running requests may need together."""

    def __init__(self, model: Any, max_rows: int, memory: int | None):
        _check_engine_runs(model)
        self.manifest: Manifest = model.manifest
        self.memory = default_memory(model.provider) if memory is None else memory
        self._rows = max_rows
        self._row_bytes: dict[int, int] = {}  # by tokens
        on_device = model.provider != "cpu"
        from_context = range(self.manifest.context_length + 1)
        # On the CPU a row takes memory as it is written, and on a device all rows take it now.
        most = self.memory // max_rows if on_device else self.memory
        self.capacity = bisect_right(from_context, most, key=self.cache_bytes) - 1
        if self.capacity < 2:
            raise RequestError(
                f"memory is {self.memory} bytes, and a row of two tokens takes {self.cache_bytes(2)}. Give the engine "
                f"more memory{', or fewer rows' if on_device else ''}."
            )
        kind = DeviceRowDecoder if on_device else RowDecoder
        self.decoder: RowDecoder = kind(
            model.session, self.manifest, max_rows, self.capacity, model.provider, *self._inputs(model)
        )

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of a row of this many tokens."""
        if tokens not in self._row_bytes:
            itemsize, windows = np.dtype(cache_dtype(self.manifest)).itemsize, self.manifest.windows or ()
            self._row_bytes[tokens] = self.manifest.cache.size_in_bytes(itemsize, 1, tokens, windows)
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
    def request(self, wake: Wake, prompt: Any, /, **keywords: Any) -> EngineRequest:
        """Return a checked request; called from any thread. Raises RequestError for one that cannot be served."""

    def begin(
        self, request: EngineRequest, places: Sequence[int], running: Sequence[EngineRequest], free_bytes: int
    ) -> None:
        """Choose a row for a request, and make it ready for the prompt.

        places: the rows that it may have, the preferred one first. running: the requests of adjacent rows, in their
        order. free_bytes: those of the memory that requests leave; the request fits.
        """
        request.place = places[0]
        self._vacate(request, free_bytes)

    def move(self, request: EngineRequest, place: int) -> None:
        """Move a request to another row; its old one is free then."""
        source, request.place = request.place, place
        self._vacate(request, request.bytes)
        self.decoder.move(source, place)
        self.decoder.release(source)

    def leave(self, request: EngineRequest) -> None:
        """Free the row of a request that has ended."""
        self.decoder.release(request.place)

    def _vacate(self, request: EngineRequest, free_bytes: int) -> None:
        """Make the row of a request empty. Its memory stays, if the request may need half of it, or more.

        Memory that the request does not need stays only if all rows could have as much, so that it keeps no request
        of that size out. free_bytes: as of `begin`.
        """
        needed = self.cache_bytes(len(request.row.prompt) + request.row.max_new_tokens)
        surplus = self.cache_bytes(self.decoder.written(request.place)) - needed
        if surplus > min(needed, free_bytes - request.bytes, self.memory // self._rows - needed):
            self.decoder.release(request.place)
        elif surplus > 0:
            request.bytes += surplus
        self.decoder.take(request.place)

    def tokens_of(self, request: EngineRequest) -> list[int]:
        """Return the tokens that the row of a request holds: its last one is chosen, but not run."""
        row = request.row
        return [*row.prompt, *row.tokens][: int(self.decoder.lengths[request.place])]

    # Not abstract: an encoder-decoder keeps nothing, since its prompts are a few tokens.
    def keep(self, request: EngineRequest, tokens: Sequence[int], logits: Logits | None = None) -> None:  # noqa: B027
        """Keep what a row holds for these tokens, and will not hold once more follow, where the model can."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of prefixes that are kept for later requests, apart from the rows."""
        return 0

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that no request has, and that are held for later requests."""
        return 0

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
        if prefix_cache_bytes is None:
            # Prefixes are in the host's memory, whatever the rows are in.
            prefix_cache_bytes = min(self.memory, default_memory("cpu")) // PREFIX_SHARE
        self._prefixes = PrefixCache(prefix_cache_bytes)
        self._held = HeldRows()
        self._cuttable = self.decoder.cache.trimmable
        self.decoder.prefill_graph_steps = prefill_graph_steps
        if isinstance(self.decoder, DeviceRowDecoder):
            self.decoder.captures = model.captures and self._cuttable
        elif model.adapters:
            self.decoder.adapters = RowAdapters(model, max_rows)

    def request(self, wake: Wake, prompt: Any, /, **keywords: Any) -> EngineRequest:
        """Return a checked request; keywords: those of `CausalLM.generate`."""
        adapter = keywords.pop("adapter", None)
        if adapter is not None:
            check_adapter(self.manifest, adapter)
            if self.decoder.adapters is None:
                raise RequestError("an engine runs adapters on the CPU. Load the bundle with provider='cpu'.")
        processors, given = keywords.pop("logits_processors", ()), keywords.pop("config", None)
        config = self._model.generation_config.replaced_by(given).override(keywords)
        row = self._model.new_row(prompt, config=config, logits_processors=processors)
        # `RowDecoder.decode_tokens` runs the graph without adapters.
        tokens = len(row.prompt) + row.max_new_tokens
        new_draft_model = None if self._model.draft is None else partial(self._model.new_draft_model, tokens)
        drafts = drafts_of(row, config, new_draft_model) if adapter is None else None
        needed = self.cache_bytes(tokens)
        self.check_fits(needed, tokens)
        return EngineRequest(row, EngineStream(row, wake), needed, adapter=adapter, drafts=drafts)

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that no request has, and that are held for later requests."""
        return self._held.bytes

    def begin(
        self, request: EngineRequest, places: Sequence[int], running: Sequence[EngineRequest], free_bytes: int
    ) -> None:
        """Start with the longest beginning of the prompt that a row or the prefix cache has of the adapter."""
        started = time.perf_counter()
        prompt, adapter = request.row.prompt, request.adapter
        place, length = self._held.find(self.decoder, places, prompt, adapter, free_bytes)
        other, shared = self._row_that_begins_like(request, running)
        kept = self._prefixes.known_length(self.decoder, prompt, adapter or "")
        if length and length >= max(shared, kept):
            self._take_held(request, place, length)
        else:
            super().begin(request, [self._held.least_useful(places)], running, free_bytes)
            if shared > kept and other != request.place:
                self.decoder.copy(other, request.place, shared)
                request.prefilled = shared
            else:  # also if the only row that was free held the text, which the prefix cache has now
                prefix = self._prefixes.restore(self.decoder, request.place, prompt, adapter or "")
                request.prefilled, request.fork, request.first_logits = prefix.length, prefix.fork, prefix.logits
        request.row.cached_tokens = request.prefilled
        if self.decoder.adapters is not None:
            self.decoder.adapters.set(request.place, adapter)
        self._held.release(free_bytes - request.bytes, self._release_held)
        request.row.prefill_seconds += time.perf_counter() - started

    def leave(self, request: EngineRequest) -> None:
        """Hold the row of a request that has ended for one that goes on behind it, unless nothing is to be kept."""
        tokens = np.array(self.tokens_of(request), np.int64)
        if request.stream.error is not None or not self._prefixes.max_bytes or len(tokens) < SHORTEST:
            super().leave(request)
            return
        taken = self.cache_bytes(self.decoder.written(request.place))
        self._held.hold(request.place, HeldRow(tokens, request.adapter, taken))

    def keep(self, request: EngineRequest, tokens: Sequence[int], logits: Logits | None = None) -> None:
        """Keep what a row holds for these tokens, and will not hold once more follow, for later requests.

        A row that can be cut has it itself, until it is needed for another text.
        """
        if not self._cuttable:
            self._prefixes.keep(self.decoder, request.place, tokens, logits, request.adapter or "")

    @property
    def kept_bytes(self) -> int:
        """Bytes of prefixes that are kept for later requests, apart from the rows."""
        return self._prefixes.bytes

    def _row_that_begins_like(self, request: EngineRequest, running: Sequence[EngineRequest]) -> tuple[int, int]:
        """Return the row, running or held, with most of a prompt's beginning, and how many tokens; (-1, 0) if none.

        At least one token of the prompt is left to run.
        """
        prompt, last = request.row.prompt, SHORTEST - 1
        if not self._cuttable or not self._prefixes.max_bytes or len(prompt) < SHORTEST:
            return -1, 0
        # Texts that begin alike have one token in common that is seen at once.
        tokens = np.array(prompt, np.int64)
        rows = [
            (each.place, np.array(self.tokens_of(each), np.int64))
            for each in running
            if each.adapter == request.adapter and each.row.prompt[last : last + 1] == prompt[last : last + 1]
        ]
        rows += [
            (place, row.tokens)
            for place, row in self._held
            if row.adapter == request.adapter and row.tokens[last] == tokens[last]
        ]
        lengths = [(min(common_length(text, tokens), len(tokens) - 1), place) for place, text in rows]
        length, place = max(lengths, default=(0, -1))
        return (place, length) if length >= SHORTEST else (-1, 0)

    def _take_held(self, request: EngineRequest, place: int, length: int) -> None:
        """Give a request a held row, of which it keeps the first `length` tokens."""
        self._forget_held(place, length)
        request.place, request.prefilled = place, length
        request.bytes = max(request.bytes, self.cache_bytes(self.decoder.written(place)))
        self.decoder.cut(place, length)

    def _vacate(self, request: EngineRequest, free_bytes: int) -> None:
        self._forget_held(request.place)
        super()._vacate(request, free_bytes)

    def _forget_held(self, place: int, length: int = 0) -> None:
        """Hold a row no more; the prefix cache keeps its text if the row loses tokens behind the first `length`."""
        row = self._held.forget(place)
        if row is not None and len(row.tokens) > length:
            self._keep_text(place, row)

    def _release_held(self, place: int, row: HeldRow) -> None:
        self._keep_text(place, row)
        self.decoder.release(place)

    def _keep_text(self, place: int, row: HeldRow) -> None:
        """Keep what a row that was held has, unless it was kept when its request ended."""
        if self._cuttable:
            self._prefixes.keep(self.decoder, place, row.tokens.tolist(), adapter=row.adapter or "")


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

    def begin(
        self, request: EngineRequest, places: Sequence[int], running: Sequence[EngineRequest], free_bytes: int
    ) -> None:
        """Run the encoder, and keep what it returns in the row's keys and values of the source."""
        started = time.perf_counter()
        super().begin(request, places, running, free_bytes)
        inputs, mask = request.source
        used = range(running[0].place, running[-1].place + 1) if running else range(0)
        if self._cross.reserve(mask.shape[1], used=used):
            self.decoder.forget_bindings()
        self._cross.write(request.place, self._model.run_encoder_inputs(inputs, mask))
        request.row.prefill_seconds += time.perf_counter() - started

    def move(self, request: EngineRequest, place: int) -> None:
        """Move a request, and what belongs to its source, to another row."""
        source = request.place
        super().move(request, place)
        self._cross.move(source, place)

    def _inputs(self, model: Any) -> tuple[Any, ...]:
        return (self._cross,)


def default_memory(provider: Provider) -> int:
    """Return half of the bytes that are free now, so that prompts, weights and other programs have the rest."""
    available = available_memory() if provider == "cpu" else free_gpu_memory(onnxruntime())
    return DEFAULT_MEMORY if available is None else available // 2


def _check_engine_runs(model: Model) -> None:
    """Raise RequestError for a model whose rows an engine cannot run."""
    if model.provider != "cpu" and not isinstance(model, CausalLM):
        raise RequestError(
            "an engine runs encoder-decoders on the CPU. Load the bundle with provider='cpu', or call generate."
        )
    if model.manifest.cache_form == "dynamic":
        raise RequestError(
            f"this bundle has a dynamic cache (--ops {model.manifest.ops}), and an engine needs a static one, whose "
            "rows come and go without moving the others. Export it with --ops ort, or with --cache static."
        )
