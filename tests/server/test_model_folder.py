"""Models of a folder: loaded once when they are asked for, and put to sleep when nobody uses them."""

import json
import shutil
import threading
import time

import httpx2
import pytest
from running_server import Running, running

from edgeformer.errors import RequestError
from edgeformer.server.http.run import open_models
from edgeformer.server.service import model_folder
from edgeformer.server.service.options import ServerOptions

NAMES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def folder(tiny_llama_bundle, tmp_path_factory):
    """A folder of three bundles of one size, and of what is no bundle."""
    folder = tmp_path_factory.mktemp("models")
    for name in NAMES:
        shutil.copytree(tiny_llama_bundle, folder / name)
    (folder / "notes").mkdir()
    return folder


@pytest.fixture
def loads(monkeypatch):
    """Keep the names of models as they are loaded."""
    from edgeformer.server.http import run

    names: list[str] = []
    original = run.load_model

    def load_model(folder, *arguments, **keywords):
        names.append(folder.name)
        time.sleep(0.2)  # so that other requests come meanwhile
        return original(folder, *arguments, **keywords)

    monkeypatch.setattr(run, "load_model", load_model)
    return names


def ask(server: Running, model: str | None, **options) -> httpx2.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "What is 345 + 278?"}]} | options
    return server.post("/v1/chat/completions", body)


def loaded(server: Running) -> list[str]:
    return [each["id"] for each in server.get("/v1/models").json()["data"] if each["loaded"]]


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def size(folder) -> int:
    return model_folder._bytes_of(folder / "ant")


def test_a_model_is_loaded_once_when_it_is_asked_for(folder, loads):
    with running([], models_dir=folder) as server:
        listed = server.get("/v1/models").json()["data"]
        assert [(each["id"], each["loaded"], each["task"]) for each in listed] == [
            (n, False, "causal-lm") for n in NAMES
        ]
        assert [each["id"] for each in server.get("/v1/models").json()["data"]] == list(NAMES) and loads == []
        answers: list[str] = []

        def answer():
            answers.append(ask(server, "bee").json()["choices"][0]["message"]["content"])

        asks = [threading.Thread(target=answer) for _ in range(6)]
        for thread in asks:
            thread.start()
        while not loads:
            time.sleep(0.01)
        assert server.get("/health").status_code == 200, "the loop goes on while a model is loaded"
        for thread in asks:
            thread.join()
        assert answers == ["345 + 278 = 623"] * 6 and loads == ["bee"]
        assert loaded(server) == ["bee"] and server.get("/v1/models/cat").json()["loaded"] is False
        assert 'edgeformer_cache_bytes{model="bee"}' in server.get("/metrics").text
        error = ask(server, "../ant").json()["error"]
        assert error["code"] == "model_not_found" and "there is bee, ant, cat" in error["message"]
        assert ask(server, None).status_code == 200


def test_those_used_longest_ago_make_room(folder, loads):
    with running([], models_dir=folder, models_memory=int(2.5 * size(folder))) as server:
        for name in ("ant", "bee", "ant", "cat"):
            assert ask(server, name).status_code == 200
        assert loads == ["ant", "bee", "cat"]
        assert sorted(loaded(server)) == ["ant", "cat"]
    with running([], models_dir=folder, models_memory=10) as server:
        error = ask(server, "ant").json()["error"]
        assert error["code"] == "model_too_large"


def test_a_stream_in_flight_keeps_its_model_awake(folder, loads):
    body = {"model": "ant", "prompt": "Once upon a time", "max_tokens": 900, "min_tokens": 900, "stream": True}
    with running([], models_dir=folder, models_memory=int(1.5 * size(folder)), idle_seconds=0.05) as server:
        with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            busy = ask(server, "bee")
            assert (busy.status_code, busy.json()["error"]["code"]) == (503, "models_busy")
            assert int(busy.headers["retry-after"]) >= 1
            events = [line for line in lines if line]
        assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert ask(server, "bee").status_code == 200
        wait_until(lambda: loaded(server) == [])
        assert ask(server, "bee").status_code == 200, "a model that sleeps wakes again"
        assert loads == ["ant", "bee", "bee"]


def test_a_bundle_that_cannot_be_loaded_is_tried_again(folder, tmp_path, loads):
    shutil.copytree(folder / "ant", tmp_path / "models" / "ant")
    manifest = (tmp_path / "models" / "ant" / "edgeformer.json").read_text()
    (tmp_path / "models" / "ant" / "edgeformer.json").write_text("{}")
    with running([], models_dir=tmp_path / "models") as server:
        assert ask(server, "ant").status_code == 500
        assert server.get("/v1/models").json()["data"][0]["loaded"] is False
        (tmp_path / "models" / "ant" / "edgeformer.json").write_text(manifest)
        assert ask(server, "ant").status_code == 200
        shutil.copytree(folder / "bee", tmp_path / "models" / "bee")
        assert ask(server, "bee").status_code == 200, "a bundle that came later is found"


def test_bundles_may_stay_loaded_beside_the_folder(folder, tiny_llama_bundle, loads):
    with running([tiny_llama_bundle], models_dir=folder, idle_seconds=0.05) as server:
        assert ask(server, None).json()["model"] == "tiny-llama"
        assert ask(server, "cat").json()["model"] == "cat"
        wait_until(lambda: loaded(server) == ["tiny-llama"])


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RequestError, match="the folder of models, .*/none, is not there"):
        open_models([], ServerOptions(), models_dir=tmp_path / "none")
    with pytest.raises(RequestError, match="there is no bundle to serve"):
        open_models([], ServerOptions())
