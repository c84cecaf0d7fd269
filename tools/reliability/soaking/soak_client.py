"""A client of HTTP that may misbehave: it reads as slowly as it likes, and goes away when it likes."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

SMALL_BUFFER = 2048
"""Bytes that the system keeps for a slow reader, so that it holds the server up."""


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return its body as JSON."""
        return json.loads(self.body)


@dataclass
class Exchange:
    """A request that was sent, with an answer to read."""

    reader: asyncio.StreamReader
    status: int

    async def rest(self) -> bytes:
        """Return the body of the answer."""
        return await self.reader.read()

    async def events(self) -> AsyncIterator[Any]:
        """Yield the events of a stream as JSON, up to `[DONE]`. Raises EOFError for a stream that ends before.

        The server sends each event in a chunk of its own, so its line is never cut in two.
        """
        while line := await self.reader.readline():
            if not line.startswith(b"data: "):
                continue
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)
        raise EOFError("the stream ended without [DONE]")


@contextlib.asynccontextmanager
async def sent(port: int, path: str, content: bytes, *, slowly: bool = False) -> AsyncIterator[Exchange]:
    """Send a request; yield its exchange once the head of the answer is there. Leaving closes the connection."""
    async with connected(port, slowly=slowly) as (reader, writer):
        writer.write(head_of(path, len(content)) + content)
        await writer.drain()
        yield Exchange(reader, await status_of(reader))


async def post(port: int, path: str, content: bytes) -> Answer:
    """Send a request and return the whole answer."""
    async with sent(port, path, content) as exchange:
        return Answer(exchange.status, await exchange.rest())


async def get(port: int, path: str) -> Answer:
    """Return the answer to a GET."""
    async with connected(port) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        status = await status_of(reader)
        return Answer(status, await reader.read())


@contextlib.asynccontextmanager
async def connected(
    port: int, *, slowly: bool = False
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection to the server of this machine, and cut it in the end."""
    connection = socket.socket()
    connection.setblocking(False)
    if slowly:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    try:
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    except BaseException:
        connection.close()
        raise
    limit = SMALL_BUFFER if slowly else 1 << 20
    reader, writer = await asyncio.open_connection(sock=connection, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head_of(path: str, length: int) -> bytes:
    """Return the head of a POST, after whose answer the server closes the connection."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ).encode()


async def status_of(reader: asyncio.StreamReader) -> int:
    """Read the head of an answer and return its status. Raises EOFError where there is none."""
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1])
