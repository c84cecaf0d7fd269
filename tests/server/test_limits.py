"""Who may use the server, how much it takes, and what it does when clients misbehave or it has to stop."""

import asyncio
import contextlib
import json
import logging
import re
import socket
import threading
import time
import unittest.mock

import httpx2
import openai
import pytest
from running_server import running

from edgeformer.errors import RequestError
from edgeformer.server.http.run import listen
from edgeformer.server.service.answers import Wakes
from edgeformer.server.service.options import ServerOptions, read_api_key
from edgeformer.server.service.records import LOG

QUESTION = [{"role": "user", "content": "What is 345 + 278?"}]
TALE = {"prompt": "Once upon a time", "max_tokens": 900, "min_tokens": 900, "stream": True}


@pytest.fixture(scope="module")
def server(tiny_llama_bundle):
    options = {"api_key": "secret", "cors_origins": ("https://good.example",), "max_body_bytes": 20_000}
    with running([tiny_llama_bundle], {"max_rows": 2, "max_queue": 2}, body_seconds=0.5, **options) as server:
        yield server


def headers(**others):
    return {"authorization": "Bearer secret"} | {name.replace("_", "-"): value for name, value in others.items()}


def post(server, content, **others):
    return httpx2.post(f"{server.url}/v1/chat/completions", content=content, headers=headers(**others), timeout=60)


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def statistics(server):
    return server.models.find(None).engine.statistics()


def test_a_key_is_asked_for_where_it_matters(server):
    for key in ("", "Bearer", "Bearer wrong", "Bearer secre", "Basic secret", "Bearer secret2", "Bearer sécret"):
        answer = httpx2.get(f"{server.url}/v1/models", headers={"authorization": key.encode()})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), key
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert httpx2.get(f"{server.url}/metrics").status_code == 401
    for path in ("/", "/health", "/ready"):
        assert httpx2.get(f"{server.url}{path}").status_code == 200
    with server.openai("secret") as client:
        assert client.models.list().data[0].id == "tiny-llama"
    with server.openai("other") as client, pytest.raises(openai.AuthenticationError, match="missing or wrong"):
        client.models.list()


def test_a_key_comes_from_a_file_or_the_environment(tmp_path):
    (tmp_path / "key").write_text("abc\nrest\n")
    assert read_api_key(tmp_path / "key", {"EDGEFORMER_API_KEY": "other"}) == "abc"
    assert read_api_key(None, {"EDGEFORMER_API_KEY": "other"}) == "other"
    assert read_api_key(None, {}) is None
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(RequestError, match="is empty; its first line must be the key"):
        read_api_key(tmp_path / "empty", {})
    with pytest.raises(RequestError, match="cannot be read"):
        read_api_key(tmp_path / "none", {})
    with pytest.raises(RequestError, match="the API key is empty"):
        ServerOptions(api_key="")


def test_pages_of_other_origins_and_names_stay_out(server):
    get = f"{server.url}/v1/models"
    assert httpx2.get(get, headers=headers(origin="https://evil.example")).json()["error"]["code"] == "wrong_origin"
    assert httpx2.get(get, headers=headers(origin="null")).status_code == 403
    allowed = httpx2.get(get, headers=headers(origin="https://good.example"))
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, "https://good.example")
    assert httpx2.get(get, headers=headers(origin=server.url)).status_code == 200, "the server's own page"
    answer = httpx2.get(get, headers=headers(host="evil.example:8000"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host")
    host = server.url.removeprefix("http://")
    assert httpx2.get(get, headers=headers(origin=f"http://evil//{host}")).status_code == 403
    with socket.create_connection(host.split(":")) as connection:
        connection.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n".encode())
        assert b" 400 " in connection.recv(4096).split(b"\r\n")[0]
    asks = {"origin": "https://good.example", "access-control-request-method": "POST"}
    assert httpx2.options(get, headers=asks).status_code == 200, "a preflight has no key"
    assert "access-control-allow-origin" not in httpx2.options(get, headers=asks | {"origin": "https://x.org"}).headers


GARBAGE = [
    b"", b"{", b"\xff\xfe", b"[1]", b'"text"', b"null", b'{"messages": NaN}', b"[" * 19_000, b'{"messages": 5}',
    b'{"messages": [{"role": "king", "content": "x"}]}', b'{"messages": [{"content": "x"}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', b'{"n": 1}', b"1" * 5000,
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"\\ud800": 1}', b'{"model": "\\ud800"}',
    b'{"messages": [{"role": "user", "content": "x"}], "seed": 99999999999999999999999}',
    b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"x": 1}}',
    b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"99999999": 1}}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    b'{"messages": [{"role": "user", "content": "x"}], "stop": [1]}',
]  # fmt: skip


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_refused_with_a_reason(server, content):
    answer = post(server, content)
    assert answer.status_code in (400, 404), answer.text
    assert len(answer.json()["error"]["message"]) > 10


