"""The state of a server, which its routes share, and the record of the request at hand."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from edgeformer.server.schema.bodies import read_body
from edgeformer.server.schema.body import Body
from edgeformer.server.service.answers import Answers, Wakes
from edgeformer.server.service.metrics import Metrics
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.service.records import Record
from edgeformer.server.service.served import ServedModels

_Body = TypeVar("_Body", bound=Body)
_Result = TypeVar("_Result")

BODY_BYTES = 4 << 20
"""Bytes of a request at most, where the options do not say."""

BODY_BYTES_WITH_MEDIA = 32 << 20
"""Bytes of a request at most of a server with a model that reads pictures, or recordings beside text."""

TEXT_THREADS = 4
"""Threads that render templates and tokenize, so that a long prompt holds up no other request."""

FETCH_THREADS = 16
"""Requests whose pictures are fetched at a time; others wait for them."""


@dataclass
class State:
    """The state of a server. draining: no more requests are taken. running: answers that are being generated.

    scoring: held by the one request whose prompt is scored, beside the engine of its model. decoder: decodes
    recordings and pictures, one at a time, as a small file may hold an hour, or 67 million pixels. fetchers: wait for
    pictures of other machines, so that no text waits behind them.
    """

    models: ServedModels
    options: ServerOptions
    metrics: Metrics
    draining: bool = False
    running: set[Answers] = field(default_factory=set)
    wakes: Wakes = field(default_factory=Wakes)
    scoring: asyncio.Lock = field(default_factory=asyncio.Lock)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(TEXT_THREADS, "edgeformer-text"))
    fetchers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(FETCH_THREADS, "edgeformer-fetch"))
    decoder: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "edgeformer-media"))

    @property
    def max_body_bytes(self) -> int:
        """Bytes of a request at most."""
        usual = BODY_BYTES_WITH_MEDIA if self.models.any_reads_media else BODY_BYTES
        return self.options.max_body_bytes or usual

    def cancel_running(self) -> None:
        """Cancel all answers that are being generated."""
        for answers in list(self.running):
            answers.cancel()

    def close(self) -> None:
        """Let the threads end."""
        for each in (self.threads, self.fetchers, self.decoder):
            each.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return the result of a function that runs beside the loop, as tokenizing does."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *arguments)

    async def read_media(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return the result of a function that reads the pictures of a request, some of which it may have to fetch."""
        pool = self.fetchers if self.options.picture_hosts else self.threads
        return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

    async def decode(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return the result of a function that decodes pictures; one runs at a time."""
        return await asyncio.get_running_loop().run_in_executor(self.decoder, function, *arguments)


def state_of(request: Request) -> State:
    """Return the state of the server that has a request."""
    state: State = request.app.state.edgeformer
    return state


def record_of(request: Request) -> Record:
    """Return the record of a request, which the outermost middleware makes."""
    record: Record = request.scope["edgeformer.record"]
    return record


async def body_of(request: Request, kind: type[_Body]) -> _Body:
    """Return the body of a request. Raises ApiError for one that is wrong."""
    return await state_of(request).in_thread(read_body, kind, await request.body())
