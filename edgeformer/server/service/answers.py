"""Answers as they come: streams of an engine as asynchronous events, cancelled when nobody waits for them any more."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

from edgeformer.runtime import EngineStream, Generation, TokenEvent
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.service.metrics import ModelMetrics
from edgeformer.server.service.records import Record

_Result = TypeVar("_Result")


class ClientGone(Exception):
    """The client of a request has closed its connection."""


@dataclass(frozen=True)
class Progress:
    """New tokens of one choice. result: the whole generation, once it has ended."""

    choice: int
    tokens: Sequence[TokenEvent]
    result: Generation | None


class Wakes:
    """Sets events of the loop from other threads: all that a step of the engine changes by one call.

    A call of its own for each token would cost a write to a pipe, from the thread that computes.
    """

    def __init__(self) -> None:
        self._changed: deque[asyncio.Event] = deque()
        self._called = False

    def wake(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        """Set an event soon; from any thread."""
        self._changed.append(event)
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop may have ended before the engine
                loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        self._called = False  # first: what comes from here on may need another call
        while self._changed:
            self._changed.popleft().set()


class Answers:
    """The answers to one request, one per choice, as events of an asyncio loop.

    Use it as a context manager: leaving it cancels what still runs, which frees its rows in the engine. streams: those
    of a prompt side by side, `per_prompt` of each. running: the set of all answers of the server, which it is in until
    then. wakes: those of the server.
    """

    def __init__(
        self,
        streams: Sequence[EngineStream],
        per_prompt: int,
        record: Record,
        metrics: ModelMetrics,
        running: "set[Answers]",
        wakes: Wakes,
    ):
        self._streams = streams
        self._per_prompt = per_prompt
        self._record = record
        self._metrics = metrics
        self._running = running
        running.add(self)
        self._changed = asyncio.Event()
        self._last_token = record.started
        loop = asyncio.get_running_loop()

        for stream in streams:
            stream.add_listener(lambda _: wakes.wake(loop, self._changed))
        self._changed.set()

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *_: object) -> None:
        self._running.discard(self)
        self.cancel()

    def cancel(self) -> None:
        """Cancel every choice that has not ended."""
        for stream in self._streams:
            stream.cancel()

    async def progress(self) -> AsyncIterator[Progress]:
        """Yield new tokens as they come, until every choice has ended. Raises ApiError where a choice fails."""
        running = dict(enumerate(self._streams))
        while running:
            await self._changed.wait()
            self._changed.clear()
            for choice, stream in list(running.items()):
                tokens, ended = stream.poll()
                if tokens:
                    self._count(len(tokens))
                result = None
                if ended:
                    del running[choice]
                    result = self._finish(choice, stream)
                if tokens or ended:
                    yield Progress(choice, tokens, result)

    def _finish(self, choice: int, stream: EngineStream) -> Generation:
        """Return the result of a stream that has ended; raise ApiError for one that the server cancelled."""
        result = stream.finish()
        if choice % self._per_prompt == 0:  # the other choices find what the first one has read
            self._record.cached_tokens += result.cached_tokens
        self._record.finish_reasons.append(result.finish_reason)
        if result.finish_reason == "cancelled":
            self._record.outcome = "cancelled"
            raise ApiError(503, "the server is stopping and cancelled this request. Try again.", code="cancelled")
        return result

    def _count(self, tokens: int) -> None:
        now = time.perf_counter()
        if self._record.first_token_seconds is None:
            self._record.first_token_seconds = now - self._record.started
            self._metrics.first_token.observe(self._record.first_token_seconds)
        else:
            self._metrics.inter_token.observe((now - self._last_token) / tokens)
        self._last_token = now
        self._record.completion_tokens += tokens


async def unless_gone(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of `work`; cancel it and raise ClientGone when the client closes its connection before."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _until_disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
