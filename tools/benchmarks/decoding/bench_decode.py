"""Measure decode and prefill throughput of a decoder bundle, of a minimal onnxruntime loop and of eager PyTorch.

    python tools/benchmarks/decoding/bench_decode.py /tmp/smollm2-135m-onnx --checkpoint /tmp/smollm2-135m

Three contenders continue the same prompt greedily, on the CPU, with the same number of threads, in alternation
(interleave.py):

- edgeformer: the loop of `edgeformer run`, `edgeformer.runtime.generation.generate.run_rows`;
- bare: the least that an onnxruntime client can do: bind the cache once, run the whole prompt at once, and take an
  argmax after each step. It shares edgeformer's session, because two sessions of one graph differ in speed by several
  percent (by where their memory was allocated), which is more than the loops differ;
- eager (with --checkpoint): transformers in float32 with its own dynamic cache, in an equally bare loop without the
  overhead of `generate`. Like `generate`, it computes the logits of the prompt's last token only.

An end-of-text token never ends a run. edgeformer and bare must generate the same tokens. Prints prefill and decode
throughput in tokens/s, the speedup of edgeformer over each contender within a round, and decode latency in ms/token.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from edgeformer.runtime import CausalLM, load
from edgeformer.runtime.generation.generate import run_rows
from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.sampling.sampling import Sampling
from edgeformer.runtime.sessions.session import usable_cores
from edgeformer.runtime.text.streaming import TextStream

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.command import measurement, publish
from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, run_interleaved


@dataclass(frozen=True)
class Run:
    """One continued prompt: the new tokens and the seconds. The first token counts as prefill, the others as decode."""

    tokens: list[int]
    prefill_seconds: float
    decode_seconds: float


Contender = Callable[[Sequence[int], int], Run]
"""Continue a prompt by N tokens: (prompt ids, N) → Run."""


def edgeformer_loop(model: CausalLM) -> Contender:
    """Return the loop of `edgeformer run`, without an end-of-text token."""

    def run(prompt: Sequence[int], new: int) -> Run:
        stream = TextStream(model.tokenizer) if model.tokenizer else None
        row = Row(prompt, new, frozenset(), Sampling(), stream)
        run_rows(model.new_decoder(1, len(prompt) + new), [row])
        return Run(row.tokens, row.prefill_seconds, row.decode_seconds)

    return run


def bare_loop(session: Any) -> Contender:
    """Return a minimal loop over an onnxruntime session, without code of edgeformer."""
    shapes = {value.name: value.shape for value in session.get_inputs() if value.name.startswith("past_key_values.")}
    dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}
    cache_dtype = dtypes[next(value.type for value in session.get_inputs() if value.name in shapes)]
    vocab_size = next(value.shape[-1] for value in session.get_outputs() if value.name == "logits")

    def run(prompt: Sequence[int], new: int) -> Run:
        capacity = len(prompt) + new
        caches = {name: np.empty((1, heads, capacity, dim), cache_dtype) for name, (_, heads, _, dim) in shapes.items()}
        ones = np.ones(capacity, np.int64)

        def bind(tokens: np.ndarray, logits: np.ndarray) -> Any:
            binding = session.io_binding()
            binding.bind_input("input_ids", "cpu", 0, np.int64, tokens.shape, tokens.ctypes.data)
            binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
            for past, cache in caches.items():
                present = past.replace("past_key_values", "present")
                binding.bind_input(past, "cpu", 0, cache.dtype, cache.shape, cache.ctypes.data)
                binding.bind_output(present, "cpu", 0, cache.dtype, cache.shape, cache.ctypes.data)
            return binding

        def step(binding: Any, length: int) -> None:
            binding.bind_input("attention_mask", "cpu", 0, np.int64, (1, length), ones.ctypes.data)
            session.run_with_iobinding(binding)

        ids, prompt_logits = np.array([prompt], np.int64), np.empty((1, len(prompt), vocab_size), np.float32)
        prefill = bind(ids, prompt_logits)
        token, logits = np.empty((1, 1), np.int64), np.empty((1, 1, vocab_size), np.float32)
        decode = bind(token, logits)

        start = time.perf_counter()
        step(prefill, len(prompt))
        tokens = [int(prompt_logits[0, -1].argmax())]
        middle = time.perf_counter()
        for length in range(len(prompt) + 1, capacity):
            token[0, 0] = tokens[-1]
            step(decode, length)
            tokens.append(int(logits.argmax()))
        return Run(tokens, middle - start, time.perf_counter() - middle)

    return run


def eager_loop(checkpoint: Path, threads: int) -> Contender:
    """Return a loop over the same model in transformers: float32, its default attention, no compilation."""
    import torch
    import transformers

    from edgeformer.transformers_backend.transformers_shim import cache_argument

    torch.set_num_threads(threads)
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def run(prompt: Sequence[int], new: int) -> Run:
        with torch.inference_mode():
            given = {cache_argument(model.forward): transformers.DynamicCache(config=model.config)}
            ids = torch.tensor([prompt])
            start = time.perf_counter()
            logits = model(ids, **given, use_cache=True, logits_to_keep=1).logits
            tokens = [int(logits[0, -1].argmax())]
            middle = time.perf_counter()
            for _ in range(new - 1):
                logits = model(torch.tensor([tokens[-1:]]), **given, use_cache=True).logits
                tokens.append(int(logits[0, -1].argmax()))
            return Run(tokens, middle - start, time.perf_counter() - middle)

    return run


def check_same_tokens(ours: Sequence[int], bare: Sequence[int]) -> None:
    """Raise ClickException if the two loops generated different tokens: one of them is then wrong."""
    same = agreeing(ours, bare)
    if same < len(bare) or len(ours) != len(bare):
        raise click.ClickException(
            f"the loops disagree from new token {same} on: edgeformer {list(ours[same : same + 5])}, bare "
            f"{list(bare[same : same + 5])}. One of them feeds the graph wrongly; no speed is reported."
        )


def agreeing(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the number of equal tokens before the first difference."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def report(runs: dict[str, list[Run]], prompt: int) -> dict[str, Any]:
    """Return speeds, and ratios of edgeformer to each contender within a round, as plain data."""

    def prefill(run: Run) -> float:
        return prompt / run.prefill_seconds

    def decode(run: Run) -> float:
        return (len(run.tokens) - 1) / run.decode_seconds

    speeds: dict[str, Any] = {name: {} for name in runs}
    ratios: dict[str, Any] = {name: {} for name in runs if name != "edgeformer"}
    for phase, speed in {"prefill": prefill, "decode": decode}.items():
        measured = {name: [speed(run) for run in done] for name, done in runs.items()}
        for table, spreads in zip((speeds, ratios), compare(measured, "edgeformer"), strict=True):
            for name, spread in spreads.items():
                table[name][phase] = spread
    ours = runs["edgeformer"]
    agree = {name: agreeing(ours[0].tokens, other[0].tokens) for name, other in runs.items() if name != "edgeformer"}
    return {"tokens_per_second": speeds, "edgeformer_over": ratios, "same_leading_tokens": agree}


def print_report(data: dict[str, Any], file: Path | None) -> None:
    """Print the report as a table."""
    title = (
        "{bundle}, {precision}: {prompt_tokens} + {new_tokens} tokens, {threads} threads, median (range) of {rounds}"
    )
    table = Table(title=title.format(**data), title_justify="left", caption="speedup: edgeformer over this one")
    for column in ("", "prefill tokens/s", "speedup", "decode tokens/s", "speedup", "decode ms/token"):
        table.add_column(column, justify="right" if column else "left")
    for name, speeds in data["tokens_per_second"].items():
        ratios = data["edgeformer_over"].get(name, {})
        table.add_row(
            name,
            cell(speeds["prefill"], 1),
            cell(ratios.get("prefill"), 2),
            cell(speeds["decode"], 1),
            cell(ratios.get("decode"), 2),
            f"{1000 / speeds['decode']['median']:.3f}",
        )
    agreement = (
        f"{count} of {data['new_tokens']} tokens agree with {name} before the first difference"
        for name, count in data["same_leading_tokens"].items()
    )
    publish(data, file, table, *agreement)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The Hugging Face folder that it was exported from, to compare with eager PyTorch.",
)
@click.option("--prompt", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of the prompt.")
@click.option("--new", type=click.IntRange(min=2), default=64, show_default=True, help="Tokens to generate.")
@measurement(rounds=5)
def main(
    bundle: Path, checkpoint: Path | None, prompt: int, new: int, rounds: int, threads: int | None, file: Path | None
) -> None:
    """Measure one bundle."""
    threads = threads or usable_cores()
    model = load(bundle, provider="cpu", threads=threads)
    contenders = {
        "edgeformer": edgeformer_loop(model),
        "bare": bare_loop(model.session),
    }
    if checkpoint:
        contenders["eager"] = eager_loop(checkpoint, threads)
    ids = np.random.default_rng(0).integers(0, model.manifest.vocab_size, prompt).tolist()
    runs_of = {name: partial(run, ids, new) for name, run in contenders.items()}
    runs = run_interleaved(runs_of, rounds, pause_seconds=0)  # the loops share one session and its threads
    for ours, bare in zip(runs["edgeformer"], runs["bare"], strict=True):
        check_same_tokens(ours.tokens, bare.tokens)
    data = {
        "bundle": model.manifest.name,
        "precision": model.manifest.plan.precision,
        "prompt_tokens": prompt,
        "new_tokens": new,
        "rounds": rounds,
        "threads": threads,
        **report(runs, prompt),
        "environment": environment(),
    }
    print_report(data, file)


if __name__ == "__main__":
    main()
