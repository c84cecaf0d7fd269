"""onnxruntime-genai: a model of its own builder, with the builder's defaults.

For int4 and int8 these are MatMulNBits with symmetric blocks of 32, accuracy level 4, round to nearest.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai

from benchmarks.peers.generation import Generate, Generation, Logits, timed


def convert(checkpoint: Path, folder: Path, precision: str, provider: str = "cpu") -> None:
    """Run the builder's command line. The checkpoint must have a tokenizer. provider: cpu or cuda."""
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    options = ["-i", str(checkpoint), "-o", str(folder), "-p", precision, "-e", provider, "-c", str(folder / "cache")]
    subprocess.run(builder + options, check=True)


def open_model(folder: Path, threads: int) -> Any:
    """Open the model with a number of threads; by default it would take onnxruntime's own number."""
    config = genai.Config(str(folder))
    session = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    return genai.Model(config)


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the model for timed generation."""
    return loop(open_model(folder, threads))


def loop(model: Any) -> Generate:
    """Return timed generation with an open model."""

    def run(prompt: list[int], new: int) -> Generation:
        length = len(prompt) + new
        params = genai.GeneratorParams(model)
        # min_length bans the end-of-text token until it is reached.
        params.set_search_options(do_sample=False, max_length=length, min_length=length)
        generator = genai.Generator(model, params)
        ids = np.array(prompt, np.int32)

        def tokens() -> Iterator[int]:
            generator.append_tokens(ids)
            while True:
                generator.generate_next_token()
                yield int(generator.get_next_tokens()[0])

        return timed(tokens(), new)

    return run


def load_logits(checkpoint: Path, folder: Path, precision: str, threads: int) -> Logits:
    """Open the model for logits."""
    model = open_model(folder, threads)

    def read(text: list[int]) -> Any:
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=len(text))
        generator = genai.Generator(model, params)
        generator.append_tokens(np.array(text, np.int32))
        return generator.get_output("logits")[0]

    return read
