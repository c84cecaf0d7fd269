"""The command `edgeformer bench`: its tables, its JSON, its plot, its errors.

The figures are tested with `edgeformer.runtime.measure.benchmarking`.
"""

import importlib
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.runtime.measure import benchmarking as package
from edgeformer.runtime.measure.benchmarking import machine, measure
from edgeformer.runtime.measure.benchmarking.result import (
    BenchmarkResult,
    Cost,
    Kernels,
    Memory,
    Phase,
    Roofs,
    Spread,
    Workload,
)
from edgeformer.runtime.sessions.kernel_report import KernelReport

MB = 10**6
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(machine, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "TURN_SECONDS", 1e-9)
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "80")


def run(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def spread(value):
    return Spread(median=value, low=0.5 * value, high=1.5 * value)


ROOFS = Roofs(bandwidth=spread(40e9), fp32=spread(400e9), int8=spread(1500e9), matmul=(256, 512, 1024))


MEMORY = Memory(before_load_bytes=61 * MB, peak_bytes=943 * MB, private_bytes=788 * MB, file_bytes=156 * MB)


KERNELS = KernelReport(
    version="0.1.0",
    level="avx2",
    threads="team",
    kernels={"MatMulNBits": 120, "RMSNorm": 61},
    bodies={"Attention": 30},
    reason="edgeformer-kernels 0.1.0 has no kernel for it",
)


def workload(tokens, batch_size, roofs=ROOFS, cost=True):
    def phase(speed, flops, size):
        return Phase.of(spread(speed), Cost(flops=flops, bytes=size) if cost else None, roofs)

    return Workload(
        tokens=tokens,
        batch_size=batch_size,
        new_tokens=64,
        first_token_seconds=spread(0.8 * batch_size),
        seconds=spread(12.0),
        prefill=phase(1200.0, 273e6, 4.3e6),
        decode=phase(67.0, 280e6, 547e6 / batch_size),
    )


def result(**changes):
    fields = {
        "name": "smollm2-135m",
        "task": "causal-lm",
        "precision": "fp32",
        "ops": "ort",
        "provider": "cpu",
        "threads": 2,
        "kernels": KERNELS,
        "rounds": 5,
        "import_seconds": spread(0.25),
        "load_seconds": spread(0.64),
        "memory": MEMORY,
        "roofs": ROOFS,
        "workloads": tuple(workload(tokens, batch) for tokens in (128, 512) for batch in (1, 16)),
        "notes": (),
        "versions": {"python": "3.11.7"},
    }  # fmt: skip
    return BenchmarkResult(**(fields | changes))


@pytest.fixture
def found(monkeypatch):
    """Return a function that makes the command print a given result instead of measuring one."""
    return lambda made: monkeypatch.setattr(package, "benchmark", lambda bundle, **options: made)


def test_a_bundle_is_measured_shown_and_drawn(tiny_llama_bundle, tmp_path):
    options = ["--prompt", 8, "--prompt", 16, "--new", 3, "--batch", 2, "--rounds", 1, "--threads", 1, "--profile"]
    done = run("bench", tiny_llama_bundle, *options, "--plot", tmp_path / "roof.png", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert [(each["tokens"], each["batch_size"], each["new_tokens"]) for each in data["workloads"]] == [
        (8, 2, 3), (16, 2, 3),
    ]  # fmt: skip
    assert (data["rounds"], data["threads"], data["notes"]) == (1, 1, [])
    assert data.keys() == result().to_json().keys()
    assert {each["op"] for each in data["workloads"][0]["decode"]["kernels"]} >= {"MatMul", "GroupQueryAttention"}
    assert done.stderr == f"wrote {tmp_path / 'roof.png'}\n"
    assert (tmp_path / "roof.png").read_bytes().startswith(PNG)


def test_what_is_not_given_is_left_to_the_runtime(monkeypatch):
    given = {}
    monkeypatch.setattr(package, "benchmark", lambda bundle, **options: given.update(options) or result())
    assert run("bench", "somewhere").exit_code == 0
    assert given.keys() == {"provider", "profile", "progress"}


def test_the_tables(found):
    found(result())
    lines = run("bench", "somewhere").stdout.splitlines()
    assert lines[:2] == ["smollm2-135m: fp32, op set ort", "CPU, 2 threads; median (range) of 5 rounds"]
    assert " ".join("".join(lines[3:6]).split()) == (
        "kernels MatMulNBits ×120, RMSNorm ×61 by edgeformer-kernels 0.1.0 (avx2, threads of their own); "
        "Attention ×30 by onnxruntime: edgeformer-kernels 0.1.0 has no kernel for it"
    )
    assert "memory bandwidth    40.0 GB/s (20.0–60.0)" in lines
    assert "peak memory         943 MB; private 788 MB, file-backed 156 MB" in lines
    assert any(
        line.split() == ["128", "1", "800", "(400–1,200)", "1,200", "(600–1,800)", "82%", "22%"] for line in lines
    )
    assert any(line.split() == ["512", "16", "67.0", "(33.5–100)", "34.2", "MB", "5.7%", "4.7%"] for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_provider_is_called_by_its_title(found):
    found(result(provider="webgpu"))
    assert run("bench", "somewhere").stdout.splitlines()[1].startswith("WebGPU, 2 threads; ")


def test_where_the_time_goes(found):
    kernels = (
        Kernels(op="MatMulNBits", count=121, fraction=0.684, seconds=73.8e-6),
        Kernels(op="SkipSimplifiedLayerNormalization", count=60, fraction=0.3, seconds=0.0125),
        Kernels(op="Shape", count=2, fraction=0.009, seconds=20e-6),
        Kernels(op="Cast", count=8, fraction=0.007, seconds=10e-6),
    )
    plain = workload(128, 1)
    profiled = replace(
        plain, decode=replace(plain.decode, kernels=kernels), prefill=replace(plain.prefill, kernels=kernels[:1])
    )
    found(result(workloads=(profiled, workload(512, 1))))
    lines = run("bench", "somewhere", "--profile").stdout.splitlines()
    place = lines.index("time by op: decode step after a prompt of 128 tokens, batch 1")
    assert [line.split() for line in lines[place + 1 : place + 5]] == [
        ["op", "fraction", "kernels", "µs", "each"],
        ["MatMulNBits", "68%", "121", "73.8"],
        ["SkipSimplifiedLayerNormalization", "30%", "60", "12,500"],
        ["all", "others", "1.6%", "10", "12.0"],
    ]
    assert "time by op: prefill of a prompt of 128 tokens, batch 1" in lines
    assert not any("512 tokens" in line for line in lines), "nobody asked for it there"
    assert max(map(len, lines)) <= 80


def test_large_figures_fit_80_columns_too(found):
    big = replace(workload(32768, 64), first_token_seconds=spread(99.0), prefill=workload(1, 1).prefill)
    found(result(workloads=(big,)))
    lines = run("bench", "somewhere").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.startswith("32,768")]) == 2


def test_a_figure_that_is_not_known_says_why(found):
    unknown = (workload(128, 1, None, cost=False),)
    found(result(roofs=None, memory=None, workloads=unknown, notes=("the model ran on CUDA", "no memory")))
    shown = run("bench", "somewhere").stdout
    assert "memory bandwidth" not in shown and "peak memory" not in shown
    assert any(line.split() == ["128", "1", "67.0", "(33.5–100)", "?", "?", "?"] for line in shown.splitlines())
    assert shown.endswith("\n– the model ran on CUDA\n– no memory\n")


def test_an_encoder_has_one_table(found):
    read = replace(workload(128, 4), new_tokens=0, decode=None, first_token_seconds=None)
    found(result(task="encoder", workloads=(read,)))
    shown = run("bench", "somewhere").stdout
    assert "text  batch                     ms" in shown
    assert "decode" not in shown


def test_a_plot_of_nothing_says_why(found, tmp_path):
    found(result(roofs=None, notes=("the model ran on CUDA",)))
    done = run("bench", "somewhere", "--plot", tmp_path / "roof.png")
    assert done.exit_code == 1
    assert done.stderr == "error: a roofline cannot be drawn: the model ran on CUDA. Leave out the plot.\n"
    assert "decode of 64 tokens" in done.stdout  # minutes of measuring are not lost
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["none/roof.png", "roof.svg"])
def test_an_impossible_plot_is_refused_before_measuring(tmp_path, monkeypatch, place):
    monkeypatch.setattr(package, "benchmark", lambda *_, **__: pytest.fail("measured"))
    done = run("bench", "somewhere", "--plot", tmp_path / place)
    assert done.exit_code == 1
    assert ("there is no folder" if "/" in place else "Let its name end in .png") in done.stderr


def test_a_plot_without_matplotlib_names_what_to_install(monkeypatch):
    def missing(name, *rest):
        if name == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest)

    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", missing)
    done = run("bench", "somewhere", "--plot", "roof.png")
    assert done.exit_code == 1
    assert (
        "matplotlib is not installed, and this needs it. Install it with: pip install 'edgeformer[export]'"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", 4000], "error: a prompt of 4000 tokens and 64 new ones do not fit"),
        (["--rounds", 0], "error: rounds is 0; it must be at least 1."),
        (["--batch", 0], "error: the batch size is 0; it must be at least 1."),
    ],
)
def test_an_error_is_one_message_and_exit_code_1(tiny_llama_bundle, options, message):
    done = run("bench", tiny_llama_bundle, *options)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr


def test_an_interrupted_benchmark_ends_without_a_traceback(monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "benchmark", interrupted)
    done = run("bench", "somewhere", "--plot", tmp_path / "roof.png")
    assert (done.exit_code, done.stderr.strip()) == (1, "Aborted!")
    assert not list(tmp_path.iterdir())


def test_help_fits_80_columns():
    lines = CliRunner().invoke(cli, ["bench", "--help"], terminal_width=80).stdout.splitlines()
    assert max(map(len, lines)) <= 80
