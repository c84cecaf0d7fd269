"""The rows that generate together, one turn at a time: a step of all running rows, then prompts.

    running   row 3   │ …   │     one token each in every turn
              row 4   │ …   │
    filling   row 5   │ …         the next chunk of its prompt; behind the last one the row joins those that run
    waiting   ▢ ▢ ▢               first come, first served

Requests leave the queue when a row and the bytes that they can need are free; a row that is held for a later request is
free, and so is its memory. Rows that run are adjacent. Where one between others has ended, the last one moves into the
gap. Everything here runs on the thread that calls `turn`; the queue alone is guarded by the lock that is handed in.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from edgeformer.runtime.generation.row import candidate_count
from edgeformer.runtime.generation.scheduling.beginnings import Beginnings
from edgeformer.runtime.generation.scheduling.request import ScheduledRequest
from edgeformer.runtime.generation.scheduling.statistics import EngineStatistics
from edgeformer.runtime.generation.scheduling.waiting import EngineBusyError, WaitingRequests
from edgeformer.runtime.generation.speculation.draft_steps import DraftSteps
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.memory import Candidates, Mask
from edgeformer.runtime.steps.picture_rows import PictureRows


class Scheduler:
    """Requests in a queue, in the batch, and on their way between.

    - beginnings: where rows begin; it has the decoder.
    - rows: that run together at most.
    - most_waiting: requests in the queue at most; None for any number.
    - lock: guards the queue, where other threads append to it.
    - leave_out_at: rows that have ended are left out of steps once this part of the rows, or less, is running. With 1
      they are left out at once, so that other requests can have the rows.
    - prompts_first: whether a turn runs all prompts that have a row. Otherwise it runs at most one chunk of them, or
      the tower once over a few tiles of a picture, so that a running row never waits longer than a step and one of
      these for its next token.

    Prompts are cut where `StepRunner.prefill` would cut them, so that both compute the same.
    """

    def __init__(
        self,
        beginnings: Beginnings,
        rows: int,
        *,
        most_waiting: int | None = None,
        lock: AbstractContextManager[Any] | None = None,
        leave_out_at: float = 1.0,
        prompts_first: bool = False,
    ):
        self.waiting = WaitingRequests(most_waiting)
        self._beginnings = beginnings
        self._decoder = beginnings.decoder
        self._rows = rows
        self._lock = nullcontext() if lock is None else lock
        self._leave_out_at = leave_out_at
        self._prompts_first = prompts_first
        self._running: list[ScheduledRequest] = []  # in the order of their rows; some may have ended
        self._filling: ScheduledRequest | None = None  # the one whose prompt is being run
        self._look_for_cancelled = False
        self._look_for_ended = False
        self._stepping: list[tuple[int, ScheduledRequest]] = []  # those of the running ones that have not ended
        self._active: Mask | None = None  # which of the running ones these are, where any has ended
        self._draft_steps = DraftSteps(beginnings.decoder)
        self._any_drafts = False  # whether a running request drafts
        self._together: list[RowDrafts] = []  # drafts of the running rows, where several may draft in one step
        self._few: int | None = None  # how many candidates the running rows need
        self._pending: ScheduledRequest | None = None  # the one that drafts had last, which may have pending tokens
        self._counts: Counter[str] = Counter()
        self._error: BaseException | None = None  # the first that ended a request
        self._seconds = 0.0  # that ended requests took between their first chunk and their end

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self._running or self._filling or self.waiting.requests)

    def add(self, request: ScheduledRequest) -> None:
        """Put a request into the queue; the caller holds the lock. Raises EngineBusyError if it is full."""
        of_pictures = self.waiting.is_full_of_pictures(request)
        if self.waiting.is_full or of_pictures:
            ended = sum(self._counts[how] for how in ("finished", "cancelled", "failed"))
            # The mean time of a request, shared by the rows, is about when the next one leaves the queue.
            seconds = self._seconds / max(ended, 1) / self._rows
            raise EngineBusyError(len(self.waiting), seconds, of_pictures=of_pictures and not self.waiting.is_full)
        self.waiting.append(request)

    def turn(self) -> None:
        """Drop what was cancelled, run one step, then prompts."""
        if self._look_for_cancelled:
            self.drop_cancelled()
        if self._look_for_ended:
            self._close_gaps()
        if self._running:
            if self._any_drafts:
                self._step_of_drafts()
            else:
                self._step_of_rows(time.perf_counter())
            if self._look_for_ended:
                self._close_gaps()
        if self._filling is not None or self.waiting.requests:
            self._run_prompts()

    def run(self) -> None:
        """Take turns until all requests have ended. Raises the first error of one of them, without the others' ends."""
        while self._running or self._filling is not None or self.waiting.requests:
            self.turn()
            if self._error is not None:
                raise self._error

    def look_for_cancelled(self) -> None:
        """Let the next turn look for streams that were cancelled; from any thread."""
        self._look_for_cancelled = True

    def cancel_all(self) -> None:
        """Mark all requests as cancelled; the next turn drops them."""
        for request in [*self._batch(), *self.waiting]:
            request.stream.cancel()

    def fail_all(self, error: BaseException) -> None:
        """End all requests by an error."""
        with self._lock:
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
            memory=self._beginnings.memory,
            held_bytes=self._beginnings.held_bytes,
            prefix_bytes=self._beginnings.kept_bytes,
            **self._counts,
        )

    def drop_cancelled(self) -> None:
        """End the requests whose streams were cancelled."""
        self._look_for_cancelled = False
        with self._lock:
            dropped = [request for request in self.waiting if request.stream.cancelled]
            for request in dropped:
                self.waiting.remove(request)
        dropped += [request for request in self._batch() if request.stream.cancelled and not request.ended]
        for request in dropped:
            request.row.cancel()
            self._keep_row(request)
            self._end(request)
        if self._filling and self._filling.ended:
            self._leave(self._filling)
            self._filling = None
        self._close_gaps()

    def _batch(self) -> list[ScheduledRequest]:
        """Return the requests that have a row."""
        filling = self._filling
        return [*self._running, *([filling] if filling else [])]

    def _step_of_drafts(self) -> None:
        """Append several tokens to a row that drafts alone, or to each of a few; otherwise one to every running row."""
        started, running, first = time.perf_counter(), self._running, self._running[0]
        alone = len(running) == 1 and self._filling is None and not self.waiting.requests
        if alone and first.drafts is not None:
            self._pending = first
            self._draft_steps.draft(first.place, [first.drafts])
            self._step_with_drafts(started, [first.drafts])
        elif self._pending is None or self._catch_up(self._pending):
            if self._together and self._draft_steps.draft(self._running[0].place, self._together):
                self._step_with_drafts(started, self._together)
            else:
                took = self._step_of_rows(started)
                if took and self._together:
                    self._draft_steps.record_step(took, self._together)

    def _step_with_drafts(self, started: float, rows: Sequence[RowDrafts]) -> None:
        """Run the last token of each row and its draft, and choose tokens as long as they are those of the draft.

        started: when drafting began. rows: the drafts of the running rows.
        """
        requests, place = self._running, self._running[0].place
        try:
            drafts, logits = self._draft_steps.run(place, rows, self._few)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            for request in requests:
                self._end(request, error)
            return
        self._counts["steps"] += 1
        accepted = [self._accept(*each) for each in zip(requests, drafts, logits, strict=True)]
        self._draft_steps.settle(place, rows, accepted)
        self._counts["drafted_tokens"] += sum(map(len, drafts))
        self._counts["accepted_tokens"] += sum(accepted)
        elapsed = time.perf_counter() - started
        for request in requests:
            if request.ended:
                self._keep_row(request)
            request.row.decode_seconds += elapsed

    def _accept(self, request: ScheduledRequest, draft: Sequence[int], logits: Sequence[Any]) -> int:
        """Choose the next tokens of a row, up to the first that is not that of the draft; return how many are."""
        accepted = 0
        self._advance(request, logits[0])
        while accepted < len(draft) and not request.ended and request.row.tokens[-1] == draft[accepted]:
            accepted += 1
            self._advance(request, logits[accepted])
        return accepted

    def _catch_up(self, request: ScheduledRequest) -> bool:
        """Run the pending tokens of a row that is not alone any more; return whether there are rows to run."""
        self._pending = None
        if request.ended or request.drafts is None:
            return True
        try:
            request.drafts.catch_up(self._decoder, request.place)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            self._end(request, error)
            self._close_gaps()
        return bool(self._running)

    def _step_of_rows(self, started: float) -> float:
        """Append one token to every running row; return the seconds of the run, or 0 where it failed.

        started: when the step began.

        The weights of a step evict this code from the processor's caches, so every Python call here is a slow one.
        """
        began = time.perf_counter()
        running, stepping = self._running, self._stepping
        tokens = [request.row.tokens[-1] for request in running]
        try:
            logits: Any = self._decoder.decode_rows(running[0].place, tokens, self._few, self._active)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            for request in running:
                self._end(request, error)
            return 0.0
        took = time.perf_counter() - began
        self._counts["steps"] += 1
        self._counts["generated_tokens"] += len(stepping)  # before their ends: whoever sees one finds them counted
        for place, request in stepping:
            row = request.row
            try:
                piece = row.advance(logits[place])
                if request.push is not None:
                    request.push(piece)
            except Exception as error:  # of a logits processor or a listener: the caller's own code ends its own row
                self._end(request, error)
            else:
                if row.finish_reason is not None:
                    self._end(request)
        if self._look_for_ended:
            for _, request in stepping:
                if request.ended:
                    self._keep_row(request)
        elapsed = time.perf_counter() - started
        for _, request in stepping:
            request.row.decode_seconds += elapsed
        return took

    def _advance(self, request: ScheduledRequest, logits: Logits | Candidates) -> None:
        """Choose the next token of one row, as a step of rows does for each."""
        self._counts["generated_tokens"] += 1
        try:
            piece = request.row.advance(logits)
            if request.push is not None:
                request.push(piece)
        except Exception as error:  # of a logits processor or a listener: the caller's own code ends its own row
            self._end(request, error)
        else:
            if request.row.finish_reason is not None:
                self._end(request)

    def _close_gaps(self) -> None:
        """Take out the rows that have ended, if they are to be left out; the last one moves into a gap between others.

        rows 0 2 5      │ a · b · · c │   ──►   │ a c b │
        """
        self._look_for_ended = False
        running = self._running
        if sum(not request.ended for request in running) <= self._leave_out_at * len(running):
            while running and running[0].ended:
                self._leave(running.pop(0))
            for index in reversed(range(len(running))):
                if running[index].ended:
                    ended, last = running[index], running.pop()
                    self._leave(ended)
                    if last is not ended:
                        self._beginnings.move(last, ended.place)
                        running[index] = last
        self._look_at_rows()

    def _look_at_rows(self) -> None:
        """Take account of other running rows: which step, how many candidates decide, and whether any drafts."""
        running = self._running
        if self._pending is not None and self._pending.ended:
            self._pending = None
        self._stepping = [(place, request) for place, request in enumerate(running) if not request.ended]
        some_ended = len(self._stepping) < len(running)
        self._active = np.array([not request.ended for request in running]) if some_ended else None
        self._any_drafts = any(request.drafts is not None for request in running)
        drafts = [request.drafts for request in running if request.drafts is not None and not request.ended]
        self._together = drafts if len(drafts) == len(running) and self._draft_steps.begin(drafts) else []
        if self._decoder.chooses_candidates:
            self._few = candidate_count([request.row for request in running])

    def _run_prompts(self) -> None:
        """Run pieces of prompts while there is room for them; where a prompt ends, its row joins the others."""
        chunk = left = self._decoder.prefill_chunk
        while request := self._filling or self._admit():
            self._filling = request
            if request.first_logits is not None:
                self._start_answer(request, request.first_logits)
                continue
            ends = (*request.branches, len(request.row.prompt))
            stop = next(end for end in ends if end > request.prefilled)
            if not self._prompts_first:
                stop = min(stop, self._decoder.graph.piece_end(request.row.prompt, request.prefilled, chunk))
                if stop - request.prefilled > left and left < chunk:  # a block may be longer than a chunk
                    return
            piece, pictures = request.row.prompt[request.prefilled : stop], request.row.pictures
            if pictures is not None and pictures.read(piece):
                if left < chunk:  # a running row waits for pieces of prompts or for the tower, and never for both
                    return
                if self._read_tiles(request, pictures, piece):
                    if self._prompts_first:
                        continue
                    return
            left -= 0 if self._prompts_first else len(piece)
            self._run_piece(request, piece)

    def _read_tiles(self, request: ScheduledRequest, pictures: PictureRows, piece: Sequence[int]) -> bool:
        """Let the tower read the next tiles of a piece of a prompt; return whether there were any."""
        row, started = request.row, time.perf_counter()
        try:
            read = pictures.read_next(piece)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            self._give_up(request, error)
            return True
        row.prefill_seconds += time.perf_counter() - started
        return read

    def _give_up(self, request: ScheduledRequest, error: Exception) -> None:
        """End the request whose prompt is being run by an error."""
        self._end(request, error)
        self._filling = None
        self._leave(request)

    def _run_piece(self, request: ScheduledRequest, piece: Sequence[int]) -> None:
        """Run a piece of a prompt; behind the last one, start the answer."""
        row, started = request.row, time.perf_counter()
        try:
            self._decoder.graph.pictures = row.pictures
            logits = self._decoder.prefill(request.place, piece)
        except Exception as error:  # of onnxruntime, which has no base class of its own
            self._give_up(request, error)
            return
        row.prefill_seconds += time.perf_counter() - started
        request.prefilled += len(piece)
        self._counts["prompt_tokens"] += len(piece)
        if request.prefilled == len(row.prompt):
            self._start_answer(request, logits)
        elif request.prefilled in request.branches:
            self._beginnings.keep(request, row.prompt[: request.prefilled], logits)

    def _start_answer(self, request: ScheduledRequest, logits: Logits) -> None:
        """Choose the first token from the logits after the prompt, and join the running rows."""
        self._advance(request, logits)
        self._filling = None
        self._beginnings.keep(request, request.row.prompt, logits)
        self._join(request)

    def _keep_row(self, request: ScheduledRequest) -> None:
        """Keep what the row of a request holds at its end."""
        if request.place >= 0 and request.error is None:
            self._beginnings.keep(request, self._beginnings.tokens_of(request))

    def _join(self, request: ScheduledRequest) -> None:
        """Add a request to the running ones, in a row beside theirs."""
        if request.ended and self._leave_out_at == 1:
            self._leave(request)
            return
        places = self._places()
        if request.place not in places:
            self._beginnings.move(request, places[0])
        before = bool(self._running) and request.place < self._running[0].place
        self._running.insert(0 if before else len(self._running), request)
        self._look_at_rows()

    def _places(self) -> Sequence[int]:
        """Return the rows that the next request may have: those beside the running ones, or any if none runs."""
        if not self._running:
            return range(self._rows)
        beside = self._running[-1].place + 1, self._running[0].place - 1
        return [place for place in beside if 0 <= place < self._rows]

    def _admit(self) -> ScheduledRequest | None:
        """Take the next request that has room from the queue, and make its row ready; None if there is none."""
        running = self._running
        if len(running) == self._rows or not self.waiting.requests:
            return None
        free = self._beginnings.memory - sum(request.bytes for request in running)
        with self._lock:
            request = self.waiting.take(free)
        if request is None:
            return None
        try:
            self._beginnings.begin(request, self._places(), running, free)
            self._decoder.expect(request.most_tokens, request.place, len(request.row.prompt))
        except Exception as error:  # of onnxruntime, which has no base class of its own
            self._end(request, error)
            self._leave(request)
            return self._admit()
        for count in ("prompt_tokens", "cached_tokens"):
            self._counts[count] += request.prefilled
        return request

    def _leave(self, request: ScheduledRequest) -> None:
        """Free the row of a request, if it has one."""
        if request.place >= 0:
            self._beginnings.leave(request)

    def _end(self, request: ScheduledRequest, error: BaseException | None = None) -> None:
        """Count a request by how it ends, and then end its stream: whoever sees the end finds it counted."""
        if request.ended:
            return
        how = "failed" if error else "cancelled" if request.row.finish_reason == "cancelled" else "finished"
        self._counts[how] += 1
        self._error = self._error or error
        self._seconds += request.row.prefill_seconds + request.row.decode_seconds
        self._look_for_ended = True
        request.end(error)
