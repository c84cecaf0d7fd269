"""The CUDA check without CUDA: it reports what is missing, and its steps work on the CPU."""

import json

import onnxruntime
import pytest
from click.testing import CliRunner
from verification import check_cuda
from verification.cuda import cuda_runs

from edgeformer.runtime.sessions.providers.cuda_machine import Driver

without_cuda = pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this onnxruntime has CUDA"
)


@without_cuda
def test_without_cuda_it_says_what_is_missing(tmp_path):
    output = tmp_path / "cuda.json"
    result = CliRunner().invoke(check_cuda.main, ["--full", "--output", str(output)])

    assert result.exit_code == 1
    assert "CUDA is not available: onnxruntime" in result.stderr
    data = json.loads(output.read_text())
    assert data["available"] is False
    assert data["passed"] is False
    assert "has no CUDAExecutionProvider (it has" in data["reason"]
    assert data["cases"] == []
    assert data["environment"]["torch"]


def test_a_driver_without_a_gpu_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(check_cuda, "driver", lambda: Driver(problem="the NVIDIA driver finds no GPU"))
    assert check_cuda.unavailable(tmp_path).endswith("the NVIDIA driver finds no GPU")


def test_one_case_exports_verifies_profiles_and_times(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_runs, "PROMPTS", (8, 2000))
    monkeypatch.setattr(cuda_runs, "NEW_TOKENS", 4)
    case = check_cuda.check_case(tiny_checkpoint, tmp_path / "bundle", check_cuda.Case("fp32", "cpu"))

    assert check_cuda.passed(case), case
    assert case["nodes"]["by_provider"].keys() == {"CPUExecutionProvider"}
    assert case["nodes"]["on_the_cpu"]["GroupQueryAttention"] == 2
    assert case["nodes"]["copies"] == {}
    # A prompt longer than the context is skipped.
    assert case["speeds"]["cpu"].keys() == {"providers_of_the_session", "prompt_8"}
    assert case["speeds"]["cpu"]["prompt_8"]["decode_tokens_per_second"] > 0
    assert json.dumps(case)
    assert "ok   fp32 for cpu" in check_cuda.summary(case)


@without_cuda
def test_a_case_that_fails_keeps_what_was_found_before(tiny_checkpoint, tmp_path):
    case = check_cuda.check_case(tiny_checkpoint, tmp_path / "bundle", check_cuda.Case("fp32", "cuda"))

    assert not check_cuda.passed(case)
    assert case["slower_forms"] == [
        "GroupQueryAttention decomposed in 2 places: there is no float32 CUDA kernel (float16 has one)"
    ]
    # The float32 twin says nothing about the kernels, which are what this tool is for.
    assert case["parity"]["environment"]["provider"] == "cpu, float32 twins of the graphs for CUDA"
    assert case["error"].startswith("RequestError: provider cuda was asked for")
    assert "FAIL fp32 for cuda" in check_cuda.summary(case)


def test_a_case_that_ran_beside_the_gpu_has_not_passed():
    case = {
        "exported_for": "cuda", "dry": False, "parity": {"passed": True}, "audit": {"verdict": "loads"},
        "nodes": {"by_provider": {"CPUExecutionProvider": 9}},
    }  # fmt: skip
    assert not check_cuda.passed(case)
    case["nodes"]["by_provider"]["CUDAExecutionProvider"] = 1
    assert check_cuda.passed(case)
    assert not check_cuda.passed(case | {"audit": {"verdict": "does not load"}})
    assert check_cuda.passed(case | {"cuda_graphs": {"refused": "float32 has nodes on the CPU"}})
    assert check_cuda.passed(case | {"cuda_graphs": {"same_logits": True}})
    assert not check_cuda.passed(case | {"cuda_graphs": {"same_logits": False}})


FLOAT16, FLOAT32 = check_cuda.Case("fp16", "cuda"), check_cuda.Case("fp32", "cpu")
IN_BFLOAT16 = check_cuda.Case("int4", "cuda", "bf16")


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(cuda_runs, "PROMPTS", (8,))
    monkeypatch.setattr(cuda_runs, "NEW_TOKENS", 4)
    monkeypatch.setattr(cuda_runs, "ROUNDS", 1)
    monkeypatch.setattr(check_cuda, "CASES", (FLOAT16, IN_BFLOAT16, FLOAT32))  # CI runs all


@without_cuda
def test_the_dry_run_passes_without_a_gpu_and_resumes(tmp_path, few, monkeypatch):
    output, ran, check_case = tmp_path / "cuda.json", [], check_cuda.check_case

    def cut_off(model, folder, case, *, dry):
        ran.append(case)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return check_case(model, folder, case, dry=dry)

    def run(*options):
        return CliRunner().invoke(check_cuda.main, ["--dry-run", *options, "--output", str(output)])

    monkeypatch.setattr(check_cuda, "check_case", cut_off)
    assert run().exit_code == 1
    assert len(json.loads(output.read_text())["cases"]) == 1
    result = run()
    assert result.exit_code == 0, result.output
    assert ran == [*check_cuda.CASES[:2], *check_cuda.CASES[1:]]

    data = json.loads(output.read_text())
    assert (data["passed"], data["available"]) == (True, False)
    assert [case["case"] for case in data["cases"]] == ["fp16 for cuda", "int4 in bf16 for cuda", "fp32 for cpu"]
    for case in data["cases"][:-1]:
        assert case["audit"]["verdict"] == "loads"
        assert case["parity"]["environment"]["provider"] == "cpu, float32 twins of the graphs for CUDA"
        assert "nodes" not in case  # nothing says that CUDA ran
    assert data["cases"][-1]["speeds"]["cpu"]["prompt_8"]["decode_tokens_per_second"] > 0


def test_cases_of_another_run_are_not_taken(tmp_path):
    case = {"key": "tiny", "exported_for": "cpu", "dry": False, "parity": {"passed": True}}
    output, data = tmp_path / "cuda.json", {"environment": {"onnxruntime": "1"}, "options": {"full": True}}
    check_cuda.write(output, data | {"cases": [case, case | {"key": "failed", "error": "CUDA"}]})
    assert check_cuda.resumed(output, data) == ({"tiny": case}, {})
    assert check_cuda.resumed(output, data | {"environment": {"onnxruntime": "2"}}) == ({}, {})
    assert check_cuda.resumed(tmp_path / "none.json", data) == ({}, {})
    speed = {"1.1b, fp16": {"runtimes": {}}, "8b, fp16": {"error": "out of memory"}}
    check_cuda.write(output, data | {"cases": [], "speed": speed})
    assert check_cuda.resumed(output, data) == ({}, {"1.1b, fp16": {"runtimes": {}}})
