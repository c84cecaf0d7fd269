"""Measure generation by an encoder-decoder bundle, by transformers and by CTranslate2.

    python tools/benchmarks/encoders/bench_seq2seq.py [--ctranslate2-python /tmp/ct2venv/bin/python]

The model has T5-small's geometry and seeded random weights. Each system reads the same source texts and generates the
same number of tokens, greedily or with --beams, on the CPU, with the same number of threads: in float32, or edgeformer
and CTranslate2 with int8 weights and the defaults of each. The clock covers the encoder and the decode loop, from token
ids to token ids:

- edgeformer: `generate` of a loaded bundle;
- transformers sdpa: `generate` in float32 with its cache and torch's fused attention, not compiled;
- CTranslate2: `translate_batch` of the same folder, converted. It runs and is timed in a process of its own
  (ctranslate2_worker.py), because its converter needs transformers 4. An environment for it:

      python -m venv /tmp/ct2venv && /tmp/ct2venv/bin/pip install ctranslate2 'transformers<5' torch

The embedding of the end-of-text token is zero, and so is its logit (weights are tied): among thousands of random logits
no system selects it, so no run ends early. In float32 all systems must generate the same tokens greedily. Prints new
tokens/s and edgeformer's speedup.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
from rich.table import Table

from edgeformer.manifest.parts import Precision
from edgeformer.manifest.quantization import Activations, QuantizationOverrides, make_quantization

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.command import measurement, publish
from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, run_interleaved

COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}
"""CTranslate2's name of each precision."""

WORKER = Path(__file__).parent / "ctranslate2_worker.py"

PAD, EOS, FIRST_TEXT = 0, 1, 3
"""T5's ids; 2 is unknown. Decoding starts with the padding token."""

T5: dict[str, Any] = {
    "feed_forward_proj": "relu", "dropout_rate": 0.0, "tie_word_embeddings": True,
    "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
    "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD,
}  # fmt: skip

GEOMETRIES: dict[str, dict[str, Any]] = {
    "t5-small": T5 | {
        "d_model": 512, "d_kv": 64, "num_heads": 8, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": 6,
        "vocab_size": 32128,
    },
    # Small sizes for tests.
    "tiny": T5 | {
        "d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2,
        "vocab_size": 512,
    },
}  # fmt: skip

EMBEDDING_SCALE, QUERY_SCALE = 0.05, 4
"""Standard deviations relative to T5's own initialization.

With T5's own, a tied model repeats one token forever: its embeddings outweigh the layers, and attention is almost
uniform.
"""


@dataclass(frozen=True)
class Run:
    """One generated batch: the new tokens of each source, without the start token, and the seconds from ids to ids."""

    tokens: list[list[int]]
    seconds: float


System = Callable[[Sequence[Sequence[int]], int, int], Run]
"""Generate N tokens for each source text with a number of beams: (sources, N, beams) → Run."""


def write_checkpoint(geometry: str, folder: Path, seed: int = 0) -> None:
    """Save a T5 of random weights in transformers' format. geometry: a key of GEOMETRIES."""
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**GEOMETRIES[geometry]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.normal_()  # as large as attention scores, so that positions matter
            elif name.endswith(".q.weight"):
                parameter.mul_(QUERY_SCALE)
        model.shared.weight.mul_(EMBEDDING_SCALE)
        model.shared.weight[EOS] = 0
    model.save_pretrained(folder)


def edgeformer_system(bundle: Path, threads: int) -> System:
    """Return edgeformer's `generate` of a loaded bundle."""
    from edgeformer.runtime import load

    model = load(bundle, provider="cpu", threads=threads)

    def run(sources: Sequence[Sequence[int]], new: int, beams: int) -> Run:
        options = {"num_beams": beams} if beams > 1 else {}
        start = time.perf_counter()
        generations = model.generate(sources, max_new_tokens=new, **options)
        seconds = time.perf_counter() - start
        return Run([list(generation.token_ids) for generation in generations], seconds)

    return run


