"""`--model` finds presets, folders, and models of a hub (a local server with its protocol)."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgeformer.checkpoints.found_model import find_model, preset_names
from edgeformer.checkpoints.source import open_source
from edgeformer.config import Seq2SeqConfig
from edgeformer.errors import ConfigError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_preset_comes_before_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-llama").mkdir()
    assert open_source("tiny-llama").origin == "preset tiny-llama"
    with pytest.raises(ConfigError, match=r"tiny-llama has no config\.json; a model folder has one beside"):
        open_source("./tiny-llama")


def test_a_folder_is_found_by_path(llama_folder):
    source = open_source(llama_folder)
    assert (source.name, source.origin, source.random_weights) == (
        llama_folder.name,
        f"folder {llama_folder.name}",
        None,
    )


@pytest.mark.parametrize("model", ["nothing-here", "./nothing/here", "/nothing/here", "a/b/c"])
def test_a_missing_model_is_said_with_what_was_looked_for(model):
    with pytest.raises(
        ConfigError, match=rf"there is no model {model!r}: no preset of that name \(presets: .*tiny-llama"
    ):
        open_source(model)


def test_a_file_is_no_model(tmp_path):
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(
        ConfigError, match="is a file; --model takes a preset, a model folder, a GGUF file, or a hub id"
    ):
        open_source(tmp_path / "model.safetensors")


@pytest.mark.parametrize(("content", "message"), [("{", "is not valid JSON"), ("[]", "must hold a JSON object")])
def test_a_broken_config_is_named(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"config\.json cannot be read: it {message}"):
        open_source(tmp_path)


def test_every_preset_opens():
    assert "tiny-llama" in preset_names()
    for name in preset_names():
        source = open_source(name)
        config = source.config.encoder if isinstance(source.config, Seq2SeqConfig) else source.config
        table = next(value for parameter, value in source.weights().items() if parameter.endswith("embedding.weight"))
        assert table.shape == (config.vocab_size, config.hidden_size)


def test_generation_config_overrides_the_ids_of_the_config(tmp_path, llama_folder):
    data = json.loads((llama_folder / "config.json").read_text()) | {"eos_token_id": 2, "pad_token_id": 9}
    (tmp_path / "config.json").write_text(json.dumps(data))
    tokens = open_source(tmp_path).special_tokens()
    assert (tokens.eos, tokens.bos, tokens.pad) == ((2,), 1, 9)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5], "bos_token_id": None}))
    tokens = open_source(tmp_path).special_tokens()
    assert (tokens.eos, tokens.bos, tokens.pad) == ((4, 5), 1, 9)


def generation(folder, config, generation_config=None):
    """Return what a folder with these files generates with by default."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bart"} | config))
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return find_model(folder).generation_defaults()


OLD = {"num_beams": 4, "forced_eos_token_id": 2, "decoder_start_token_id": 2, "min_length": 56, "torchscript": False}


def test_generation_config_replaces_what_config_says(tmp_path):
    assert generation(tmp_path / "old", OLD) == {name: OLD[name] for name in OLD if name != "torchscript"}
    new = {"num_beams": 2, "forced_eos_token_id": None, "do_sample": False}
    expected = {"num_beams": 2, "do_sample": False, "decoder_start_token_id": 2}
    assert generation(tmp_path / "new", OLD, new) == expected
    assert generation(tmp_path / "empty", OLD, {}) == {"decoder_start_token_id": 2}
    first = {"force_bos_token_to_be_generated": True, "bos_token_id": 0}
    assert generation(tmp_path / "first", first) == {"forced_bos_token_id": 0}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"penalty_alpha": 0.6}, "penalty_alpha = 0.6"),
        ({"diversity_penalty": 0.5, "num_beam_groups": 2}, "diversity_penalty = 0.5, num_beam_groups = 2"),
        ({"do_sample": True, "num_beams": 4}, "num_beams = 4"),
        ({"stop_strings": ["x"]}, "stop_strings = "),
        ({"guidance_scale": 1.5}, "guidance_scale = 1.5"),
    ],
)
def test_a_generation_that_the_runtime_lacks_is_refused(tmp_path, config, named):
    for files in ((config,), ({}, config)):
        with pytest.raises(ConfigError, match=re.escape(f"generates with {named}")):
            generation(tmp_path / str(len(files)), *files)


