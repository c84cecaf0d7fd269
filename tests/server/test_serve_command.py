"""edgeformer serve: a process of its own, from its first line to SIGTERM."""

import json
import signal
import socket
import subprocess
import sys

import httpx2
import pytest
from click.testing import CliRunner

import edgeformer.server
from edgeformer.cli.main import cli
from edgeformer.errors import MissingDependencyError


def test_a_process_serves_and_stops_at_sigterm_without_a_failure(tiny_llama_bundle):
    command = [sys.executable, "-m", "edgeformer", "serve", str(tiny_llama_bundle), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        first = json.loads(process.stderr.readline())
        assert first["message"] == f"serving tiny-llama at {first['url']}"
        body = {"messages": [{"role": "user", "content": "What is 345 + 278?"}]}
        answer = httpx2.post(f"{first['url']}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "345 + 278 = 623"
        process.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in process.stderr]
    assert process.returncode == 0
    assert [line["message"] for line in rest] == ["request", "draining", "stopped"]


def test_a_port_that_is_taken_is_named(tiny_llama_bundle):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(cli, ["serve", str(tiny_llama_bundle), "--port", str(port)])
    assert result.exit_code == 1
    assert f"port {port} of 127.0.0.1 cannot be listened at: " in result.stderr and "--port" in result.stderr


def test_two_bundles_of_one_name_are_refused(tiny_llama_bundle, tmp_path):
    (tmp_path / "tiny-llama").mkdir()
    result = CliRunner().invoke(cli, ["serve", str(tiny_llama_bundle), str(tmp_path / "tiny-llama"), "--port", "0"])
    assert result.exit_code == 1
    assert "two bundles are called tiny-llama" in result.stderr


@pytest.mark.parametrize("package", edgeformer.server.PACKAGES)
def test_a_package_that_is_missing_is_named_with_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingDependencyError, match=rf"{package} is not installed.*pip install 'edgeformer\[server\]'"
    ):
        _ = edgeformer.server.serve


def test_the_facade_has_no_other_name():
    with pytest.raises(AttributeError, match="has no attribute 'rows'"):
        _ = edgeformer.server.rows