def test_unknown_paths_and_methods_are_errors_of_the_api(server):
    assert httpx2.get(f"{server.url}/v1/nothing", headers=headers()).json()["error"]["type"] == "not_found_error"
    answer = httpx2.get(f"{server.url}/v1/chat/completions", headers=headers())
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        405, "GET /v1/chat/completions: method not allowed.",
    )  # fmt: skip


def test_a_body_that_is_too_large_is_refused(server):
    said = post(server, b" " * 20_001)
    assert (said.status_code, said.json()["error"]["code"]) == (413, "body_too_large")
    assert post(server, (b" " * 7000 for _ in range(4))).status_code == 413
    assert post(server, b" " * 20_000).status_code == 400, "the limit itself is allowed"


@pytest.mark.parametrize(("key", "status"), [("secret", 413), ("wrong", 401)])
def test_a_client_that_is_still_sending_gets_the_answer(server, key, status):
    """Not a connection that is reset, because it was closed over bytes that nobody had read."""
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
            b"Connection: close\r\nContent-Length: 200000\r\n\r\n" % key.encode()
        )
        for _ in range(4):
            time.sleep(0.05)
            connection.sendall(b" " * 50_000)
        assert b" %d " % status in connection.recv(4096).split(b"\r\n")[0]


def test_a_body_that_does_not_come_is_not_waited_for(server):
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer secret\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


@contextlib.contextmanager
def streaming(server, body):
    """Open a stream, read its first event, and close the connection in the end."""
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers(), timeout=60) as answer:
        lines = answer.iter_lines()
        if answer.status_code == 200:
            next(lines)
        yield lines


def test_a_client_that_leaves_frees_its_row(server):
    before = statistics(server)
    with streaming(server, TALE):
        wait_until(lambda: statistics(server).running == 1)
    wait_until(lambda: statistics(server).running == 0)
    assert statistics(server).cancelled == before.cancelled + 1
    assert statistics(server).generated_tokens - before.generated_tokens < 800


def test_a_client_that_leaves_without_a_stream_frees_its_row(server):
    before = statistics(server)
    with pytest.raises(httpx2.TimeoutException):
        body = TALE | {"stream": False}
        httpx2.post(f"{server.url}/v1/completions", json=body, headers=headers(), timeout=0.1)
    wait_until(lambda: statistics(server).cancelled == before.cancelled + 1)
    assert statistics(server).running == 0


def test_a_full_queue_says_when_to_come_back(server):
    before = statistics(server)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(streaming(server, TALE))
        wait_until(lambda: statistics(server).running == 2)
        threads = [threading.Thread(target=post, args=(server, json.dumps({"messages": QUESTION}))) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: statistics(server).waiting == 2)
        answer = post(server, json.dumps({"messages": QUESTION}))
        several = post(server, json.dumps({"messages": QUESTION, "n": 2}))
    for thread in threads:
        thread.join()
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "engine_busy")
    assert int(answer.headers["retry-after"]) >= 1
    assert several.status_code == 429
    wait_until(lambda: statistics(server).running == statistics(server).waiting == 0)
    # A stream ends before it is counted.
    wait_until(lambda: statistics(server).finished >= before.finished + 2)  # those that waited were answered


def test_a_reader_that_stops_reading_is_cancelled(tiny_llama_bundle):
    with running([tiny_llama_bundle], send_buffer=4096, stall_seconds=0.3) as server:
        body = json.dumps(TALE | {"n": 8}).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                + f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            wait_until(lambda: statistics(server).cancelled > 0, 60)
            wait_until(lambda: statistics(server).running == 0)
    metrics = server.models.find(None).engine.statistics()
    assert metrics.finished + metrics.cancelled == 8