def test_generation_fields_that_change_nothing_are_accepted(tmp_path):
    neutral = {
        "penalty_alpha": 0.0, "diversity_penalty": 0.0, "num_beam_groups": 1, "stop_strings": [],
        "guidance_scale": 1, "use_cache": True, "constraints": None, "cache_implementation": "static",
        "num_return_sequences": 1, "output_scores": True, "max_time": None,
    }  # fmt: skip
    assert generation(tmp_path / "config", neutral) == generation(tmp_path / "generation", {}, neutral) == {}


class Hub(BaseHTTPRequestHandler):
    """A hub with one repository, some/model, with the files in `folder`; all other requests are 404."""

    folder: Path
    asked: list[str]

    def do_GET(self):
        self._answer(with_body=True)

    def do_HEAD(self):
        self._answer(with_body=False)

    def _answer(self, *, with_body):
        path = self.path.split("?")[0]
        self.asked.append(path)
        names = [file.name for file in self.folder.iterdir()]
        if path.startswith("/api/models/some/model/tree/"):
            listing = [
                {"type": "file", "oid": COMMIT, "size": (self.folder / name).stat().st_size, "path": name}
                for name in names
            ]
            return self._send(json.dumps(listing).encode(), with_body)
        if path.startswith("/api/models/some/model"):
            siblings = [{"rfilename": name} for name in names]
            info = {
                "id": "some/model",
                "sha": COMMIT,
                "siblings": siblings,
                "tags": [],
                "downloads": 0,
                "private": False,
            }
            return self._send(json.dumps(info).encode(), with_body)
        if path.startswith("/some/model/resolve/") and (file := self.folder / path.rsplit("/", 1)[1]).is_file():
            content = file.read_bytes()
            tag = hashlib.sha256(content).hexdigest()
            return self._send(content, with_body, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _send(self, content, with_body, headers=None):
        self.send_response(200)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def hub(make_llama):
    folder = make_llama(shard_size="80KB")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle that nobody needs")
    handler = type("ThisHub", (Hub,), {"folder": folder, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()
    thread.join()


def edgeformer(*arguments, endpoint, home, offline=False):
    environment = {
        **os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    }  # fmt: skip
    line = [sys.executable, "-m", "edgeformer", *arguments]
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=False)


def test_a_hub_id_is_downloaded_once_and_without_pickles(hub, tmp_path):
    endpoint, handler = hub
    bundle = tmp_path / "bundle"
    about = edgeformer("info", "some/model", endpoint=endpoint, home=tmp_path / "home")
    assert "hub some/model: 3 layers of 64" in about.stdout
    assert not any(path.endswith(".safetensors") for path in handler.asked), "its config is enough to know a model"
    done = edgeformer(
        "export", "--model", "some/model", "-o", str(bundle), "--no-verify", endpoint=endpoint, home=tmp_path / "home"
    )
    assert done.returncode == 0, done.stderr
    assert "exported hub some/model" in done.stdout
    assert not any(path.endswith(".bin") for path in handler.asked)
    assert sum(path.endswith(".safetensors") for path in handler.asked) >= 3
    # Again without a network: from the cache.
    offline = edgeformer("info", "some/model", "--json", endpoint=endpoint, home=tmp_path / "home", offline=True)
    assert json.loads(offline.stdout)["source"] == "hub some/model"


@pytest.mark.parametrize(
    ("model", "offline", "message"),
    [
        ("some/other", False, "error: the hub has no model 'some/other', or it is private"),
        ("some/model", True, "error: some/model is not in the local cache, and the hub cannot be reached"),
    ],
)
def test_a_model_that_the_hub_cannot_give_is_said(hub, tmp_path, model, offline, message):
    done = edgeformer("info", model, endpoint=hub[0], home=tmp_path / "home", offline=offline)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith(message)
