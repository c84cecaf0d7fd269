"""The one thread that computes, and the lock of its queue."""

import os
from threading import Condition, Thread, current_thread
from typing import Any, Protocol

from edgeformer.errors import RequestError
from edgeformer.runtime.generation.scheduling.statistics import EngineStatistics


class Turns(Protocol):
    """Work that is done a turn at a time. Other threads add to it, one at a time, and read its statistics."""

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""

    def add(self, item: Any) -> None:
        """Put an item into the queue. Raises EngineBusyError if it is full."""

    def turn(self) -> None:
        """Do the next piece of work."""

    def look_for_cancelled(self) -> None:
        """Let the next turn look for what was cancelled."""

    def cancel_all(self) -> None:
        """Give up all that has not ended."""

    def fail_all(self, error: BaseException) -> None:
        """End all that has not ended by an error."""

    def statistics(self) -> EngineStatistics:
        """Return counts."""


class Worker:
    """A thread that takes turns while there is work. It does not know the engine, which may be dropped."""

    def __init__(self, turns: Turns, changed: Condition):
        self._turns = turns
        self._changed = changed
        self._closed = False
        self._process = os.getpid()
        self._thread = Thread(target=self._work, name="edgeformer-engine", daemon=True)
        self._thread.start()

    def add(self, item: Any) -> None:
        """Put an item into the queue.

        Raises EngineBusyError if it is full, and RequestError if this is closed, or in a fork of the process, which has
        no copy of the thread.
        """
        if self._is_fork:
            raise RequestError(
                "the engine was made before this process was forked, and a fork has none of its threads. Make an "
                "engine in the new process, or start that by multiprocessing's method spawn."
            )
        with self._changed:
            if self._closed:
                raise RequestError("the engine is closed and takes no more requests.")
            self._turns.add(item)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let the thread look for streams that were cancelled."""
        with self._changed:
            self._turns.look_for_cancelled()
            self._changed.notify_all()

    def stop(self, drain: bool) -> None:
        """Refuse new requests; wait for the accepted ones, or cancel them. A fork has none, and waits for nothing."""
        if self._is_fork:  # where another thread may have held the lock, which nobody would give back
            return
        with self._changed:
            self._closed = True
            if not drain:
                self._turns.cancel_all()
            self._changed.notify_all()
        if current_thread() is not self._thread:  # as where the last name of an engine goes in a listener
            self._thread.join()

    @property
    def _is_fork(self) -> bool:
        return os.getpid() != self._process

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._turns.has_work or self._closed)
                if not self._turns.has_work:
                    return
            try:
                self._turns.turn()
            except Exception as error:  # a fault of the engine itself must not leave its callers waiting
                self._turns.fail_all(error)