def transformers_system(checkpoint: Path, threads: int) -> System:
    """Return transformers' `generate`: float32, its default cache, no compilation."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.disable_progress_bar()
    model = transformers.T5ForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()

    def run(sources: Sequence[Sequence[int]], new: int, beams: int) -> Run:
        with torch.inference_mode():
            start = time.perf_counter()
            ids = torch.tensor(sources)
            generated = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                num_beams=beams,
                do_sample=False,
                use_cache=True,
            ).tolist()
            seconds = time.perf_counter() - start
        return Run([row[1:] for row in generated], seconds)  # without the start token

    return run


@contextmanager
def ctranslate2_system(
    python: Path, checkpoint: Path, converted: Path, threads: int, precision: str = "fp32"
) -> Iterator[tuple[System, dict[str, str]]]:
    """Yield CTranslate2 in its own interpreter, and its versions. Raises ClickException when the process ends."""
    command = [str(part) for part in (python, WORKER, checkpoint, converted, threads, COMPUTE_TYPES[precision])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def answer() -> dict[str, Any]:
            line = answers.readline()
            if not line:
                raise click.ClickException("the CTranslate2 worker ended; what it said is above.")
            return json.loads(line)

        def run(sources: Sequence[Sequence[int]], new: int, beams: int) -> Run:
            print(json.dumps({"sources": sources, "new": new, "beams": beams}), file=requests, flush=True)
            return Run(**answer())

        yield run, answer()


def same_tokens(ours: Run, other: Run) -> int:
    """Return the number of tokens that all sources agree on before the first difference."""

    def agreeing(left: Sequence[int], right: Sequence[int]) -> int:
        pairs = enumerate(zip(left, right, strict=False))
        return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))

    return min(agreeing(a, b) for a, b in zip(ours.tokens, other.tokens, strict=True))


def check_lengths(name: str, run: Run, new: int) -> None:
    """Raise ClickException if a system generated another number of tokens."""
    lengths = {len(tokens) for tokens in run.tokens}
    if lengths != {new}:
        raise click.ClickException(f"{name} generated {sorted(lengths)} tokens instead of {new}; no speed is reported.")


def report(runs: dict[str, list[Run]], new: int, beams: int, precision: str = "fp32") -> dict[str, Any]:
    """Return speeds, ratios and agreement as plain data.

    Raises ClickException if a system stopped early, or if greedy systems disagree in float32: one of them is then
    wrong. With beams (where two hypotheses can score alike) and with quantized weights, disagreement is only reported.
    """
    for name, done in runs.items():
        for run in done:
            check_lengths(name, run, new)
    ours = runs["edgeformer"]
    agree = {
        name: min(same_tokens(mine, other) for mine, other in zip(ours, done, strict=True))
        for name, done in runs.items()
        if name != "edgeformer"
    }
    for name, same in agree.items():
        if beams == 1 and same < new and precision == "fp32":
            raise click.ClickException(
                f"edgeformer and {name} disagree from new token {same} on. One of them computes another model; no "
                "speed is reported."
            )
    speeds, ratios = compare(
        {name: [len(run.tokens) * new / run.seconds for run in done] for name, done in runs.items()}, "edgeformer"
    )
    return {"tokens_per_second": speeds, "edgeformer_over": ratios, "same_leading_tokens": agree}


def print_report(data: dict[str, Any], file: Path | None) -> None:
    """Print the report as a table."""
    title = (
        "{geometry}, {precision}: {source_tokens} + {new_tokens} tokens, batch {batch}, beams {beams}, "
        "{threads} threads, median (range) of {rounds}"
    )
    table = Table(title=title.format(**data), title_justify="left", caption="speedup: edgeformer over this one")
    for column in ("", "tokens/s", "speedup"):
        table.add_column(column, justify="right" if column else "left")
    for name, speed in data["tokens_per_second"].items():
        table.add_row(name, cell(speed, 1), cell(data["edgeformer_over"].get(name), 2))
    lines = [
        f"{count} of {data['new_tokens']} tokens agree with {name} before the first difference"
        for name, count in data["same_leading_tokens"].items()
    ]
    versions = ", ".join(f"{name} {value}" for name, value in data["ctranslate2_environment"].items())
    publish(data, file, table, *lines, versions or "CTranslate2 was left out: --ctranslate2-python was not given.")


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--geometry", type=click.Choice(list(GEOMETRIES)), default="t5-small", show_default=True)
@click.option("--precision", type=click.Choice(list(COMPUTE_TYPES)), default="fp32", show_default=True)
@click.option(
    "--activations",
    type=click.Choice(get_args(Activations)),
    help="Activations of edgeformer's int8, as in `edgeformer export`.",
)
@click.option("--source", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of each source.")
@click.option("--new", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens to generate.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Source texts per batch.")
@click.option("--beams", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--ctranslate2-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Python interpreter of an environment with CTranslate2.",
)
@measurement(rounds=10, threads=2)
def main(
    geometry: str,
    precision: Precision,
    activations: Activations | None,
    source: int,
    new: int,
    batch: int,
    beams: int,
    rounds: int,
    threads: int,
    ctranslate2_python: Path | None,
    file: Path | None,
) -> None:
    """Measure one geometry."""
    from edgeformer.export import export_model

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench_seq2seq.")))
        write_checkpoint(geometry, folder / "checkpoint")
        quantization = (
            make_quantization(precision, QuantizationOverrides(activations=activations)) if activations else None
        )
        export_model(
            folder / "checkpoint", folder / "bundle", precision=precision, quantization=quantization, verify=None
        )
        systems = {
            "edgeformer": edgeformer_system(folder / "bundle", threads),
            "transformers sdpa": transformers_system(folder / "checkpoint", threads),
        }
        versions: dict[str, str] = {}
        if ctranslate2_python:
            systems["ctranslate2"], versions = stack.enter_context(
                ctranslate2_system(ctranslate2_python, folder / "checkpoint", folder / "converted", threads, precision)
            )
        vocab_size = GEOMETRIES[geometry]["vocab_size"]
        sources = np.random.default_rng(0).integers(FIRST_TEXT, vocab_size, (batch, source)).tolist()
        runs = run_interleaved({name: partial(run, sources, new, beams) for name, run in systems.items()}, rounds)
    data = {
        "geometry": geometry,
        "precision": precision,
        "activations": activations,
        "source_tokens": source,
        "new_tokens": new,
        "batch": batch,
        "beams": beams,
        "rounds": rounds,
        "threads": threads,
        **report(runs, new, beams, precision),
        "environment": environment(),
        "ctranslate2_environment": versions,
    }
    print_report(data, file)


if __name__ == "__main__":
    main()
