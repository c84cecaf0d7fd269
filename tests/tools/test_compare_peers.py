"""The comparison of runtimes: which are available, what workers answer, and how figures are summarised."""

import json
import os
import signal
import sys
from pathlib import Path
from unittest import mock

import pytest
from benchmarks import compare_peers
from benchmarks.peers import busy, process, report
from benchmarks.peers.generation import Generation, Stopwatch, timed
from benchmarks.peers.registry import FOLDER, OURS, PEERS, Peer
from click.testing import CliRunner

# A runtime that reports given times. Its tokens count up from the prompt's last one.
STAND_IN = """
import os, sys
from pathlib import Path
from benchmarks.peers.generation import Generation

def convert(checkpoint, folder, precision):
    assert (checkpoint / "config.json").is_file() and (checkpoint / "tokenizer.json").is_file()
    with open(Path(__file__).with_suffix(".converted"), "a") as file:
        file.write(precision + " ")
    (folder / "model").write_text("converted")
    {convert}

def load(checkpoint, folder, precision, threads):
    assert (folder / "model").read_text() == "converted" and threads == 1
    print("this is no answer")

    def run(prompt, new):
        tokens = list(range(prompt[-1], prompt[-1] + new))
        {run}
        return Generation(tokens, {first}, {rest})

    return run
"""

OPTIONS = ["--precision", "fp32", "--prompt", "8", "--new", "5", "--rounds", "2", "--threads", "1"]


@pytest.fixture
def stand_in(tmp_path):
    """Return a function that writes a runtime, with extra lines, and returns its entry in the registry."""

    def make(name, *, convert="pass", run="pass", first=0.5, rest=2.0, imports=("json",), **options):
        file = tmp_path / f"{name}.py"
        file.write_text(STAND_IN.format(convert=convert, run=run, first=first, rest=rest))
        options = {"precisions": {"fp32": "exact", "int4": "crude"}, **options}
        packages = ("onnxruntime", "no-such-package")
        return Peer(file, imports, packages, recipe=f"install {name}", weights="model", **options)

    return make


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint with as much as stand-ins read."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 64}')
    return folder


@pytest.fixture
def compare(checkpoint, tmp_path):
    """Return a function that runs the tool with a registry of its own."""

    def run(peers, *arguments, options=OPTIONS):
        with mock.patch.dict(PEERS, peers, clear=True):
            line = [checkpoint, "--work", tmp_path / "work", *options, *arguments]
            return CliRunner().invoke(compare_peers.main, [str(part) for part in line])

    return run


def converted(peer):
    return peer.file.with_suffix(".converted").read_text()


def test_the_report_holds_speeds_and_ratios_of_each_round(stand_in, compare, tmp_path):
    peers = {OURS: stand_in("ours"), "other": stand_in("other", first=1.0, rest=8.0)}
    file, picture = tmp_path / "report.json", tmp_path / "plot.png"
    result = compare(peers, "--prompt", 16, "--json", file, "--plot", picture)

    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    assert [entry["prompt_tokens"] for entry in data["results"]] == [8, 16]
    figures = data["results"][1]["figures"]
    assert 5 < figures["other"].pop("peak_mib", {"median": 6})["median"] < 500
    assert {name: figures["other"][name]["median"] for name in figures["other"]} == {
        "prefill": 16.0, "first_ms": 1000.0, "decode": 0.5,
    }  # fmt: skip
    assert data["results"][1]["edgeformer_over"] == {
        "other": {"prefill": {"median": 2, "low": 2, "high": 2}, "decode": {"median": 4, "low": 4, "high": 4}}
    }
    assert data["results"][1]["same_leading_tokens"] == {"other": 5}
    assert list(data["peers"]["other"]["versions"]) == ["onnxruntime"]
    assert "fp32: 16 + 5 tokens, batch 1, 1 threads, median (range) of 2 rounds" in result.stdout
    assert "All 5 tokens of every round equal edgeformer's for: other." in result.stdout
    assert max(map(len, table_of(result.stdout))) <= 100
    assert "…" not in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(sys.platform != "linux", reason="2026-11-29: only Linux says it")
