"""CTranslate2: its own conversion, from transformers 4. int8 is weights by row, activations by token as they come."""

import json
from pathlib import Path

import ctranslate2
from ctranslate2.converters import TransformersConverter

from peers.turn import Generate, Stopwatch, Turn

COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}


def convert(checkpoint: Path, folder: Path, precision: str) -> None:
    """Convert with the weights in the type that they are computed in. It wants a tokenizer in the checkpoint."""
    TransformersConverter(str(checkpoint)).convert(str(folder), quantization=COMPUTE_TYPES[precision], force=True)


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the model; its prompts are names of tokens, which its vocabulary lists by id."""
    names = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    generator = ctranslate2.Generator(
        str(folder), device="cpu", compute_type=COMPUTE_TYPES[precision], intra_threads=threads, inter_threads=1
    )

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
