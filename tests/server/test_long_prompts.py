"""Prompts of megabytes: refused by their beginning, while others are answered, and without memory that stays."""

import threading
from pathlib import Path

import pytest
from running_server import running

LONG = "hello world dog " * 240_000


@pytest.fixture(scope="module")
def server(tiny_llama_bundle):
    with running([tiny_llama_bundle]) as server:
        yield server


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


BODIES = {
    "/v1/completions": ({"prompt": LONG}, "prompt"),
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": LONG}]}, "messages"),
    "/v1/responses": ({"input": LONG}, "input"),
    "/tokenize": ({"prompt": LONG}, "prompt"),
}


@pytest.mark.parametrize("path", BODIES)
def test_a_prompt_of_megabytes_is_refused_by_its_length(server, path):
    body, param = BODIES[path]
    answer = server.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert "which are more than 1024 tokens" in error["message"] and len(answer.text) < 300


def test_refused_prompts_keep_no_memory(server):
    server.post("/v1/completions", {"prompt": LONG})
    before = resident_bytes()
    threads = [threading.Thread(target=server.post, args=("/v1/completions", {"prompt": LONG})) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert resident_bytes() - before < 200e6  # it was 2.2 GB


def test_others_are_answered_while_a_long_text_is_encoded(server, monkeypatch):
    """The whole text, as a model with a large context would encode it."""
    tokenizer = server.models.find(None).tokenizer
    encode, order = tokenizer.encode, []

    def encode_all(text, **options):
        order.append("begin")
        encode(text)
        order.append("end")
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", encode_all)
    thread = threading.Thread(target=server.post, args=("/v1/completions", {"prompt": LONG}))
    thread.start()
    while not order:
        server.get("/health")
    assert server.get("/health").status_code == 200
    order.append("health")
    thread.join()
    assert order == ["begin", "health", "end"]
