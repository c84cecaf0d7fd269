"""The engine: what callers see, from any thread."""

import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from threading import Condition
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.engine.new_service import check_sizes, new_service
from edgeformer.runtime.engine.service import Service
from edgeformer.runtime.engine.stream import EngineStream
from edgeformer.runtime.engine.texts import TextScheduler, WaitingText
from edgeformer.runtime.engine.worker import Turns, Worker
from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.generation.scheduling import EngineStatistics, Scheduler
from edgeformer.runtime.media.pictures.picture_files import Picture, is_picture
from edgeformer.runtime.request_values import count, flag, is_list, seconds, shown
from edgeformer.runtime.tasks.causal_lm import CausalLM, SeenPrompt
from edgeformer.runtime.tasks.encoder_decoder import Source
from edgeformer.runtime.tasks.encoders.encoder import Encoder
from edgeformer.runtime.tasks.encoders.text_encoder import Pair
from edgeformer.runtime.tasks.model import Text
from edgeformer.runtime.tasks.seq2seq import Seq2SeqLM
from edgeformer.runtime.tasks.vision.dual_encoder import DualEncoder
from edgeformer.runtime.tasks.vision.picture_reader import PictureReader


class Engine:
    """Serves many requests of one model at once; safe to call from many threads. The model is then the engine's alone.

    Attributes:
        model: a `CausalLM` or a `Seq2SeqLM` with a static cache, or an encoder of texts or pictures; a `Seq2SeqLM` and
            LoRA adapters on the CPU.
        max_rows: requests that run together.
        memory: bytes of cache that running requests may need together, half of the free memory by default; a request is
            admitted only if all that it can come to need is left. On a GPU they are allocated at once, and divided by
            `max_rows`.
        max_queue: requests that wait, at most.
        prefix_cache_bytes: what a decoder's prompts and answers may take that are kept, so that later prompts which
            begin alike are not run again; by default a quarter of `memory`, on top of it, and 0 keeps none.

    Raises RequestError for a model that an engine cannot run, and for numbers out of range.
    """

    def __init__(
        self,
        model: CausalLM | Seq2SeqLM | Encoder | PictureReader,
        *,
        max_rows: int = 8,
        memory: int | None = None,
        max_queue: int = 256,
        prefix_cache_bytes: int | None = None,
    ):
        check_sizes(max_rows, memory, prefix_cache_bytes)
        count("max_queue", max_queue)
        changed = Condition()
        self._encoder = model if isinstance(model, Encoder) else None
        self._reader = model if isinstance(model, PictureReader) else None
        self._service: Service | None = None
        if isinstance(model, Encoder | PictureReader):
            self._turns: Turns = TextScheduler(max_rows, max_queue, changed)
        else:
            self._service = new_service(model, max_rows, memory, prefix_cache_bytes)
            self._turns = Scheduler(self._service, max_rows, most_waiting=max_queue, lock=changed)
        self._worker = Worker(self._turns, changed)
        weakref.finalize(self, self._worker.stop, False)

    def submit(
        self,
        prompt: Text | SeenPrompt | Source,
        /,
        *,
        config: GenerationConfig | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Any,
    ) -> EngineStream:
        """Put a request into the queue and return its stream at once.

        prompt: of a decoder, or the source of an encoder-decoder. options: of `CausalLM.generate`, among them adapter,
        which may differ between the requests of a batch, and images, the pictures of the prompt's placeholders; or
        those of `Seq2SeqLM.stream`, its `prompt` included, with source_language and target_language for a translation.

        Raises RequestError for a request that can never be served: a bad option, a prompt that is too long, a cache
        larger than the engine's memory; and EngineBusyError if the queue, or its memory for pictures, is full.
        """
        if self._service is None:
            raise RequestError("this engine runs an encoder, which generates nothing. Use embed.")
        keywords = {"config": config, "logits_processors": logits_processors, **options}
        request = self._service.request(prompt, keywords)
        request.stream = stream = EngineStream(request.row, self._worker.wake)
        request.push = stream.push
        self._worker.add(request)
        return stream

    def embed(
        self,
        texts: Text | Pair | Sequence[Text | Pair],
        *,
        truncate: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
        timeout: float | None = None,
    ) -> NDArray[np.float32]:
        """Return one vector for each text, as `Encoder.embed`, run together with texts of other callers.

        timeout: in seconds; texts that have not begun by then are run no more. Raises RequestError as `Encoder.embed`,
        EngineBusyError if the queue is full, concurrent.futures.CancelledError if the engine is closed without
        draining, and TimeoutError.
        """
        encoder = self._require_encoder()
        flag("truncate", truncate)
        timeout = seconds("timeout", timeout)
        several = encoder.is_list(texts)
        prompted: Any = encoder.with_prompt(texts, prompt, prompt_name)
        futures = self.submit_texts(prompted if several else [prompted], truncate=truncate)
        try:
            vectors = np.stack([future.result(timeout) for future in futures])
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return vectors if several else vectors[0]

    def submit_texts(
        self, texts: Sequence[Text | Pair], *, truncate: bool = True
    ) -> "list[Future[NDArray[np.float32]]]":
        """Put texts into the queue of an encoder; return a future of each vector at once.

        A text whose future is cancelled before it has begun is not run. Raises RequestError as `Encoder.embed`, and
        EngineBusyError if the queue is full.
        """
        if not is_list(texts):
            raise RequestError(f"texts is {shown(texts)}; it must be a list of texts.")
        if isinstance(self._reader, DualEncoder):
            rows = [self._reader.text_row(text) for text in texts]
            return self._add([WaitingText(row, len(row), self._reader.embed_rows) for row in rows])
        encoder = self._require_encoder()
        encoded = [encoder.encode_text(text, truncate) for text in texts]
        return self._add([WaitingText(each, len(each[0]), encoder.embed_encoded) for each in encoded])

    def submit_pictures(self, pictures: Sequence[Picture]) -> "list[Future[NDArray[np.float32]]]":
        """Put pictures into the queue of a model that reads them; return a future of each vector at once.

        Vectors are those of its `embed`. Pictures are decoded and resized before this returns. Raises RequestError as
        `embed`, and EngineBusyError if the queue is full.
        """
        if self._reader is None:
            raise RequestError("this engine runs a model of texts, and no pictures. Use submit or submit_texts.")
        if is_picture(pictures):
            raise RequestError("pictures is one picture; it must be a list of at least one.")
        values, read = self._reader.values_of(pictures), self._reader.embed_values
        tokens = [self._reader.tokens_of(each) for each in pictures]
        return self._add([WaitingText(each, count, read) for each, count in zip(values, tokens, strict=True)])

    def submit_pairs(
        self, pairs: Sequence[Pair], *, truncate: bool = True, prompt: str | None = None, prompt_name: str | None = None
    ) -> "list[Future[NDArray[np.float32]]]":
        """Put pairs of texts into the queue of a cross-encoder; return a future of each score at once.

        Scores and errors are those of `Encoder.score`; a pair whose future is cancelled before it has begun is not run.
        Raises EngineBusyError if the queue is full.
        """
        encoder = self._require_encoder()
        if not is_list(pairs):
            raise RequestError(f"pairs is {shown(pairs)}; it must be a list of pairs of texts.")
        encoder.require_scores()
        encode = partial(encoder.encode_pair, truncate=truncate, prompt=prompt, prompt_name=prompt_name)
        encoded = [encode(pair) for pair in pairs]
        return self._add([WaitingText(each, len(each[0]), encoder.score_encoded) for each in encoded])

    def _add(self, waiting: list[WaitingText]) -> "list[Future[NDArray[np.float32]]]":
        self._worker.add(waiting)
        return [text.result for text in waiting]

    def _require_encoder(self) -> Encoder:
        if self._reader is not None:
            raise RequestError("this engine runs a model of pictures. Use submit_pictures.")
        if self._encoder is None:
            raise RequestError("this engine runs a model that generates. Use submit.")
        return self._encoder

    def statistics(self) -> EngineStatistics:
        """Return counts of requests, tokens and bytes, of now and since the start."""
        return self._turns.statistics()

    def close(self, drain: bool = True) -> None:
        """Refuse new requests, wait for those that are accepted, and stop. drain: False cancels them instead."""
        self._worker.stop(drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(drain=error is None)
