"""An engine without a thread: for jobs, whose requests are all there before the first one runs."""

from collections.abc import Sequence
from typing import Any

from edgeformer.runtime.engine.new_service import check_sizes, new_service
from edgeformer.runtime.engine.service import Service
from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.generation.scheduling import EngineStatistics, GenerationStream, Scheduler
from edgeformer.runtime.tasks.causal_lm import CausalLM, SeenPrompt
from edgeformer.runtime.tasks.encoder_decoder import Source
from edgeformer.runtime.tasks.model import Text
from edgeformer.runtime.tasks.seq2seq import Seq2SeqLM


class OfflineEngine:
    """Runs many requests of one model together, on the thread of whoever reads a stream.

    Nothing runs before that, so which rows run together follows from the order of the requests, and not from the clock.
    A request that ends leaves its row to the next one in the queue, which may be of any length.

    The arguments are those of `Engine`. One thread at a time may call it. Raises RequestError for a model that an
    engine cannot run, and for numbers out of range.
    """

    def __init__(
        self,
        model: CausalLM | Seq2SeqLM,
        *,
        max_rows: int = 8,
        memory: int | None = None,
        prefix_cache_bytes: int | None = None,
    ):
        check_sizes(max_rows, memory, prefix_cache_bytes)
        self._service: Service = new_service(model, max_rows, memory, prefix_cache_bytes)
        self._scheduler = Scheduler(self._service, max_rows)

    def submit(
        self,
        prompt: Text | SeenPrompt | Source,
        /,
        *,
        config: GenerationConfig | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Any,
    ) -> GenerationStream:
        """Put a request into the queue and return its stream; arguments and errors are those of `Engine.submit`."""
        keywords = {"config": config, "logits_processors": logits_processors, **options}
        request = self._service.request(prompt, keywords)
        stream = GenerationStream(request, self._scheduler)
        self._scheduler.add(request)
        return stream

    def statistics(self) -> EngineStatistics:
        """Return counts of requests, tokens and bytes, of now and since the start."""
        return self._scheduler.statistics()
