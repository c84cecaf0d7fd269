"""CTranslate2: its own converter, with transformers 4. int8 has one scale per row of weights and per token."""

import json
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter

from benchmarks.peers.generation import Generate, Generation, Logits, Stopwatch

COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}


def convert(checkpoint: Path, folder: Path, precision: str) -> None:
    """Convert the checkpoint, which must have a tokenizer. Weights are stored in the type that computes with them."""
    TransformersConverter(str(checkpoint)).convert(str(folder), quantization=COMPUTE_TYPES[precision], force=True)


def open_model(folder: Path, precision: str, threads: int) -> tuple[Any, list[str]]:
    """Return the model and the names of its tokens by id; CTranslate2 takes prompts as names."""
    names = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    generator = ctranslate2.Generator(
        str(folder), device="cpu", compute_type=COMPUTE_TYPES[precision], intra_threads=threads, inter_threads=1
    )
    return generator, names


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the model for timed generation."""
    generator, names = open_model(folder, precision, threads)

    def run(prompt: list[int], new: int) -> Generation:
        start = [names[token] for token in prompt]
        watch = Stopwatch()

        def saw(step: ctranslate2.GenerationStepResult) -> bool:
            watch.record(step.token_id)
            return False  # go on

        generator.generate_batch(
            [start],
            max_length=new,
            min_length=new,  # the end-of-text token is banned until then
            sampling_topk=1,
            include_prompt_in_result=False,  # or the prompt is fed token by token
            callback=saw,
        )
        return watch.generation()

    return run


def load_logits(checkpoint: Path, folder: Path, precision: str, threads: int) -> Logits:
    """Open the model for logits."""
    generator, names = open_model(folder, precision, threads)

    def read(text: list[int]) -> Any:
        return np.array(generator.forward_batch([[names[token] for token in text]]))[0]

    return read
