"""Requests of a decoder-only model: rows that begin with what others left, adapters, drafts."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeformer.contract.tensors import HIDDEN_STATES
from edgeformer.errors import RequestError
from edgeformer.manifest.providers import CPU
from edgeformer.runtime.engine.service import Service, default_memory, row_bytes
from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.scheduling import ScheduledRequest
from edgeformer.runtime.generation.scheduling.beginnings import restore_prefix
from edgeformer.runtime.generation.speculation.row_drafts import drafts_of
from edgeformer.runtime.prefixes.held_rows import HeldRow, HeldRows, common_length
from edgeformer.runtime.prefixes.prefix_cache import SHORTEST, PrefixCache
from edgeformer.runtime.sessions.graphs.int8_cache import mtp_geometry
from edgeformer.runtime.steps.adapters import adapter_weights
from edgeformer.runtime.steps.decode_graph import DecodeGraph, Logits, TokenStates
from edgeformer.runtime.steps.memory import PREFILL_CHUNK
from edgeformer.runtime.tasks.causal_lm import MEDIA, CausalLM

PREFIX_SHARE = 4
"""The prefixes that an engine keeps take at most this part of the bytes of its rows, unless it is told."""


class CausalService(Service):
    """Requests of a decoder-only model."""

    def __init__(self, model: CausalLM, max_rows: int, memory: int | None, prefix_cache_bytes: int | None):
        adapters = model.row_adapters(max_rows) if model.adapters and not model.provider.on_device else None
        graph = DecodeGraph(model.session, model.manifest, adapters=adapters)
        graph.appends_to_rows = adapters is None and model.runs_on_kernels
        if model.drafts_by_mtp:
            graph.token_states = (TokenStates(HIDDEN_STATES, [None] * max_rows, model.hidden_size),)
        super().__init__(model, graph, max_rows, memory)
        self._adapters = adapters
        self._model = model
        if prefix_cache_bytes is None:
            # Prefixes are in the host's memory, whatever the rows are in.
            prefix_cache_bytes = min(self.memory, default_memory(CPU)) // PREFIX_SHARE
        self._prefixes = PrefixCache(prefix_cache_bytes)
        self._held = HeldRows()
        self._cuttable = self.decoder.cache.trimmable

    def request(self, prompt: Any, keywords: dict[str, Any]) -> ScheduledRequest:
        """Return a checked request.

        prompt: a text, its tokens, or what `CausalLM.see` returned. keywords: those of `CausalLM.generate`.
        """
        adapter, media = keywords.pop("adapter", None), {name: keywords.pop(name, ()) for name in MEDIA}
        if adapter is not None:
            adapter_weights(self.manifest, adapter)
            if self._adapters is None:
                raise RequestError("an engine runs adapters on the CPU. Load the bundle with provider='cpu'.")
        processors, given = keywords.pop("logits_processors", ()), keywords.pop("config", None)
        config = self._model.generation_config.replaced_by(given).override(keywords)
        [seen] = self._model.see_prompts([prompt], self._model.media(**media), adapter)
        row = self._model.new_row(seen, config=config, logits_processors=processors)
        tokens = len(row.prompt) + row.max_new_tokens
        needed = self.cache_bytes(tokens)
        self.check_fits(needed, tokens)
        request = ScheduledRequest(row, needed=needed, adapter=adapter)
        self._add_drafts(request, config)
        return request

    def _add_drafts(self, request: ScheduledRequest, config: GenerationConfig) -> None:
        """Let a request draft, as `generate` chooses its drafts, and need the bytes that they take, where these fit.

        On a device the cache of a draft model is beside the memory of the rows.
        """
        model, row, tokens = self._model, request.row, request.most_tokens
        states, needed = None, 0
        if model.drafts_by_layer(config) and self.decoder.graph.token_states:
            states = np.empty((tokens, model.hidden_size), np.float32)  # takes memory as it is written
            # The layer keeps the states that it predicts, too.
            needed = row_bytes(self.manifest, tokens, mtp_geometry(self.manifest)) + 2 * states.nbytes
        elif model.drafts_by_model(config) and not self._on_device:
            assert model.draft is not None
            draft = model.draft.manifest
            needed = row_bytes(draft, min(tokens, draft.context_length))
        if needed > self.memory - request.needed:
            request.drafts = drafts_of(row, config)
            return
        request.needed, request.states = request.needed + needed, states
        request.drafts = model.new_drafts(row, config, PREFILL_CHUNK, states=states)

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that no request has, and that are held for later requests."""
        return self._held.bytes

    def begin(
        self, request: ScheduledRequest, places: Sequence[int], running: Sequence[ScheduledRequest], free_bytes: int
    ) -> None:
        """Start with the longest beginning of the prompt that a row or the prefix cache has of the same kind."""
        started = time.perf_counter()
        prompt, kind = request.row.prompt, self.kind_of(request)
        place, length = self._held.find(self.decoder, places, prompt, kind, free_bytes)
        other, shared = self._row_that_begins_like(request, running)
        kept = self._prefixes.known_length(self.decoder, prompt, kind)
        if length and length >= max(shared, kept):
            self._take_held(request, place, length)
        else:
            super().begin(request, [self._held.least_useful(places)], running, free_bytes)
            if shared > kept and other != request.place:
                self.decoder.copy(other, request.place, shared)
                request.prefilled = shared
            else:  # also if the only row that was free held the text, which the prefix cache has now
                restore_prefix(self._prefixes, self.decoder, request)
        request.row.cached_tokens = request.prefilled
        if self._adapters is not None and self._adapters.set(request.place, request.adapter):
            self.decoder.memory.forget_bindings()
        self.decoder.graph.keep_states(request.place, request.states)
        self._held.release(free_bytes - request.bytes, self._release_held)
        request.row.prefill_seconds += time.perf_counter() - started

    def leave(self, request: ScheduledRequest) -> None:
        """Hold the row of a request that has ended for one that goes on behind it, unless nothing is to be kept."""
        tokens = np.array(self.tokens_of(request), np.int64)
        self.decoder.graph.keep_states(request.place, None)
        if request.error is not None or not self._prefixes.max_bytes or len(tokens) < SHORTEST:
            super().leave(request)
            return
        taken = self.cache_bytes(self.decoder.written(request.place))
        self._held.hold(request.place, HeldRow(tokens, self.kind_of(request), taken))

    def keep(self, request: ScheduledRequest, tokens: Sequence[int], logits: Logits | None = None) -> None:
        """Keep what a row holds for these tokens, and will not hold once more follow, for later requests.

        A row that can be cut has it itself, until it is needed for another text.
        """
        if not self._cuttable:
            self._prefixes.keep(self.decoder, request.place, tokens, logits, self.kind_of(request))

    @property
    def kept_bytes(self) -> int:
        """Bytes of prefixes that are kept for later requests, apart from the rows."""
        return self._prefixes.bytes

    def _row_that_begins_like(self, request: ScheduledRequest, running: Sequence[ScheduledRequest]) -> tuple[int, int]:
        """Return the row, running or held, with most of a prompt's beginning, and how many tokens; (-1, 0) if none.

        At least one token of the prompt is left to run.
        """
        prompt, kind, last = request.row.prompt, self.kind_of(request), SHORTEST - 1
        if not self._cuttable or not self._prefixes.max_bytes or len(prompt) < SHORTEST:
            return -1, 0
        # Texts that begin alike have one token in common that is seen at once.
        tokens = np.array(prompt, np.int64)
        rows = [
            (each.place, np.array(self.tokens_of(each), np.int64))
            for each in running
            if self.kind_of(each) == kind and each.row.prompt[last : last + 1] == prompt[last : last + 1]
        ]
        rows += [
            (place, row.tokens) for place, row in self._held if row.kind == kind and row.tokens[last] == tokens[last]
        ]
        alike = [(min(common_length(text, tokens), len(tokens) - 1), place) for place, text in rows]
        lengths = [(self.decoder.graph.prefix_end(tokens, length), place) for length, place in alike]
        length, place = max(lengths, default=(0, -1))
        return (place, length) if length >= SHORTEST else (-1, 0)

    def _take_held(self, request: ScheduledRequest, place: int, length: int) -> None:
        """Give a request a held row, of which it keeps the first `length` tokens."""
        self._forget_held(place, length)
        request.place, request.prefilled = place, length
        self._count_surplus(request)
        self.decoder.cut(place, length)

    def _vacate(self, request: ScheduledRequest, free_bytes: int) -> None:
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
            self._prefixes.keep(self.decoder, place, row.tokens.tolist(), kind=row.kind)
