"""Requests of an encoder-decoder, whose encoder runs when a request gets its row."""

import time
from collections.abc import Sequence
from typing import Any, cast

from edgeformer.errors import RequestError
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs
from edgeformer.runtime.engine.service import Service
from edgeformer.runtime.generation.generation_config import GenerationConfig, GenerationOptions
from edgeformer.runtime.generation.scheduling import ScheduledRequest
from edgeformer.runtime.steps.decode_graph import DecodeGraph
from edgeformer.runtime.tasks.seq2seq import Seq2SeqLM
from edgeformer.runtime.tasks.seq2seq_requests import new_row, source_tokens


class Seq2SeqService(Service):
    """Requests of an encoder-decoder. The encoder runs when a request gets its row."""

    def __init__(self, model: Seq2SeqLM, max_rows: int, memory: int | None):
        self._sources = EncoderOutputs.empty(model.manifest, max_rows)
        self._model = model
        super().__init__(model, DecodeGraph(model.session, model.manifest, self._sources), max_rows, memory)

    def request(self, prompt: Any, keywords: dict[str, Any]) -> ScheduledRequest:
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
        needed = self.cache_bytes(tokens) + self._sources.row_bytes(mask.shape[1])
        self.check_fits(needed, tokens)
        return ScheduledRequest(row, needed=needed, source=(inputs, mask))

    def begin(
        self, request: ScheduledRequest, places: Sequence[int], running: Sequence[ScheduledRequest], free_bytes: int
    ) -> None:
        """Run the encoder, and keep what it returns in the row's keys and values of the source."""
        started = time.perf_counter()
        super().begin(request, places, running, free_bytes)
        inputs, mask = request.source
        used = range(running[0].place, running[-1].place + 1) if running else range(0)
        if self._sources.reserve(mask.shape[1], used=used):
            self.decoder.memory.forget_bindings()
        self._sources.write(request.place, self._model.run_encoder_inputs(inputs, mask))
        request.row.prefill_seconds += time.perf_counter() - started