def test_a_server_that_stops_finishes_or_cancels_streams(tiny_llama_bundle):
    with running([tiny_llama_bundle], drain_seconds=0.5) as server:
        url, events = server.url, []
        with streaming(server, TALE | {"n": 8}) as lines:
            server.server.should_exit = True
            wait_until(lambda: server.server._state.draining)
            events = [line for line in lines if line]
            with pytest.raises(httpx2.ConnectError):
                httpx2.get(f"{url}/health")
    assert events[-1] == "data: [DONE]"
    assert re.search("the server is stopping and cancelled this request", events[-2]), events[-2]


def test_a_short_stream_outlives_the_order_to_stop(tiny_llama_bundle):
    body = TALE | {"max_tokens": 300, "min_tokens": 300}
    with running([tiny_llama_bundle], drain_seconds=30) as server, streaming(server, body) as lines:
        server.server.should_exit = True
        events = [line for line in lines if line]
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


class Kept(logging.Handler):
    """Keeps the fields of the lines about requests."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        if record.getMessage() == "request":
            self.lines.append(record.fields)


def test_the_log_has_a_line_per_request_and_no_prompt(tiny_llama_bundle, monkeypatch):
    def line_of(**options):
        kept = Kept()
        monkeypatch.setattr(LOG, "handlers", [kept])
        with running([tiny_llama_bundle], **options) as server:
            server.post("/v1/chat/completions", {"messages": QUESTION})
        assert len(kept.lines) == 1
        return kept.lines[0]

    LOG.setLevel(logging.INFO)
    fields = line_of()
    assert (fields["status"], fields["model"], fields["completion_tokens"]) == (200, "tiny-llama", 14)
    assert fields["finish_reasons"] == ["eos"] and fields["first_token_seconds"] <= fields["seconds"]
    assert "What is" not in json.dumps(fields)
    fields = line_of(log_prompts=True)
    assert (fields["prompt"], fields["answer"]) == (QUESTION, ["345 + 278 = 623"])


def test_options_out_of_range_are_named():
    with pytest.raises(RequestError, match="max_body_bytes is 0; it must be at least 1"):
        ServerOptions(max_body_bytes=0)
    with pytest.raises(RequestError, match="host is empty, which would be every address"):
        ServerOptions(host="")
    assert ServerOptions(host="127.0.0.2").hosts[-1] == "127.0.0.2" and ServerOptions(host="0.0.0.0").hosts == ("*",)
    with pytest.raises(RequestError, match="drain_seconds is -1; it must be 0 or more"):
        ServerOptions(drain_seconds=-1)
    with pytest.raises(RequestError, match="use printable ASCII"):
        ServerOptions(api_key="schlüssel")


def test_a_client_that_leaves_in_its_body_is_no_server_error(tiny_llama_bundle, monkeypatch):
    kept = Kept()
    monkeypatch.setattr(LOG, "handlers", [kept])
    LOG.setLevel(logging.INFO)
    with running([tiny_llama_bundle]) as server:
        with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        wait_until(lambda: kept.lines)
    assert (kept.lines[0]["status"], kept.lines[0]["outcome"]) == (499, "disconnected")


def test_tokens_of_one_step_wake_the_loop_once():
    async def woken():
        loop, wakes, calls = asyncio.get_running_loop(), Wakes(), []
        events = [asyncio.Event() for _ in range(64)]
        call = loop.call_soon_threadsafe
        with unittest.mock.patch.object(
            loop, "call_soon_threadsafe", lambda *given: calls.append(given) or call(*given)
        ):
            for _ in range(2):
                thread = threading.Thread(target=lambda: [wakes.wake(loop, event) for event in events])
                thread.start()
                thread.join()  # the loop stands still meanwhile, as under a step
                await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events)), 10)
                for event in events:
                    event.clear()
        return len(calls)

    assert asyncio.run(woken()) == 2


def test_a_host_that_is_no_name_is_one_sentence():
    with pytest.raises(RequestError, match="cannot be listened at: "):
        listen(ServerOptions(host="\udcff\udcfe", port=0))
