"""Texts and pictures for an encoder, of many callers, run together by length."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from edgeformer.runtime.generation.scheduling.statistics import EngineStatistics
from edgeformer.runtime.generation.scheduling.waiting import EngineBusyError
from edgeformer.runtime.tasks.encoders.text_encoder import BATCH, batches

MOST_PADDING = 2
"""Texts run together with the one that waits longest if neither is more than this many times as long as the other."""


@dataclass(eq=False)
class WaitingText:
    """A text or a picture that waits for its vector, or a pair of texts that waits for its score.

    encoded: what runs. length: its tokens. run: returns the results of what waits for the same. result: that of the
    future.
    """

    encoded: Any
    length: int
    run: Callable[[list[Any]], Sequence[Any]]
    result: "Future[Any]" = field(default_factory=Future)

    def __len__(self) -> int:
        return self.length


class TextScheduler:
    """Batches of waiting texts. changed: guards them, since callers append. max_queue: texts that wait, at most."""

    def __init__(self, max_rows: int, max_queue: int, changed: Condition):
        self.waiting: list[WaitingText] = []
        self.max_queue = max_queue
        self._rows = min(max_rows, BATCH)
        self._changed = changed
        self._done = {"prompt_tokens": 0, "finished": 0, "failed": 0, "cancelled": 0, "steps": 0}

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self.waiting)

    def add(self, texts: list[WaitingText]) -> None:
        """Put the texts of a call into the queue; the caller holds the lock. Raises EngineBusyError if it is full."""
        if len(self.waiting) >= self.max_queue:
            raise EngineBusyError(len(self.waiting), 1.0)
        self.waiting += texts

    def turn(self) -> None:
        """Run the text that waits longest, with those of the most similar lengths; drop what was cancelled."""
        with self._changed:
            waiting = [text for text in self.waiting if not text.result.cancelled()]
            self._done["cancelled"] += len(self.waiting) - len(waiting)
            batch = self._next_batch(waiting)
            self.waiting = [text for text in waiting if text not in batch]
            # From here on a text cannot be cancelled, so that its result has somewhere to go.
            running = [text for text in batch if text.result.set_running_or_notify_cancel()]
            self._done["cancelled"] += len(batch) - len(running)
            batch = running
        if not batch:
            return
        try:
            results = batch[0].run([text.encoded for text in batch])
        except Exception as error:  # of onnxruntime, which has no base class of its own
            for text in batch:
                text.result.set_exception(error)
            self._done["failed"] += len(batch)
            return
        for text, result in zip(batch, results, strict=True):
            text.result.set_result(result)
        self._done["finished"] += len(batch)
        self._done["steps"] += 1
        self._done["prompt_tokens"] += sum(map(len, batch))

    def _next_batch(self, waiting: list[WaitingText]) -> list[WaitingText]:
        if not waiting:
            return []
        first = waiting[0]
        longest, shortest = len(first) * MOST_PADDING, len(first) / MOST_PADDING
        similar = [text for text in waiting if shortest <= len(text) <= longest and text.run == first.run]
        similar.sort(key=lambda text: abs(len(text) - len(first)))  # stable: the oldest of one length first
        return [similar[place] for place in next(batches([len(text) for text in similar], self._rows))]

    def look_for_cancelled(self) -> None:
        """Do nothing: every turn looks."""

    def cancel_all(self) -> None:
        """Give up all texts that wait."""
        for text in self.waiting:
            text.result.cancel()
        self._done["cancelled"] += len(self.waiting)
        self.waiting = []

    def fail_all(self, error: BaseException) -> None:
        """End all texts that wait by an error."""
        with self._changed:
            texts, self.waiting = self.waiting, []
        for text in texts:
            if text.result.set_running_or_notify_cancel():
                text.result.set_exception(error)

    def statistics(self) -> EngineStatistics:
        """Return counts; from any thread."""
        return EngineStatistics(waiting=len(self.waiting), rows=self._rows, **self._done)
