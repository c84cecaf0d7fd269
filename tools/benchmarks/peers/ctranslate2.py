"""CTranslate2: its own conversion, from transformers 4. int8 is weights by row, activations by token as they come."""

import json
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter

from benchmarks.peers.turn import Generate, Logits, Stopwatch, Turn

COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}


def convert(checkpoint: Path, folder: Path, precision: str) -> None:
    """Convert with the weights in the type that they are computed in. It wants a tokenizer in the checkpoint."""
    TransformersConverter(str(checkpoint)).convert(str(folder), quantization=COMPUTE_TYPES[precision], force=True)


def open_model(folder: Path, precision: str, threads: int) -> tuple[Any, list[str]]:
    """The model, and the names of its tokens by id, which prompts are made of."""
    names = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    generator = ctranslate2.Generator(
        str(folder), device="cpu", compute_type=COMPUTE_TYPES[precision], intra_threads=threads, inter_threads=1
    )
    return generator, names


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the model."""
    generator, names = open_model(folder, precision, threads)

    def run(prompt: list[int], new: int) -> Turn:
        start = [names[token] for token in prompt]
        watch = Stopwatch()

        def saw(step: ctranslate2.GenerationStepResult) -> bool:
            watch.saw(step.token_id)
            return False  # go on

        generator.generate_batch(
            [start],
            max_length=new,
            min_length=new,  # the end-of-text token is banned until then
            sampling_topk=1,
            include_prompt_in_result=False,  # or the prompt is fed token by token
            callback=saw,
        )
        return watch.turn()

    return run


def load_logits(checkpoint: Path, folder: Path, precision: str, threads: int) -> Logits:
    """Open the model."""
    generator, names = open_model(folder, precision, threads)

    def read(text: list[int]) -> Any:
        return np.array(generator.forward_batch([[names[token] for token in text]]))[0]

    return read
