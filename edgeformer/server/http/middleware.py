"""Middleware before the routes: the record and log line of each request, errors as JSON, and who may come in."""

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeformer.errors import EdgeformerError
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.service.answers import ClientGone
from edgeformer.server.service.records import LOG, Record
from edgeformer.server.service.state import State

OPEN_PATHS = ("/", "/health", "/ready")
"""Paths that need no key: the page, which asks for it, and probes."""

CLIENT_CLOSED = 499
"""Status in logs and metrics of a request whose client went away before the answer, as in nginx."""

UNREAD_BYTES, UNREAD_SECONDS = 2**20, 5.0
"""How much of the body of a refused request is still read, and for how many seconds. A connection that is closed over
bytes that nobody has read is reset, and the client may then lose the answer."""


class Recorder:
    """The outermost middleware: gives each request its record, and writes the log's line and the metrics at its end."""

    def __init__(self, app: ASGIApp, state: State, routes: Mapping[str, str]):
        self._app = app
        self._state = state
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope["edgeformer.record"] = Record(scope["method"], scope["path"])

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.request_id
                if record.warnings:
                    headers["x-edgeformer-warning"] = (
                        "; ".join(record.warnings).encode("ascii", "replace").decode()[:1000]
                    )
            await send(message)

        metrics = self._state.metrics
        metrics.open_requests.inc()
        try:
            await self._app(scope, receive, recorded)
        except asyncio.CancelledError:
            record.outcome = "cancelled"
            raise
        finally:
            for function in record.at_end:
                function()
            record.status = record.status or CLIENT_CLOSED
            metrics.open_requests.dec()
            metrics.count(record, self._routes.get(record.path, "other"))
            LOG.info("request", extra={"fields": record.line()})


class Guard:
    """The middleware that lets requests in, within the limits of the options, and turns errors into JSON."""

    def __init__(self, app: ASGIApp, state: State):
        self._app = app
        self._state = state
        self._options = options = state.options
        self._key = None if options.api_key is None else _digest(options.api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record: Record = scope["edgeformer.record"]
        body = BoundedBody(receive, self._options.body_seconds, self._state.max_body_bytes)
        try:
            self._check(Headers(scope=scope), scope, body.max_bytes)
            await self._app(scope, body, send)
        except ClientGone:
            record.outcome = "disconnected"
        except Exception as error:
            failure = as_api_error(error)
            record.outcome, record.error = "error", str(error)
            if not isinstance(error, EdgeformerError):
                LOG.exception("a request failed", extra={"fields": {"request_id": record.request_id}})
            if not record.status:  # a status that was sent cannot be taken back
                await body.read_rest()
                response = failure.response()
                if not body.arrived:  # whatever else comes of it would keep the connection
                    response.headers["connection"] = "close"
                await response(scope, receive, send)

    def _check(self, headers: Headers, scope: Scope, max_bytes: int) -> None:
        """Raise ApiError for a request that may not come in. max_bytes: of its body."""
        host = headers.get("host", "")
        if len(headers.getlist("host")) > 1:
            raise ApiError(400, "the request has several headers Host; give one.", code="wrong_host")
        hosts, origins = self._options.hosts, self._options.cors_origins
        if "*" not in hosts and _name(host) not in hosts:
            message = f"this server is not called {_name(host)!r}; allow that name with --allowed-host."
            raise ApiError(403, message, code="wrong_host")
        origin = headers.get("origin")
        own = f"http://{host}", f"https://{host}"
        if origin is not None and origin not in own and not {"*", origin} & set(origins):
            message = f"pages of {origin!r} may not use this server; allow them with --cors-origin."
            raise ApiError(403, message, code="wrong_origin")
        if self._key is not None and scope["path"] not in OPEN_PATHS:
            kind, _, given = headers.get("authorization", "").partition(" ")
            # Clients of Anthropic have a header of their own.
            given = given.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
            # Digests have one length, and their comparison takes the same time wherever they differ.
            if not hmac.compare_digest(_digest(given.encode()), self._key):
                message = "the API key is missing or wrong; send it as Authorization: Bearer KEY."
                raise ApiError(401, message, code="invalid_api_key")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > max_bytes:
            raise _too_large(max_bytes)


class BoundedBody:
    """The receiver of a request, which stops reading a body that is too long or comes too slowly.

    arrived: whether all of the body has come.
    """

    def __init__(self, receive: Receive, seconds: float, max_bytes: int):
        self.max_bytes = max_bytes
        self._receive = receive
        self._until = time.monotonic() + seconds
        self._bytes = 0
        self._complete = False
        self.arrived = False

    async def __call__(self) -> Message:
        """Return the next message. Raises ApiError beyond a limit, ClientGone where the body ends before its end."""
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self._until - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            self._complete = True  # the rest is not waited for
            raise ApiError(408, "the body of the request did not arrive in time.", code="timeout") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        self._bytes += len(message.get("body", b""))
        self._complete = self.arrived = not message.get("more_body", False)
        if self._bytes > self.max_bytes:
            raise _too_large(self.max_bytes)
        return message

    async def read_rest(self) -> None:
        """Read what the client still sends of the body, and forget it."""
        left = UNREAD_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNREAD_SECONDS):
                while left > 0 and not self._complete:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self._complete = self.arrived = not message.get("more_body", False)


def _too_large(max_bytes: int) -> ApiError:
    message = f"the body of the request is larger than {max_bytes} bytes, which this server takes."
    return ApiError(413, message, code="body_too_large")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _name(host: str) -> str:
    """Return the name in the header Host, without its port: `[::1]:8000` is ::1."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
