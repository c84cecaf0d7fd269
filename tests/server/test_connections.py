"""Connections without an end, without a key and without sense: each is closed in time, and others are answered."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

import httpx2
import pytest
from running_server import running

from edgeformer.server.http import connections
from edgeformer.server.http.connections import bounded_connection
from edgeformer.server.service.options import ServerOptions

LIMITS = {"header_seconds": 0.4, "max_header_bytes": 4096, "max_connections_per_address": 6, "body_seconds": 0.5}
BODY = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"


@pytest.fixture(scope="module")
def server(tiny_llama_bundle):
    with running([tiny_llama_bundle], **LIMITS) as server:
        yield server


def connect(server):
    connection = socket.create_connection(server.url.removeprefix("http://").split(":"))
    connection.settimeout(20)
    return connection


def rest_of(connection):
    """Return what comes until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while block := connection.recv(4096):
            received += block
    return received


def drip(connection, piece, seconds):
    """Send a piece again and again; return after how many seconds the server has closed the connection."""
    begun = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - begun < seconds:
            connection.sendall(piece)
            time.sleep(0.05)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if connection.recv(4096) == b"":
                    break
            connection.setblocking(True)
    return time.monotonic() - begun


def test_a_connection_that_says_nothing_is_closed(server):
    with connect(server) as connection:
        assert rest_of(connection) == b""


def test_slow_or_endless_headers_are_not_waited_for(server):
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert drip(connection, b"x-a: b\r\n", 5) < 3
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"x-a: b\r\n" * 1000)
        answer = rest_of(connection)
        assert answer.startswith(b"HTTP/1.1 431 ") and b"headers_too_large" in answer


def test_a_second_request_has_as_much_time_for_headers(server):
    with connect(server) as connection:
        for _ in range(2):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        assert drip(connection, b"x-a: b\r\n", 5) < 3


def test_a_trickling_body_does_not_keep_its_connection(server):
    with connect(server) as connection:
        connection.sendall(BODY)
        assert drip(connection, b" ", 8) < 3
    with connect(server) as connection:
        connection.sendall(BODY)
        answer = rest_of(connection)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"connection: close" in answer


def test_too_many_connections_are_refused_and_others_go_on(server):
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(connect(server)).sendall(BODY)
        with connect(server) as connection:
            answer = rest_of(connection)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"too_many_connections" in answer
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx2.HTTPError):
            if server.get("/health").status_code == 200:
                break
    assert server.get("/health").json() == {"status": "ok"}


def test_all_connections_fit_the_files_that_a_process_may_open(monkeypatch):
    monkeypatch.setattr(connections, "_open_files", lambda: 256)
    assert bounded_connection(ServerOptions()).most == 192
    assert bounded_connection(ServerOptions(max_connections=10)).most == 10
    monkeypatch.setattr(connections, "_open_files", lambda: None)
    assert bounded_connection(ServerOptions()).most == ServerOptions().max_connections


def test_a_process_ends_in_time_with_half_a_body(tiny_llama_bundle):
    command = [sys.executable, "-m", "edgeformer", "serve", str(tiny_llama_bundle), "--port", "0", "--threads", "1"]
    tale = {"prompt": "Once upon a time", "max_tokens": 900, "min_tokens": 900, "stream": True, "n": 8}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        url = json.loads(process.stderr.readline())["url"]
        with socket.create_connection(url.removeprefix("http://").split(":")) as half:
            half.sendall(BODY)
            with httpx2.stream("POST", f"{url}/v1/completions", json=tale, timeout=60) as answer:
                lines = answer.iter_lines()
                next(lines)
                process.send_signal(signal.SIGINT)
                time.sleep(0.5)
                process.send_signal(signal.SIGINT)
                begun = time.monotonic()
                events = [line for line in lines if line]
            rest = [json.loads(line) for line in process.stderr]
            assert time.monotonic() - begun < 10
    assert process.returncode == 0 and "the server is stopping" in events[-2]
    assert [line["message"] for line in rest if line["message"] != "request"] == ["draining", "stopped"]


def test_a_preflight_for_a_private_network_is_answered(tiny_llama_bundle):
    asks = {
        "origin": "https://good.example", "access-control-request-method": "POST",
        "access-control-request-private-network": "true",
    }  # fmt: skip
    with running([tiny_llama_bundle], cors_origins=("https://good.example",), api_key="secret") as server:
        answer = httpx2.options(f"{server.url}/v1/models", headers=asks)
        assert (answer.status_code, answer.headers["access-control-allow-private-network"]) == (200, "true")
        other = httpx2.options(f"{server.url}/v1/models", headers=asks | {"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        assert server.get("/ready").json() == {"status": "ready"}, "strangers are told no names"
