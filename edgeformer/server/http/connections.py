"""Connections within limits: how many there are, and how long and how large the headers of a request may be.

A connection that says nothing, or sends headers without end, would hold one of the files that the process may open, and
would cost nobody a key. The body of a request is bounded where it is read (`middleware`).
"""

import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.service.options import ServerOptions

FILES_KEPT = 64
"""Files that a process needs for other things than connections."""

LAST_BODY_SECONDS = 1.0
"""Time that the body of a request has to arrive, once the server is to stop."""


class BoundedConnection(HttpToolsProtocol):
    """A connection of uvicorn's, with limits."""

    options = ServerOptions()
    most = 0

    def connection_made(self, transport: Any) -> None:
        """Begin a connection, or refuse it where there are too many."""
        super().connection_made(transport)
        self._header_bytes = 0
        self._header_timer: Any = None
        self._reads_headers = False
        address = self.client[0] if self.client else None
        same = sum((getattr(each, "client", None) or (None,))[0] == address for each in self.connections)
        if len(self.connections) > self.most or same > self.options.max_connections_per_address:
            self._refuse(ApiError(503, "this server has too many connections. Try again.", code="too_many_connections"))
            return
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        if self.transport.is_closing():
            return
        self._header_bytes += len(data) if self._reads_headers else 0
        super().data_received(data)
        if self._reads_headers and self._header_bytes > self.options.max_header_bytes:
            message = f"the headers are larger than {self.options.max_header_bytes} bytes, which this server takes."
            self._refuse(ApiError(431, message, code="headers_too_large"))

    def on_message_begin(self) -> None:
        """Begin the headers of a request."""
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        """Begin to answer a request."""
        self._reads_headers, self._header_bytes = False, 0
        self._stop_timer()
        super().on_headers_complete()

    def shutdown(self) -> None:
        """Let a request be answered that has arrived; one that has not has a second for it."""
        super().shutdown()
        if self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete:
            self.loop.call_later(LAST_BODY_SECONDS, self._close_if_incomplete)

    def _close_if_incomplete(self) -> None:
        if self.cycle.more_body and not self.transport.is_closing():
            self.transport.close()

    def _await_headers(self) -> None:
        self._reads_headers = True
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.options.header_seconds, self._end_silence)

    def _end_silence(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, error: ApiError) -> None:
        """Write an error, and close the connection."""
        body = json.dumps(error.body).encode()
        head = f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


def bounded_connection(options: ServerOptions) -> type[BoundedConnection]:
    """Return the class of connections within the limits of a server; all of them fit the files that it may open."""
    most = options.max_connections
    files = _open_files()
    if files is not None:
        most = max(1, min(most, files - FILES_KEPT))
    return type("Connection", (BoundedConnection,), {"options": options, "most": most})


def _open_files() -> int | None:
    """Return how many files this process may have open; None where that is not known, as on Windows."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
