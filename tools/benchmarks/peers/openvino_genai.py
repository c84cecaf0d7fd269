"""OpenVINO GenAI: an intermediate representation converted by optimum-intel.

`optimum-cli --weight-format int4 --group-size 64` makes asymmetric int4 groups of 64 with an int8 embedding;
`--weight-format int8` makes asymmetric per-channel int8. At these two precisions the runtime keeps its own defaults,
among them a quantized cache, and bfloat16 arithmetic on processors that support it; at fp32 both are turned off.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.peers.generation import Generate, Generation, Logits, Stopwatch

FORMATS = {"fp32": ["fp32"], "int8": ["int8"], "int4": ["int4", "--group-size", "64"]}
"""Arguments after --weight-format, by precision."""

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


class Watcher(genai.StreamerBase):  # type: ignore[misc]  # openvino_genai is untyped, or absent
    """Record the time of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = Stopwatch()

    def write(self, token: int | list[int]) -> genai.StreamingStatus:
        """Record a new token; some backends pass a list of one."""
        for one in token if isinstance(token, list) else [token]:
            self.watch.record(one)
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Do nothing after the last token."""


def convert(checkpoint: Path, folder: Path, precision: str) -> None:
    """Run optimum-cli of the same environment."""
    cli = [str(Path(sys.executable).parent / "optimum-cli"), "export", "openvino", "--model", str(checkpoint)]
    task = ["--task", "text-generation-with-past", "--weight-format", *FORMATS[precision]]
    subprocess.run([*cli, *task, str(folder)], check=True)


def properties(precision: str, threads: int) -> dict[str, Any]:
    """Return the properties of the CPU device for a precision."""
    return {"INFERENCE_NUM_THREADS": threads} | (EXACT if precision == "fp32" else {})


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the pipeline with the backend that it selects by itself."""
    pipeline = genai.LLMPipeline(str(folder), "CPU", **properties(precision, threads))

    def run(prompt: list[int], new: int) -> Generation:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        ids = np.array([prompt], np.int64)
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        watcher = Watcher()
        pipeline.generate(inputs, config, watcher)
        return watcher.watch.generation()

    return run


def load_logits(checkpoint: Path, folder: Path, precision: str, threads: int) -> Logits:
    """Compile the model file itself, because the pipeline does not expose logits. Its cache is its state."""
    compiled = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", properties(precision, threads))
    request = compiled.create_infer_request()

    def read(text: list[int]) -> Any:
        request.reset_state()
        ids = np.array([text], np.int64)
        places = np.arange(len(text), dtype=np.int64)[None]
        one_row = np.zeros(1, np.int32)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": places, "beam_idx": one_row}
        return request.infer(inputs)["logits"][0]

    return read