def test_memory_is_that_of_each_turn(stand_in, compare, tmp_path):
    """The memory of a turn does not count a longer prompt of a turn before."""
    ours = stand_in("ours", run="room = b'1' * ((100 << 20) if len(prompt) == 16 else 0)")
    file, picture = tmp_path / "report.json", tmp_path / "plot.png"
    result = compare({OURS: ours}, "--prompt", 16, "--prompt", 4, "--json", file, "--plot", picture)

    assert result.exit_code == 0, result.output
    peaks = [each["figures"][OURS]["peak_mib"]["median"] for each in json.loads(file.read_text())["results"]]
    assert peaks[1] - 90 > max(peaks[0], peaks[2])  # prompts of 8, 16 and 4
    assert picture.read_bytes().startswith(b"\x89PNG")  # lines: there are more than two lengths


def table_of(text):
    return [line for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.module"])
def test_a_peer_that_is_not_there_is_named_with_what_installs_it(stand_in, compare, module):
    result = compare({OURS: stand_in("ours"), "absent": stand_in("absent", imports=("json", module))})

    assert result.exit_code == 0, result.output
    assert f"Left out: absent, because {module} is missing. To install: install absent" in result.stdout


def test_a_precision_that_a_peer_lacks_is_told(stand_in, compare):
    result = compare(
        {OURS: stand_in("ours"), "exact": stand_in("exact", precisions={"fp32": ""})}, "--precision", "int4"
    )

    assert result.exit_code == 0, result.output
    assert "Left out: exact at int4, which it does not support." in result.stdout
    assert len(table_of(result.stdout)) == 4 + 3


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("absent={python}", "lacks no_such_module for absent. To install: install absent"),
        ("nobody={python}", "there is no peer 'nobody'. The peers are: edgeformer, absent."),
        ("absent=nowhere", "takes an interpreter, and 'nowhere' is not a file"),
    ],
)
def test_an_interpreter_that_does_not_fit_is_an_error(stand_in, compare, value, error):
    peers = {OURS: stand_in("ours"), "absent": stand_in("absent", imports=("no_such_module",))}
    result = compare(peers, "--peer", value.format(python=sys.executable))

    assert result.exit_code != 0
    assert error in result.stderr


def test_a_worker_that_ends_is_an_error_with_what_it_said(stand_in, compare):
    dying = stand_in("dying", run="print('out of luck', file=sys.stderr, flush=True); os._exit(3)")
    result = compare({OURS: stand_in("ours"), "dying": dying})

    assert result.exit_code == 1
    assert "the worker of dying ended with exit code 3. Its last output:" in result.stderr
    assert "out of luck" in result.stderr


def test_a_conversion_that_fails_is_an_error_and_leaves_nothing(stand_in, compare, tmp_path):
    failing = stand_in("failing", convert="raise ValueError('no such shape')")
    result = compare({OURS: stand_in("ours"), "failing": failing})

    assert result.exit_code == 1
    assert "failing did not convert the model to fp32:" in result.stderr
    assert "ValueError: no such shape" in result.stderr
    assert [folder.name for folder in (tmp_path / "work" / "fp32").iterdir()] == ["edgeformer"]


def test_a_model_is_converted_again_only_when_something_changed(stand_in, compare, checkpoint):
    peers = {OURS: stand_in("ours", keep=False), "other": stand_in("other")}
    for _ in range(2):
        assert compare(peers).exit_code == 0
    assert (converted(peers[OURS]), converted(peers["other"])) == ("fp32 fp32 ", "fp32 ")

    (checkpoint / "config.json").write_text('{"vocab_size": 128}')
    assert compare(peers, "--only", OURS).exit_code == 0
    assert compare(peers).exit_code == 0
    assert converted(peers["other"]) == "fp32 fp32 "


def test_busy_processes_end_with_the_measured_runtime(stand_in, compare, tmp_path, monkeypatch):
    started, popen = [], busy.subprocess.Popen

    def recorded(command, **options):
        started.append((command, popen(command, **options)))
        return started[-1][1]

    monkeypatch.setattr(busy.subprocess, "Popen", recorded)
    file = tmp_path / "report.json"
    result = compare({OURS: stand_in("ours")}, "--busy", 2, "--json", file)

    assert result.exit_code == 0, result.output
    spinning = [process for command, process in started if command[-1] == busy.SPIN]
    assert [process.returncode for process in spinning] == [-signal.SIGKILL] * 2
    assert json.loads(file.read_text())["busy_processes"] == 2
    assert "median (range) of 2 rounds, beside 2 busy processes" in result.stdout


