"""Run a bundle on a provider, for `check_cuda.py`: its nodes, its speed, CUDA graphs, and many requests at once."""

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edgeformer.errors import RequestError
from edgeformer.manifest.providers import ProviderName
from edgeformer.runtime import CudaOptions, Engine, load, load_causal_lm
from edgeformer.runtime.sessions.session import profiled
from edgeformer.runtime.steps.device import SHORTEST
from edgeformer.runtime.tasks.causal_lm import CausalLM

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.decoding.bench_decode import edgeformer_loop

PROMPTS = (128, 512)
NEW_TOKENS = 64
ROUNDS = 3
REQUESTS = 16
"""Requests of an engine; its rows are half as many."""
ANSWER = 32
"""Tokens of an answer to them."""
STEPS = 8
"""Steps whose logits are compared with and without CUDA graphs."""


def profile(bundle: Path, provider: ProviderName) -> dict[str, Any]:
    """Run a prompt and one step under onnxruntime's profiler, and return which provider ran each node.

    Integer arithmetic on shapes belongs on the CPU. `copies` counts nodes that copy tensors between CPU and GPU.
    """
    with tempfile.TemporaryDirectory() as folder, profiled(Path(folder)):
        model = load(bundle, provider)
        session, decoder = model.session, model.new_decoder(1, 16)
        decoder.prefill(0, range(8))
        decoder.decode_one_token([0])
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event["args"] for event in events if event["cat"] == "Node" and "provider" in event["args"]]
    ran = {kernel["node_index"]: kernel for kernel in kernels}  # count each node once, of two runs
    on_the_cpu = Counter(args["op_name"] for args in ran.values() if args["provider"] == "CPUExecutionProvider")
    copies = Counter(args["op_name"] for args in ran.values() if args["op_name"].startswith("Memcpy"))
    return {
        "providers_of_the_session": session.get_providers(),
        "by_provider": dict(Counter(args["provider"] for args in ran.values())),
        "on_the_cpu": dict(on_the_cpu.most_common()),
        "copies": dict(copies),
    }


def cuda_graphs(bundle: Path) -> dict[str, Any]:
    """Return the speeds with CUDA graphs, and whether steps have the same logits with and without them.

    Where onnxruntime cannot capture the graph, as in float32, the field `refused` says so. Steps of one row and of
    three run twice, so that the second request replays steps that the first one captured.
    """
    options = CudaOptions(enable_cuda_graph=True)
    try:
        launched, replayed = load_causal_lm(bundle, "cuda"), load_causal_lm(bundle, "cuda", provider_options=options)
    except RequestError as error:
        return {"refused": str(error)}
    same = all(
        np.array_equal(step_logits(launched, rows), step_logits(replayed, rows)) for rows in (1, 3) for _ in range(2)
    )
    return {"same_logits": same, "speeds": speeds(bundle, "cuda", options)}


def step_logits(model: CausalLM, rows: int) -> Any:
    """Return the logits of greedy steps [STEPS, rows, V], over a cache of the length of captured ones."""
    decoder = model.new_decoder(rows, min(SHORTEST, model.manifest.context_length))
    tokens = [
        int(decoder.prefill(row, prompt).argmax()) for row, prompt in enumerate(texts(model.manifest.vocab_size, rows))
    ]
    found = []
    for _ in range(STEPS):
        found.append(decoder.decode_one_token(tokens).copy())
        tokens = found[-1].argmax(1).tolist()
    return np.stack(found)


def engine(bundle: Path, *, graphs: bool) -> dict[str, Any]:
    """Return tokens/s of requests one by one and in an engine, and which fraction of them gets the same tokens.

    Sums of a batch are of another order than those of a row alone, so in float16 some of them may differ.
    """
    model = load_causal_lm(bundle, "cuda", provider_options=CudaOptions(enable_cuda_graph=graphs))
    prompts, seconds = texts(model.manifest.vocab_size, REQUESTS), {}
    model.generate(prompts[0], max_new_tokens=ANSWER, ignore_eos=True)
    started = time.perf_counter()
    alone = [model.generate(prompt, max_new_tokens=ANSWER, ignore_eos=True).token_ids for prompt in prompts]
    seconds["alone"] = time.perf_counter() - started
    with Engine(model, max_rows=REQUESTS // 2, memory=2**30) as running:
        for _ in range(2):  # the first time captures
            started = time.perf_counter()
            streams = [running.submit(prompt, max_new_tokens=ANSWER, ignore_eos=True) for prompt in prompts]
            together = [stream.finish().token_ids for stream in streams]
            seconds["engine"] = time.perf_counter() - started
    same = sum(one == other for one, other in zip(alone, together, strict=True))
    count = REQUESTS * ANSWER
    return {"same_requests": same / REQUESTS} | {
        f"{name}_tokens_per_second": count / each for name, each in seconds.items()
    }


def texts(vocab_size: int, count: int) -> list[list[int]]:
    """Return token ids of prompts of 8 to 87 tokens."""
    rng = np.random.default_rng(count)
    return [rng.integers(0, vocab_size, rng.integers(8, 88)).tolist() for _ in range(count)]


def speeds(bundle: Path, provider: ProviderName, cuda: CudaOptions | None = None) -> dict[str, Any]:
    """Return prefill and decode throughput in tokens/s for each prompt length: medians, after one untimed run."""
    model = load(bundle, provider=provider, provider_options=cuda)
    run = edgeformer_loop(model)
    measured: dict[str, Any] = {"providers_of_the_session": model.session.get_providers()}
    for length in PROMPTS:
        if length + NEW_TOKENS > model.manifest.context_length:
            continue
        prompt = np.random.default_rng(0).integers(0, model.manifest.vocab_size, length).tolist()
        runs = [run(prompt, NEW_TOKENS) for _ in range(ROUNDS + 1)][1:]
        measured[f"prompt_{length}"] = {
            "prefill_tokens_per_second": length / median(run.prefill_seconds for run in runs),
            "decode_tokens_per_second": (NEW_TOKENS - 1) / median(run.decode_seconds for run in runs),
        }
    return measured
