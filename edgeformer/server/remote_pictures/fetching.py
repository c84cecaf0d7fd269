"""Fetch the file of a picture from a listed host, within the bytes and the time that the server gives it.

The connection is made to an address that was looked at, so that a name cannot lead elsewhere a moment later, and a
redirect is followed to the same host alone. No proxy of the environment is used, and nothing of the request is sent on.
"""

import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import SplitResult, urljoin, urlsplit

from edgeformer.server.remote_pictures.hosts import PORTS, PictureHost, address_of, may_reach

MOST_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
MOST_CHARACTERS = 4096
"""Characters of a URL at most."""
PIECE = 1 << 16
HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "edgeformer", "Connection": "close"}


class FetchError(Exception):
    """A picture was not fetched; the message is the reason, without the place in the request."""


class PictureFetcher:
    """Fetches the pictures of one request.

    hosts: that it may come from. most_bytes: of a picture. seconds: in which all of them have to be there.
    """

    def __init__(self, hosts: Sequence[PictureHost], most_bytes: int, seconds: float):
        self._hosts, self._most_bytes, self._seconds = hosts, most_bytes, seconds
        self._end: float | None = None

    def fetch(self, url: str) -> bytes:
        """Return the bytes of a file. Raises FetchError for a URL of another host, and for what does not arrive."""
        self._end = self._end or time.monotonic() + self._seconds
        place = self._checked(url)
        for _ in range(MOST_REDIRECTS + 1):
            try:
                with self._answer(place) as answer:
                    if answer.status not in REDIRECTS:
                        return self._body(answer, place)
                    target = urlsplit(urljoin(place.geturl(), answer.headers.get("Location", "")))
                    elsewhere = _origin(target) != _origin(place)
            except (OSError, HTTPException, ValueError) as error:
                raise FetchError(self._reason(place, error)) from None
            if elsewhere:
                raise FetchError(f"{place.hostname!r} sends it on to another place, where this server does not follow.")
            place = self._checked(target.geturl())
        raise FetchError(f"{place.hostname!r} sends it on more than {MOST_REDIRECTS} times.")

    def _checked(self, url: str) -> SplitResult:
        """Return a URL of a listed host. Raises FetchError for any other."""
        try:
            place = urlsplit(url)
            plain = len(url) <= MOST_CHARACTERS and url.isascii() and url.isprintable() and not set(url) & set(" \\")
            if plain and place.username is None and any(host.has(place) for host in self._hosts):
                return place
        except ValueError:
            raise FetchError("it is no URL.") from None
        where = f"{place.scheme}://{(place.netloc.rpartition('@')[2])[:100]}"
        raise FetchError(f"this server fetches no pictures from {where!r}; send the picture itself, as a data: URL.")

    @contextmanager
    def _answer(self, place: SplitResult) -> Iterator[HTTPResponse]:
        """Yield the answer to a request, over a connection that is cut when the time is over."""
        kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
        assert place.hostname is not None
        connection = kind(place.hostname, place.port, timeout=self._left())
        stream = self._connected(place)
        # Each read has a time of its own, and a host that sends a byte now and then would never be late.
        twin = socket.socket(fileno=os.dup(stream.fileno()))
        timer = threading.Timer(self._left(), _cut, [twin])
        timer.daemon = True
        timer.start()
        try:
            if place.scheme == "https":
                stream = ssl.create_default_context().wrap_socket(stream, server_hostname=place.hostname)
            connection.sock = stream
            connection.request("GET", (place.path or "/") + (f"?{place.query}" if place.query else ""), headers=HEADERS)
            with connection.getresponse() as answer:  # it holds the connection, too
                yield answer
        finally:
            timer.cancel()
            connection.close()
            for each in (stream, twin):
                each.close()

    def _connected(self, place: SplitResult) -> socket.socket:
        """Return a connection to an address of a host. Raises FetchError where one of them is not to be reached."""
        name, port = str(place.hostname), place.port or PORTS[place.scheme]
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        addresses = [info[4] for info in found]
        for address in addresses:
            read = address_of(str(address[0]).partition("%")[0])
            if read is None or not may_reach(name, read):
                raise FetchError(
                    f"{name!r} is at an address that is not public, and this server reaches such an address only where "
                    "it is listed itself."
                )
        failed: OSError = OSError("no address")
        for family, *_, address in found:
            stream = socket.socket(family, socket.SOCK_STREAM)
            stream.settimeout(self._left())
            try:
                stream.connect(address)
            except OSError as error:
                stream.close()
                failed = error
            else:
                return stream
        raise failed

    def _body(self, answer: HTTPResponse, place: SplitResult) -> bytes:
        """Return what an answer has. Raises FetchError for an error, and for more bytes than a picture may have."""
        if answer.status != 200:
            raise FetchError(f"{place.hostname!r} answers with status {answer.status}.")
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise FetchError(f"{place.hostname!r} sends it compressed, which nobody asked for.")
        many = f"it has more than {self._most_bytes:,} bytes, which this server takes of a picture."
        if answer.length is not None and answer.length > self._most_bytes:
            raise FetchError(many)
        content = bytearray()
        while piece := answer.read(min(PIECE, self._most_bytes + 1 - len(content))):
            content += piece
            if len(content) > self._most_bytes:
                raise FetchError(many)
        self._left()  # a connection that was cut ends like a file
        if answer.length:
            raise ConnectionError("the connection ended before the file did")
        return bytes(content)

    def _left(self) -> float:
        """Return the seconds that are left. Raises TimeoutError when there are none."""
        assert self._end is not None
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _reason(self, place: SplitResult, error: Exception) -> str:
        """Return why a picture did not arrive; a connection that is cut when the time is over fails in many ways."""
        assert self._end is not None
        if isinstance(error, TimeoutError) or time.monotonic() >= self._end:
            return f"it did not arrive from {place.hostname!r} within {self._seconds:g} seconds."
        return f"it could not be fetched from {place.hostname!r}: {str(error)[:200] or type(error).__name__}."


def _origin(place: SplitResult) -> tuple[str, str | None, int | None]:
    return place.scheme, place.hostname, place.port or PORTS.get(place.scheme)


def _cut(stream: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        stream.shutdown(socket.SHUT_RDWR)