def test_a_busy_process_that_ended_is_no_load(monkeypatch):
    with busy.busy_processes(1) as (process,):
        assert process.poll() is None
    monkeypatch.setattr(busy, "SPIN", "raise SystemExit(3)")
    with (
        pytest.raises(compare_peers.click.ClickException, match="1 of 1 busy processes ended early, with exit code 3"),
        busy.busy_processes(1) as (process,),
    ):
        process.wait()


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="2026-11-22: only Linux has /proc/self/stat")
def test_a_worker_is_stopped_while_it_has_no_turn(stand_in, tmp_path):
    def state():
        return Path(f"/proc/{worker._process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def stopped():
        os.waitid(os.P_PID, worker._process.pid, os.WSTOPPED | os.WNOWAIT)
        return state() == "T"

    (tmp_path / "model").write_text("converted")
    peer = stand_in("peer")
    with process.start("peer", peer, Path(sys.executable), tmp_path, tmp_path, "fp32", threads=1) as worker:
        assert stopped()
        turn = worker.generate([7, 8, 9], 2)
        assert turn == Generation([9, 10], 0.5, 2.0, turn.peak_mib)
        assert stopped()
        worker._process.send_signal(signal.SIGKILL)
        worker._process.wait()
        with pytest.raises(compare_peers.click.ClickException, match="ended with exit code -9"):
            worker.generate([7, 8, 9], 2)


def test_a_checkpoint_gets_a_tokenizer_and_stays_as_it_was(checkpoint, tmp_path):
    (checkpoint / "tokenizer_config.json").write_text("{}")
    linked = tmp_path / "linked"
    linked.mkdir()
    compare_peers.link_with_tokenizer(checkpoint, linked)

    assert len(json.loads((linked / "tokenizer.json").read_text())["model"]["vocab"]) == 64
    assert json.loads((linked / "tokenizer_config.json").read_text())["eos_token"] == "0"
    assert (checkpoint / "tokenizer_config.json").read_text() == "{}"
    assert not (checkpoint / "tokenizer.json").exists()


def test_prompts_are_the_same_for_all_and_others_each_round():
    asked = {"a": [], "b": []}

    class Worker:
        def __init__(self, name):
            self.generate = lambda prompt, new: asked[name].append(prompt)

    prompts = compare_peers.Prompts(100, 12)
    systems = {name: compare_peers.next_prompt_of(Worker(name), prompts, 3) for name in asked}
    for system in (*systems.values(), *systems.values()):
        system()

    assert asked["a"] == asked["b"]
    assert asked["a"][0] != asked["a"][1] and len(asked["a"][1]) == 12


def test_a_runtime_that_stops_early_fails_loudly():
    with pytest.raises(compare_peers.click.ClickException, match="other generated 2 tokens instead of 3"):
        report.summarise({OURS: [Generation([1, 2, 3], 1, 1)], "other": [Generation([1, 2], 1, 1)]}, prompt=4, new=3)


def test_other_tokens_are_told(stand_in, compare):
    result = compare({OURS: stand_in("ours"), "wrong": stand_in("wrong", run="tokens[-2] += 1")})

    assert result.exit_code == 0, result.output
    assert "wrong agrees with edgeformer on the first 3 of 5 tokens" in result.stdout


def test_the_clock_of_a_loop_and_of_a_callback(monkeypatch):
    now = iter([10.0, 11.0, 14.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    assert timed(iter([5, 6, 7, 8]), 3) == Generation([5, 6, 7], 1.0, 3.0)

    now = iter([20.0, 21.0, 22.0, 25.0])
    watch = Stopwatch()
    for token in (5, 6, 7):
        watch.record(token)
    assert watch.generation() == Generation([5, 6, 7], 1.0, 4.0)


def test_every_peer_has_a_worker():
    files = {path.name for path in FOLDER.glob("*.py") if "\ndef load(checkpoint" in path.read_text()}

    assert {peer.file.name for peer in PEERS.values()} == files


@pytest.mark.slow
def test_real_runtimes_generate_the_same_tokens(make_llama, tmp_path):
    """The checkpoint is written by transformers and has norms other than 1."""
    names = (OURS, "onnxruntime-genai", "transformers")
    line = [make_llama(), *OPTIONS, "--new", 12, "--rounds", 1, "--work", tmp_path, "--json", tmp_path / "report.json"]
    only = [part for name in names for part in ("--only", name)]
    result = CliRunner().invoke(compare_peers.main, [str(part) for part in [*line, *only]])

    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["results"][0]["same_leading_tokens"] == {"onnxruntime-genai": 12, "transformers": 12}
    assert [entry["versions"] != {} for entry in data["peers"].values()] == [True] * 3
