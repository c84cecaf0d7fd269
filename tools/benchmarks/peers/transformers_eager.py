"""transformers, not compiled: float32, its default attention and cache, in a minimal loop.

The loop avoids the overhead of transformers' `generate`. Like `generate`, it computes the logits of a prompt's last
token only.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.peers.generation import Generate, Generation, Logits, timed
from edgeformer.transformers_backend.transformers_shim import cache_argument


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Load the checkpoint in float32 for timed generation."""
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    @torch.inference_mode()
    def run(prompt: list[int], new: int) -> Generation:
        given = {cache_argument(model.forward): transformers.DynamicCache(config=model.config)}

        def tokens() -> Iterator[int]:
            ids = prompt
            while True:
                logits = model(torch.tensor([ids]), **given, use_cache=True, logits_to_keep=1).logits
                ids = [int(logits[0, -1].argmax())]
                yield ids[0]

        return timed(tokens(), new)

    return run


def load_logits(checkpoint: Path, folder: Path, precision: str, threads: int) -> Logits:
    """Load the checkpoint in float32 for logits."""
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    @torch.inference_mode()
    def read(text: list[int]) -> Any:
        return model(torch.tensor([text]), use_cache=False).logits[0].numpy()

    return read
