"""OpenVINO GenAI: an intermediate representation that optimum-intel converts.

int4 is asymmetric in groups of 64, with the embedding in int8; int8 is asymmetric by channel. `optimum-cli` makes them
of --weight-format int4 --group-size 64 and --weight-format int8. At these two the runtime's own choices stand, among
them a quantized cache, and bfloat16 arithmetic where the processor is good at it; at fp32 both are forbidden.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.peers.turn import Generate, Logits, Stopwatch, Turn

FORMATS = {"fp32": ["fp32"], "int8": ["int8"], "int4": ["int4", "--group-size", "64"]}
"""What follows --weight-format."""

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


class Watcher(genai.StreamerBase):  # type: ignore[misc]  # openvino_genai is untyped, or absent
    """Takes the time of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = Stopwatch()

    def write(self, token: int | list[int]) -> genai.StreamingStatus:
        """Called with each new token, by some backends as a list of one."""
        for one in token if isinstance(token, list) else [token]:
            self.watch.saw(one)
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Called after the last token."""


def convert(checkpoint: Path, folder: Path, precision: str) -> None:
    """Run optimum-cli of the same environment."""
    cli = [str(Path(sys.executable).parent / "optimum-cli"), "export", "openvino", "--model", str(checkpoint)]
    task = ["--task", "text-generation-with-past", "--weight-format", *FORMATS[precision]]
    subprocess.run([*cli, *task, str(folder)], check=True)


def properties(precision: str, threads: int) -> dict[str, Any]:
    """What the CPU is told."""
    return {"INFERENCE_NUM_THREADS": threads} | (EXACT if precision == "fp32" else {})


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the pipeline with the backend that it chooses by itself."""
    pipeline = genai.LLMPipeline(str(folder), "CPU", **properties(precision, threads))

    def run(prompt: list[int], new: int) -> Turn:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        ids = np.array([prompt], np.int64)
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        watcher = Watcher()
        pipeline.generate(inputs, config, watcher)
        return watcher.watch.turn()

    return run


def load_logits(checkpoint: Path, folder: Path, precision: str, threads: int) -> Logits:
    """Compile the file itself: the pipeline keeps logits to itself. Its cache is its state."""
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
