"""Measure a GPU, and the runtimes that continue a prompt on it: speeds, and fractions of what the GPU can do.

`check_cuda.py --full` calls this. Each runtime is loaded, warmed up, timed and dropped before the next one, because
several of a large model do not fit the memory of a GPU together.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from edgeformer.export import export_model
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Precision
from edgeformer.manifest.providers import ProviderName
from edgeformer.runtime import CudaOptions, load_causal_lm
from edgeformer.runtime.measure.benchmarking.costs import Costs

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.compare_peers import link_with_tokenizer
from benchmarks.decoding.bench_decode import edgeformer_loop
from benchmarks.peers.generation import Generate, Generation, timed

GEOMETRIES = ("smollm2-135m", "tinyllama-1.1b", "llama-3.1-8b")
"""Models of random weights, by the names of `random_checkpoint.py`."""

PRECISIONS: tuple[Precision, ...] = ("fp16", "int4")

PROMPT, NEW_TOKENS, ROUNDS = 512, 128, 5

Device = str
"""A device by torch's name: `cuda`, or `cpu` in tests."""


class Unavailable(Exception):
    """A runtime is not installed here, or has no form of this precision."""


def peaks(device: Device = "cuda", copied: int = 2**30, side: int = 8192) -> dict[str, float]:
    """Return what the device does at best: bytes/s that a copy reads and writes, FLOP/s of a float16 product.

    copied: bytes of the copy. side: rows and columns of the factors.
    """
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target, factor = torch.empty_like(source), torch.ones(side, side, dtype=torch.float16, device=device)
    return {
        "bytes_per_second": 2 * copied / _seconds(lambda: target.copy_(source), device),
        "flops_per_second": 2 * side**3 / _seconds(lambda: factor @ factor, device),
    }


def _seconds(run: Callable[[], Any], device: Device, rounds: int = 20) -> float:
    """Return the median seconds of a run; the first ones warm up."""
    seconds = []
    for _ in range(rounds + 3):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return median(seconds[3:])


def _wait(device: Device) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def edgeformer(bundle: Path, provider: ProviderName, *, graphs: bool) -> Generate:
    """Return the loop of `edgeformer run`, with CUDA graphs or without."""
    loop = edgeformer_loop(load_causal_lm(bundle, provider, provider_options=CudaOptions(enable_cuda_graph=graphs)))

    def run(prompt: list[int], new: int) -> Generation:
        found = loop(prompt, new)
        return Generation(found.tokens, found.prefill_seconds, found.decode_seconds)

    return run


def onnxruntime_genai(checkpoint: Path, folder: Path, precision: Precision, provider: ProviderName) -> Generate:
    """Return a loop of onnxruntime-genai over a model of its own builder. Raises Unavailable."""
    try:
        import onnxruntime_genai as genai
        from benchmarks.peers import onnxruntime_genai as peer
    except ImportError as error:
        raise Unavailable(f"onnxruntime-genai is not installed: {error}") from error
    with TemporaryDirectory(prefix="cuda_speed.") as linked:
        link_with_tokenizer(checkpoint, Path(linked))
        peer.convert(Path(linked), folder, precision, provider)
    return peer.loop(genai.Model(str(folder)))


def transformers_loop(checkpoint: Path, precision: Precision, device: Device, *, compiled: bool) -> Generate:
    """Return a bare loop of transformers in float16 over a static cache; compiled: its steps. Raises Unavailable."""
    if precision != "fp16":
        raise Unavailable(f"transformers has no {precision} weights of its own")
    try:
        import transformers

        from edgeformer.transformers_backend.transformers_shim import cache_argument
    except ImportError as error:
        raise Unavailable(f"transformers is not installed: {error}") from error
    dtype = torch.float16 if device == "cuda" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval().to(device)
    step = torch.compile(model.forward, mode="reduce-overhead") if compiled else model.forward
    caches: dict[int, Any] = {}

    @torch.inference_mode()
    def run(prompt: list[int], new: int) -> Generation:
        length = len(prompt) + new
        if length not in caches:
            caches[length] = transformers.StaticCache(config=model.config, max_cache_len=length)
        cache = caches[length]
        cache.reset()

        def tokens() -> Iterator[int]:
            ids, place, forward = prompt, 0, model.forward
            while True:
                places = torch.arange(place, place + len(ids), device=device)
                given = {cache_argument(model.forward): cache, "position_ids": places[None]}
                logits = forward(torch.tensor([ids], device=device), **given, use_cache=True, logits_to_keep=1).logits
                place += len(ids)
                ids, forward = [int(logits[0, -1].argmax())], step
                yield ids[0]

        return timed(tokens(), new)

    return run


def measure(checkpoint: Path, folder: Path, precision: Precision, device: Device = "cuda") -> dict[str, Any]:
    """Return the speeds of all runtimes in tokens/s, and why those without a speed have none.

    folder: for the models that are exported. `bytes_per_token` are those that a decode step must read, weights and
    cache, and `flops_per_prompt_token` those that a prompt must compute: both of edgeformer's own graph.
    """
    provider: ProviderName = "cuda" if device == "cuda" else "cpu"
    bundle = folder / "edgeformer"
    if not (bundle / "edgeformer.json").is_file():
        export_model(checkpoint, bundle, precision=precision, provider=provider, verify=None)
    contenders: dict[str, Callable[[], Generate]] = {
        "edgeformer": lambda: edgeformer(bundle, provider, graphs=False),
        "edgeformer, CUDA graphs": lambda: edgeformer(bundle, provider, graphs=True),
        "onnxruntime-genai": lambda: onnxruntime_genai(checkpoint, folder / "genai", precision, provider),
        "transformers, eager": lambda: transformers_loop(checkpoint, precision, device, compiled=False),
        "transformers, compiled": lambda: transformers_loop(checkpoint, precision, device, compiled=True),
    }
    manifest = Manifest.read(bundle)
    prompt = np.random.default_rng(0).integers(3, manifest.vocab_size, PROMPT).tolist()
    costs, found = Costs(manifest, last_logits=True), dict[str, Any]()
    read, computed = costs.decode(PROMPT, 1, NEW_TOKENS), costs.prefill(PROMPT, 1)
    assert read is not None and computed is not None
    for name, load in contenders.items():
        found[name] = _timed(load, prompt)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return {"runtimes": found, "bytes_per_token": read.bytes, "flops_per_prompt_token": computed.flops}


def _timed(load: Callable[[], Generate], prompt: Sequence[int]) -> dict[str, Any]:
    """Return the speeds of one runtime, or the reason why it has none."""
    try:
        run = load()
        runs = [run(list(prompt), NEW_TOKENS) for _ in range(ROUNDS + 2)][2:]
    except Exception as error:  # of another runtime; the others go on
        return {"reason": f"{type(error).__name__}: {error}"}
    return {
        "prefill_tokens_per_second": len(prompt) / median(each.first_seconds for each in runs),
        "decode_tokens_per_second": (NEW_TOKENS - 1) / median(each.rest_seconds for each in runs),
        "tokens": runs[-1].tokens[:8],
    }


def fractions(speed: dict[str, Any], measured: dict[str, Any], most: dict[str, float]) -> tuple[float, float]:
    """Return which fraction of the GPU's FLOP/s a prompt takes, and which of its bandwidth a step."""
    return (
        speed["prefill_tokens_per_second"] * measured["flops_per_prompt_token"] / most["flops_per_second"],
        speed["decode_tokens_per_second"] * measured["bytes_per_token"] / most["bytes_per_second"],
    )


if __name__ == "__main__":
    print(json.dumps(peaks(), indent=1))
