"""The server benchmark asks a server, an engine and a batch for the same tokens, of prompts that a peer reads alike."""

import json

from benchmarks.serving import bench_server
from checkpoints.byte_tokenizer import byte_tokenizer
from click.testing import CliRunner


def test_the_report_has_speeds_ratios_and_first_tokens(tiny_llama_bundle, tmp_path):
    options = ["--clients", "1", "--clients", "3", "--prompt-letters", "8", "--new-tokens", "6", "--rounds", "1"]
    command = [str(tiny_llama_bundle), *options, "--threads", "1", "--json", str(tmp_path / "found.json")]
    result = CliRunner().invoke(bench_server.main, command)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found.json").read_text())
    for clients in ("1", "3"):
        of_clients = found["clients"][clients]
        assert list(of_clients["tokens_per_second"]) == ["server", "engine", "batch"]
        assert list(of_clients["ratios"]) == ["engine", "batch"]
        first = of_clients["first_token_seconds"]["server"]
        assert 0 < first["p50"] <= first["p95"]
    assert "first token p50" in result.stdout


def test_a_run_that_takes_too_long_is_named(tiny_llama_bundle):
    options = ["--clients", "2", "--new-tokens", "64", "--rounds", "1", "--threads", "1", "--timeout", "0.001"]
    result = CliRunner().invoke(bench_server.main, [str(tiny_llama_bundle), *options])
    assert result.exit_code == 1
    assert "server has not answered 2 clients within 0.001 s. Take fewer --clients or --new-tokens" in result.output


def test_a_peer_needs_its_model(tiny_llama_bundle, tmp_path):
    command = [str(tiny_llama_bundle), "--llama-server", str(tmp_path)]
    result = CliRunner().invoke(bench_server.main, command)
    assert result.exit_code == 2 and "--gguf and --llama-server go together" in result.output


def test_a_peer_that_does_not_start_is_named(tiny_llama_bundle, tmp_path):
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    command = [str(tiny_llama_bundle), "--llama-server", str(program), "--gguf", str(program), "--threads", "1"]
    result = CliRunner().invoke(bench_server.main, command)
    assert result.exit_code == 1 and f"To see why, run: {program} --model" in result.output


def test_a_letter_is_a_token_of_the_byte_tokenizer():
    tokenizer = byte_tokenizer(300)
    ids = tokenizer.encode("Hello, w\u00f6rld").ids
    assert len(ids) == 13 and max(ids) < 256
    assert tokenizer.decode(ids) == "Hello, w\u00f6rld"
    assert tokenizer.get_vocab_size() == 300
