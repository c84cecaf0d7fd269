"""The batch of an engine, one turn at a time: a step of all running rows, then at most one chunk of prompts.

So a running stream never waits longer than a step and a chunk for its next token. Requests leave the queue when a row
and the bytes that they can need are free; a row that is held for a later request is free, and so is its memory.
Everything here runs on one thread, apart from the queue.
"""

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from threading import Condition

from edgeformer.runtime.engine.request import EngineRequest
from edgeformer.runtime.engine.row_drafts import RowDrafts
from edgeformer.runtime.engine.service import Service
from edgeformer.runtime.engine.statistics import EngineStatistics
from edgeformer.runtime.engine.waiting import EngineBusyError, WaitingRequests
from edgeformer.runtime.generation.generate import candidate_count
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.memory import Candidates


class Scheduler:
    """Requests in a queue, in the batch, and on their way between.

    changed: guards the queue, which callers append to. chunk: tokens of prompts in a turn, at most; None to cut a
    prompt where `StepRunner.prefill` would cut it, so that both compute the same.
    """

    def __init__(self, service: Service, max_rows: int, max_queue: int, changed: Condition, chunk: int | None = None):
        self.waiting = WaitingRequests(max_queue)
        self._service = service
        self._rows = max_rows
        self._changed = changed
        self._chunk = chunk or service.decoder.prefill_chunk
        self._running: list[EngineRequest] = []  # in the order of their rows
        self._filling: EngineRequest | None = None  # the one whose prompt is being run
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0  # that ended requests took between their first chunk and their end

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self._running or self._filling or len(self.waiting))

    def add(self, request: EngineRequest) -> None:
        """Put a request into the queue; the caller holds the lock. Raises EngineBusyError if it is full."""
        if len(self.waiting) >= self.waiting.most:
            ended = sum(self._counts[how] for how in ("finished", "cancelled", "failed"))
            # The mean time of a request, shared by the rows, is about when the next one leaves the queue.
            raise EngineBusyError(len(self.waiting), self._seconds / max(ended, 1) / self._rows)
        self.waiting.append(request)

    def turn(self) -> None:
        """Drop what was cancelled, run one step, then prompts of up to one chunk."""
        self._drop_cancelled()
        if self._running:
            self._step()
        self._run_prompts()

    def cancel_all(self) -> None:
        """Mark all requests as cancelled; the next turn drops them."""
        for request in [*self._batch(), *self.waiting]:
            request.stream.cancel()

    def fail_all(self, error: BaseException) -> None:
        """End all requests by an error."""
        with self._changed:
            requests = [*self._batch(), *self.waiting]
            for request in self.waiting:
                self.waiting.remove(request)
        for request in requests:
            self._end(request, error)
            self._leave(request)
        self._running, self._filling = [], None

    def statistics(self) -> EngineStatistics:
        """Return counts; from any thread."""
        batch = [request for request in self._batch() if not request.ended]
        return EngineStatistics(
            waiting=len(self.waiting),
            running=len(batch),
            rows=self._rows,
            cache_bytes=sum(request.bytes for request in batch),
            memory=self._service.memory,
            held_bytes=self._service.held_bytes,
            prefix_bytes=self._service.kept_bytes,
            **self._counts,
        )

    def _batch(self) -> list[EngineRequest]:
        """Return the requests that have a row."""
        filling = self._filling
        return [*self._running, *([filling] if filling else [])]

    def _drop_cancelled(self) -> None:
        with self._changed:
            dropped = [request for request in self.waiting if request.stream.cancelled]
            for request in dropped:
                self.waiting.remove(request)
        dropped += [request for request in self._batch() if request.stream.cancelled]
        for request in dropped:
            request.row.cancel()
            self._keep_row(request)
            self._end(request)
        if self._filling and self._filling.ended:
            self._leave(self._filling)
            self._filling = None
        self._close_gaps()

    def _step(self) -> None:
        """Append one token to every running row, or several to one that has the step to itself and drafts."""
        alone = len(self._running) == 1 and self._filling is None and not len(self.waiting)
        if alone and self._running[0].drafts is not None:
            self._step_with_drafts(self._running[0], self._running[0].drafts)
        else:
            self._step_of_rows()
        self._counts["steps"] += 1
        self._close_gaps()

    def _step_with_drafts(self, request: EngineRequest, drafts: RowDrafts) -> None:
        """Run the last token of the only row and a draft, and choose tokens as long as they are those of the draft."""
        decoder, place, row = self._service.decoder, request.place, request.row
        started, length = time.perf_counter(), int(decoder.lengths[place])
        draft = self._draft(request, drafts)
        try:
            tokens = [row.tokens[-1], *draft]
            few = row.candidate_count if decoder.chooses_candidates else None
            logits = decoder.decode_tokens(place, tokens) if draft else decoder.decode_rows(place, tokens, few)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            self._end(request, error)
            return
        took, accepted = time.perf_counter() - started, 0
        self._advance(request, logits[0])
        while accepted < len(draft) and not request.ended and row.tokens[-1] == draft[accepted]:
            accepted += 1
            self._advance(request, logits[accepted])
        if draft:
            decoder.cut(place, length + 1 + accepted)
        drafts.record(took, len(draft), accepted)
        self._counts["drafted_tokens"] += len(draft)
        self._counts["accepted_tokens"] += accepted
        if request.ended:
            self._keep_row(request)
        row.decode_seconds += time.perf_counter() - started

    def _draft(self, request: EngineRequest, drafts: RowDrafts) -> list[int]:
        """Return a draft. Where that fails, as for want of memory, the request goes on without drafts."""
        try:
            return drafts.draft(self._service.decoder, request.place)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            request.drafts = None
            warnings.warn(f"a request goes on without drafts: {error}", stacklevel=2)
            return []

    def _step_of_rows(self) -> None:
        """Append one token to every running row."""
        started = time.perf_counter()
        try:
            tokens = [request.row.tokens[-1] for request in self._running]
            decoder = self._service.decoder
            few = candidate_count([request.row for request in self._running]) if decoder.chooses_candidates else None
            logits = decoder.decode_rows(self._running[0].place, tokens, few)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            for request in self._running:
                self._end(request, error)
        else:
            for request, row_logits in zip(self._running, logits, strict=True):
                self._advance(request, row_logits)
            for request in self._running:
                if request.ended:
                    self._keep_row(request)
            elapsed = time.perf_counter() - started
            for request in self._running:
                request.row.decode_seconds += elapsed

    def _advance(self, request: EngineRequest, logits: Logits | Candidates) -> None:
        error = request.advance(logits)
        self._counts["generated_tokens"] += 1
        if error is not None or request.row.finish_reason is not None:
            self._end(request, error)

    def _close_gaps(self) -> None:
        """Take out the rows that have ended; the last running row moves into a gap between others."""
        running = self._running
        while running and running[0].ended:
            self._leave(running.pop(0))
        for index in reversed(range(len(running))):
            if running[index].ended:
                ended, last = running[index], running.pop()
                self._leave(ended)
                if last is not ended:
                    self._service.move(last, ended.place)
                    running[index] = last

    def _run_prompts(self) -> None:
        """Run pieces of prompts while they fit into one chunk; where a prompt ends, its row joins the others."""
        left = self._chunk
        while request := self._filling or self._admit():
            self._filling = request
            if request.first_logits is not None:
                self._start_answer(request, request.first_logits)
                continue
            fork = request.fork if request.fork > request.prefilled else len(request.row.prompt)
            piece = request.row.prompt[request.prefilled : min(request.prefilled + self._chunk, fork)]
            if len(piece) > left:
                return
            left -= len(piece)
            self._run_piece(request, piece)

    def _run_piece(self, request: EngineRequest, piece: Sequence[int]) -> None:
        """Run a piece of a prompt; behind the last one, start the answer."""
        row, started = request.row, time.perf_counter()
        try:
            logits = self._service.decoder.prefill(request.place, piece, chunk=self._chunk)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            self._end(request, error)
            self._filling = None
            self._leave(request)
            return
        row.prefill_seconds += time.perf_counter() - started
        request.prefilled += len(piece)
        self._counts["prompt_tokens"] += len(piece)
        if request.prefilled == len(row.prompt):
            self._start_answer(request, logits)
        elif request.prefilled == request.fork:
            self._service.keep(request, row.prompt[: request.fork])

    def _start_answer(self, request: EngineRequest, logits: Logits) -> None:
        """Choose the first token from the logits after the prompt, and join the running rows."""
        self._advance(request, logits)
        self._filling = None
        self._service.keep(request, request.row.prompt, logits)
        self._join(request)

    def _keep_row(self, request: EngineRequest) -> None:
        """Keep what the row of a request holds at its end."""
        if request.place >= 0 and request.stream.error is None:
            self._service.keep(request, self._service.tokens_of(request))

    def _join(self, request: EngineRequest) -> None:
        """Add a request to the running ones, in a row beside theirs."""
        if request.ended:
            self._leave(request)
            return
        places = self._places()
        if request.place not in places:
            self._service.move(request, places[0])
        before = bool(self._running) and request.place < self._running[0].place
        self._running.insert(0 if before else len(self._running), request)

    def _places(self) -> Sequence[int]:
        """Return the rows that the next request may have: those beside the running ones, or any if none runs."""
        if not self._running:
            return range(self._rows)
        beside = self._running[-1].place + 1, self._running[0].place - 1
        return [place for place in beside if 0 <= place < self._rows]

    def _admit(self) -> EngineRequest | None:
        """Take the next request that has room from the queue, and make its row ready; None if there is none."""
        running = self._running
        if len(running) == self._rows:
            return None
        free = self._service.memory - sum(request.bytes for request in running)
        with self._changed:
            request = self.waiting.take(free)
        if request is None:
            return None
        try:
            self._service.begin(request, self._places(), running, free)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            self._end(request, error)
            self._leave(request)
            return self._admit()
        for count in ("prompt_tokens", "cached_tokens"):
            self._counts[count] += request.prefilled
        return request

    def _leave(self, request: EngineRequest) -> None:
        """Free the row of a request, if it has one."""
        if request.place >= 0:
            self._service.leave(request)

    def _end(self, request: EngineRequest, error: BaseException | None = None) -> None:
        """Count a request by how it ends, and then end its stream: whoever sees the end finds it counted."""
        if request.ended:
            return
        how = "failed" if error else "cancelled" if request.row.finish_reason == "cancelled" else "finished"
        self._counts[how] += 1
        self._seconds += request.row.prefill_seconds + request.row.decode_seconds
        request.end(error)
