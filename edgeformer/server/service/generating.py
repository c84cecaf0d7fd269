"""Steps that all routes of generation share: submit a request, count its tokens, write a stream of events."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgeformer.runtime import EngineStream, GenerationConfig
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.service.answers import Answers, ClientGone, unless_gone
from edgeformer.server.service.records import LOG, Record
from edgeformer.server.service.served import ServedModel
from edgeformer.server.service.state import State, record_of, state_of

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
"""`finish_reason` of the API, by that of the runtime."""

EVENT_JSON = json.JSONEncoder(separators=(",", ":"))
"""Made once: `json.dumps` with separators makes an encoder for each event."""

EVENT_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers that keep proxies from holding events back."""


async def submit(
    request: Request,
    served: ServedModel,
    prompts: Sequence[Any],
    configs: Sequence[GenerationConfig],
    **keywords: Any,
) -> Answers:
    """Submit each prompt with each config; return the answers, those of a prompt side by side.

    Either all are accepted or none. Raises what `Engine.submit` raises.
    """
    state, record = state_of(request), record_of(request)
    record.model = served.name
    if served.adapter is not None:
        keywords["adapter"] = served.adapter
    record.prompt_tokens = sum(map(len, prompts))
    asked = len(prompts) * len(configs)
    if asked > served.max_queue:
        message = f"the request asks for {asked} answers, and the queue of this server holds {served.max_queue}."
        raise ApiError(400, message, param="n")

    def submit_all() -> list[EngineStream]:
        streams: list[EngineStream] = []
        try:
            for prompt in prompts:
                for config in configs:
                    streams.append(served.engine.submit(prompt, config=config, **keywords))
        except BaseException:
            _cancel(streams)
            raise
        return streams

    # Grammars are compiled here, which takes its time: the loop must go on.
    submitted = state.threads.submit(submit_all)
    try:
        streams = await asyncio.shield(asyncio.wrap_future(submitted))
    except asyncio.CancelledError:
        submitted.add_done_callback(_cancel_submitted)
        raise
    return Answers(streams, len(configs), record, state.metrics.of_model(served.name), state.running, state.wakes)


def _cancel(streams: Sequence[EngineStream]) -> None:
    for stream in streams:
        stream.cancel()


def _cancel_submitted(submitted: "Future[list[EngineStream]]") -> None:
    if not submitted.cancelled() and submitted.exception() is None:
        _cancel(submitted.result())


def usage(record: Record) -> dict[str, Any]:
    """Return the counts of tokens of a request, as the API has them."""
    return {
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "total_tokens": record.prompt_tokens + record.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": record.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": record.reasoning_tokens},
    }


def keep_text(state: State, record: Record, name: str, text: Any) -> None:
    """Put a prompt or an answer into the record, if the server logs them."""
    if state.options.log_prompts:
        record.texts[name] = text


class EventStream(Response):
    """A response of server-sent events: each a JSON object, and `[DONE]` at the end.

    named: each has its type as a name, as the streams of /v1/responses have, and the end is an event as well.
    nested_errors: an error is a part of its event, as in /v1/messages, and not the event itself.
    The request is cancelled when its client goes away or leaves the stream unread for `stall_seconds`. An error after
    the first event becomes an event of its own, which OpenAI's clients raise.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        answers: Answers | None,
        events: AsyncIterator[dict[str, Any]],
        *,
        named: bool = False,
        nested_errors: bool = False,
    ):
        super().__init__(headers=EVENT_STREAM_HEADERS)
        del self.headers["content-length"]
        self._request = request
        self._answers = answers
        self._events = events
        self._named = named
        self._nested_errors = nested_errors
        self._sends_since: float | None = None  # when the event was sent that the client has not taken yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        record = record_of(self._request)
        with self._answers or contextlib.nullcontext():
            try:
                await unless_gone(self._request, self._send_all(send))
            except ClientGone:
                record.outcome = "disconnected"
            except TimeoutError:
                record.outcome = "stalled"

    async def _send_all(self, send: Send) -> None:
        """Send all events. Raises TimeoutError where the client stops reading."""
        async with asyncio.timeout(None) as limit:
            watching = asyncio.ensure_future(self._watch(limit))
            try:
                await self._send_events(send)
            finally:
                watching.cancel()

    async def _watch(self, limit: asyncio.Timeout) -> None:
        """Let a limit pass once an event has waited for `stall_seconds`; a timer for each event would cost more."""
        loop, seconds = asyncio.get_running_loop(), state_of(self._request).options.stall_seconds
        while self._sends_since is None or loop.time() - self._sends_since < seconds:
            await asyncio.sleep(seconds / 4)
        limit.reschedule(loop.time())

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for event in self._events:
                await self._send(send, event)
        except Exception as error:
            record = record_of(self._request)
            failure = as_api_error(error)
            record.error = str(error)
            if record.outcome == "ok":
                record.outcome = "error"
            if failure.status == 500:
                LOG.exception("a stream failed", extra={"fields": {"request_id": record.request_id}})
            await self._send(
                send,
                failure.body if not self._named or self._nested_errors else failure.body["error"] | {"type": "error"},
            )
        if not self._named:
            await self._send(send, None)
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, event: dict[str, Any] | None) -> None:
        """Send an event; None is the end."""
        data = "[DONE]" if event is None else EVENT_JSON.encode(event)
        name = f"event: {event['type']}\n" if self._named and event is not None else ""
        body = {"type": "http.response.body", "body": f"{name}data: {data}\n\n".encode(), "more_body": True}
        self._sends_since = asyncio.get_running_loop().time()
        await send(body)
        self._sends_since = None
