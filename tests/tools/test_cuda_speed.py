"""The speeds of the CUDA check, measured on the CPU, and the page and the plot of what it found."""

import json

import pytest
from click.testing import CliRunner
from matplotlib.image import imread
from verification.cuda import cuda_report, cuda_speed

MOST = {"bytes_per_second": 1e12, "flops_per_second": 1e15}


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(cuda_speed, "PROMPT", 16)
    monkeypatch.setattr(cuda_speed, "NEW_TOKENS", 4)
    monkeypatch.setattr(cuda_speed, "ROUNDS", 1)
    loop = cuda_speed.transformers_loop

    def not_compiled(*arguments, compiled):
        if compiled:
            raise cuda_speed.Unavailable("nothing is compiled in this test")
        return loop(*arguments, compiled=False)

    monkeypatch.setattr(cuda_speed, "transformers_loop", not_compiled)


@pytest.mark.slow
def test_runtimes_continue_the_same_prompt_alike(tiny_checkpoint, tmp_path, short):
    found = cuda_speed.measure(tiny_checkpoint, tmp_path / "models", "fp16", "cpu")["runtimes"]
    assert found["edgeformer"]["decode_tokens_per_second"] > 0
    assert found["edgeformer"]["tokens"] == found["transformers, eager"]["tokens"]
    assert found["transformers, compiled"] == {"reason": "Unavailable: nothing is compiled in this test"}


@pytest.mark.slow
def test_4_bit_weights_are_not_compared_with_float16(tiny_checkpoint, tmp_path, short):
    found = cuda_speed.measure(tiny_checkpoint, tmp_path / "models", "int4", "cpu")["runtimes"]
    assert found["transformers, eager"] == {"reason": "Unavailable: transformers has no int4 weights of its own"}
    assert found["edgeformer"]["prefill_tokens_per_second"] > 0
    assert found["onnxruntime-genai"]["decode_tokens_per_second"] > 0  # over a checkpoint without a tokenizer, too


def test_peaks_are_rates():
    most = cuda_speed.peaks("cpu", copied=2**20, side=64)
    assert 1e7 < most["bytes_per_second"] < 1e13 and 1e6 < most["flops_per_second"] < 1e14


def test_fractions_are_of_the_peaks():
    speed = {"prefill_tokens_per_second": 10_000.0, "decode_tokens_per_second": 50.0}
    assert cuda_speed.fractions(speed, {"flops_per_prompt_token": 16e9, "bytes_per_token": 16e9}, MOST) == (0.16, 0.8)


def test_the_page_says_what_passed_and_how_fast(tmp_path):
    speed = {"prefill_tokens_per_second": 10_000.0, "decode_tokens_per_second": 50.0, "tokens": [1]}
    data = {
        "environment": {"gpus": ["NVIDIA H100, 580.65"], "python": "3.12", "torch": "2.11"},
        "available": True, "reason": None, "peaks": MOST,
        "cases": [
            {"key": "tiny, fp16 for cuda", "passed": True, "parity": {"passed": True},
             "nodes": {"on_the_cpu": {"Shape": 2}}, "cuda_graphs": {"same_logits": True}},
            {"key": "tiny, int4 for cuda", "passed": False, "error": "BundleError: no kernel\nand more"},
        ],
        "speed": {
            "llama-3.1-8b, fp16": {
                "flops_per_prompt_token": 16e9, "bytes_per_token": 16e9,
                "runtimes": {"edgeformer": speed, "onnxruntime-genai": {"reason": "Unavailable: not installed"}},
            },
            "llama-3.1-8b, int4": {"error": "OutOfMemoryError: no room"},
        },
    }  # fmt: skip
    output = tmp_path / "cuda.json"
    output.write_text(json.dumps(data))
    ran = CliRunner().invoke(cuda_report.main, [str(output)])
    assert ran.exit_code == 0, ran.output
    page = output.with_suffix(".md").read_text()
    assert "# Check of CUDA: NVIDIA H100, 580.65" in page and "![Prefill and decode" in page
    assert "| tiny, fp16 for cuda | passed | passed | Shape 2 | same logits |" in page
    assert "| tiny, int4 for cuda | BundleError: no kernel |  |  |  |" in page
    assert "| llama-3.1-8b, fp16 | edgeformer | 10,000 | 16% | 50.0 | 80% |" in page
    assert "| llama-3.1-8b, fp16 | onnxruntime-genai | Unavailable: not installed | | | |" in page
    assert "| llama-3.1-8b, int4 | OutOfMemoryError: no room | | | | |" in page
    assert imread(output.with_suffix(".png")).shape[1] > 1000


def test_a_machine_without_cuda_gets_a_page_without_a_plot(tmp_path):
    data = {"environment": {"gpus": []}, "available": False, "reason": "no driver", "cases": []}
    assert cuda_report.write_report(data, tmp_path / "cuda.json") == [tmp_path / "cuda.md"]
    assert "CUDA is not available: no driver." in (tmp_path / "cuda.md").read_text()
