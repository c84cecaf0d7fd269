"""Measure throughput and latency of an encoder bundle, of transformers and of onnxruntime's optimized BERT.

    python tools/benchmarks/encoders/bench_encoder.py [--attention sdpa --attention eager]
    python tools/benchmarks/encoders/bench_encoder.py --precision int8 --kernels --optimized-bert

The model has MiniLM-L6's geometry (a BERT of 6 layers) and seeded random weights; all systems run on the CPU with the
same number of threads. There are four workloads: one short text, one long text, a batch of long texts, and a batch
of texts of many lengths, which is padded to the longest. The clock covers lists of token ids to last hidden states:

- edgeformer: `run` of a loaded bundle, in float32, or in int8 with activations quantized per token; with the kernels
  of edgeformer-kernels where they are installed, unless --no-kernels is given;
- transformers: the model in float32 and inference mode, not compiled, with each requested attention (its default is
  sdpa);
- onnxruntime: the same BERT as onnxruntime's own optimizer makes it (optimized_bert.py), in int8 dynamically quantized.

In each round a system repeats its batch for a fixed time and counts with the median, so that short texts are measured
as well as long ones. Prints ms per batch, tokens/s (padding not counted) and edgeformer's speedup. The hidden states of
all systems must agree, to what their precision allows.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.command import measurement, publish
from benchmarks.encoders.optimized_bert import INPUTS, OUTPUT, write_optimized_bert
from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, run_interleaved

GEOMETRIES: dict[str, dict[str, Any]] = {
    "minilm-l6": {
        "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
        "vocab_size": 30522, "hidden_act": "gelu", "max_position_embeddings": 512,
    },
    # Small sizes for tests.
    "tiny": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 512, "hidden_act": "gelu", "max_position_embeddings": 128,
    },
}  # fmt: skip

ATTENTIONS = ("sdpa", "eager")
"""Implementations of attention in transformers: torch's fused operator, or matrix products and a softmax."""

ROUND_SECONDS = 0.2
SHORTEST = 8
"""Tokens of the shortest text in the ragged batch."""

BenchPrecision = Literal["fp32", "int8"]
"""Precisions of edgeformer's bundle and of onnxruntime's optimized BERT; transformers runs in float32."""

TOLERANCES: dict[BenchPrecision, float] = {"fp32": 1e-3, "int8": 0.5}
"""Allowed difference of hidden states, which the last norm scales to about 1.

In fp32 it is 100 times the error of float32. In int8 it is nearly three times the largest difference from float32 that
was measured at MiniLM-L6's geometry (0.18), and a tenth of what the states of two other models differ by.
"""

Texts = list[list[int]]
States = NDArray[np.float32]
System = Callable[[Texts], States]
"""Compute hidden states: token ids of B texts → last states float32 [B, S, E], S being the longest text.

States behind the end of a text are undefined.
"""


def write_checkpoint(geometry: str, folder: Path, seed: int = 0) -> None:
    """Save a BERT of random weights in transformers' format. geometry: a key of GEOMETRIES."""
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    config = transformers.BertConfig(**GEOMETRIES[geometry])
    model = transformers.BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(
                    std=parameter.shape[-1] ** -0.5
                )  # transformers' own initialization leaves attention almost uniform
    model.save_pretrained(folder)


def edgeformer_system(
    checkpoint: Path, bundle: Path, precision: BenchPrecision, kernels: bool | None, threads: int
) -> tuple[System, str]:
    """Export a bundle; return `run` of the loaded model, and what runs its functions.

    kernels: None for those that are installed, if any are. Raises ClickException if they must run and do not.
    """
    from edgeformer.export import export_model
    from edgeformer.runtime import load

    per_token = QuantizationOverrides(activations="per_token")
    quantization = make_quantization(precision, per_token) if precision == "int8" else None
    export_model(checkpoint, bundle, precision=precision, quantization=quantization, verify=None)
    model = load(bundle, provider="cpu", threads=threads, kernels=kernels is not False)
    runs = model.kernels
    if kernels and not runs.kernels:
        raise click.ClickException(f"no kernels run in {precision}, and --kernels asks for them: {runs.describe()}.")
    return lambda texts: model.run(texts)["last_hidden_state"], runs.describe()


def padded(texts: Texts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return token ids and attention mask of texts, [B, S] each, padded on the right."""
    longest = max(map(len, texts))
    ids = np.array([text + [0] * (longest - len(text)) for text in texts])
    return ids, np.array([[1] * len(text) + [0] * (longest - len(text)) for text in texts])


def onnxruntime_system(graph: Path, threads: int) -> System:
    """Return a session of a graph of optimized_bert.py."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return lambda texts: session.run([OUTPUT], dict(zip(INPUTS, padded(texts), strict=True)))[0]


def transformers_system(checkpoint: Path, attention: str, threads: int) -> System:
    """Return transformers in float32, with one of ATTENTIONS and no compilation."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.disable_progress_bar()
    model = transformers.BertModel.from_pretrained(
        checkpoint, add_pooling_layer=False, dtype=torch.float32, attn_implementation=attention
    ).eval()

    def run(texts: Texts) -> States:
        ids, mask = map(torch.from_numpy, padded(texts))
        with torch.inference_mode():
            return model(ids, attention_mask=mask).last_hidden_state.numpy()

    return run


def workloads(short: int, long: int, batch: int, vocab_size: int) -> dict[str, Texts]:
    """Return random texts by workload. The ragged batch contains the shortest and the longest text."""
    rng = np.random.default_rng(0)
    shortest = min(SHORTEST, long)
    lengths = [long, shortest, *rng.integers(shortest, long + 1, batch).tolist()][:batch]

    def texts(lengths: Sequence[int]) -> Texts:
        return [rng.integers(0, vocab_size, length).tolist() for length in lengths]

    return {
        f"1 × {short}": texts([short]),
        f"1 × {long}": texts([long]),
        f"{batch} × {long}": texts([long] * batch),
        f"{batch} × {shortest}…{long}": texts(lengths),
    }


def time_batch(system: System, texts: Texts) -> float:
    """Return the seconds of one run: the median of as many runs as fit into ROUND_SECONDS, and of at least one."""
    seconds: list[float] = []
    while sum(seconds) < ROUND_SECONDS:
        start = time.perf_counter()
        system(texts)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def largest_difference(ours: States, other: States, texts: Texts) -> float:
    """Return the largest difference between hidden states, over the texts' own tokens."""
    pairs = zip(ours, other, texts, strict=True)
    # np.max propagates NaN; max would not.
    return float(np.max([np.abs(a[: len(text)] - b[: len(text)]).max() for a, b, text in pairs]))


def measure(
    systems: dict[str, System], texts: Texts, rounds: int, precision: BenchPrecision = "fp32"
) -> dict[str, Any]:
    """Return one workload's times, speeds, ratios and differences as plain data.

    Raises ClickException if the states differ by more than the precision's tolerance: then a system computes another
    model.
    """
    tolerance = TOLERANCES[precision]
    states = {name: system(texts) for name, system in systems.items()}
    differences = {
        name: largest_difference(states["edgeformer"], other, texts)
        for name, other in states.items()
        if name != "edgeformer"
    }
    for name, difference in differences.items():
        if not difference <= tolerance:  # also true for NaN
            raise click.ClickException(
                f"the states of edgeformer and {name} differ by {difference:.2g}, and {tolerance} is allowed. One of "
                "them computes another model; no speed is reported."
            )
    seconds = run_interleaved({name: partial(time_batch, system, texts) for name, system in systems.items()}, rounds)
    tokens = sum(map(len, texts))
    speeds, ratios = compare(
        {name: [tokens / value for value in values] for name, values in seconds.items()}, "edgeformer"
    )
    return {
        "texts": len(texts),
        "tokens": tokens,
        "milliseconds": {name: 1000 * median(values) for name, values in seconds.items()},
        "tokens_per_second": speeds,
        "edgeformer_over": ratios,
        "largest_difference": differences,
    }


def print_report(data: dict[str, Any], file: Path | None) -> None:
    """Print the report as a table."""
    title = "{geometry}, {precision}: {threads} threads, medians (and range) of {rounds}"
    caption = "first: texts × tokens; speedup: edgeformer over this one"
    table = Table(title=title.format(**data), title_justify="left", caption=caption, pad_edge=False)
    for column in ("", "", "ms", "tokens/s", "speedup"):
        table.add_column(column, justify="right" if column else "left")
    for name, figures in data["workloads"].items():
        for system, speed in figures["tokens_per_second"].items():
            table.add_row(
                name,
                system,
                f"{figures['milliseconds'][system]:,.2f}",
                f"{speed['median']:,.0f}",
                cell(figures["edgeformer_over"].get(system), 2),
            )
        table.add_section()
    largest = max(value for figures in data["workloads"].values() for value in figures["largest_difference"].values())
    publish(data, file, table, f"largest difference of hidden states: {largest:.1e}", f"kernels: {data['kernels']}")


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--geometry", type=click.Choice(list(GEOMETRIES)), default="minilm-l6", show_default=True)
@click.option("--precision", type=click.Choice(get_args(BenchPrecision)), default="fp32", show_default=True)
@click.option(
    "--kernels/--no-kernels",
    default=None,
    help="Fail without edgeformer-kernels, or leave them out. [default: where they are installed]",
)
@click.option("--optimized-bert", is_flag=True, help="Compare with onnxruntime's own optimized BERT, too.")
@click.option(
    "--attention",
    "attentions",
    type=click.Choice(ATTENTIONS),
    multiple=True,
    default=["sdpa"],
    show_default=True,
    help="Attention of transformers; repeatable.",
)
@click.option("--short", type=click.IntRange(min=1), default=16, show_default=True, help="Tokens of the short text.")
@click.option("--long", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of the long texts.")
@click.option("--batch", type=click.IntRange(min=2), default=32, show_default=True, help="Texts in a batch.")
@measurement(rounds=10, threads=2)
def main(
    geometry: str,
    precision: BenchPrecision,
    kernels: bool | None,
    optimized_bert: bool,
    attentions: tuple[str, ...],
    short: int,
    long: int,
    batch: int,
    rounds: int,
    threads: int,
    file: Path | None,
) -> None:
    """Measure one geometry."""
    with tempfile.TemporaryDirectory(prefix="bench_encoder.") as temporary:
        folder = Path(temporary)
        write_checkpoint(geometry, folder / "checkpoint")
        ours, described = edgeformer_system(folder / "checkpoint", folder / "bundle", precision, kernels, threads)
        systems = {"edgeformer": ours}
        for attention in attentions:
            systems[f"transformers {attention}"] = transformers_system(folder / "checkpoint", attention, threads)
        if optimized_bert:
            graph = write_optimized_bert(folder / "checkpoint", folder, quantized=precision == "int8")
            systems["onnxruntime"] = onnxruntime_system(graph, threads)
        loads = workloads(short, long, batch, GEOMETRIES[geometry]["vocab_size"])
        measured = {name: measure(systems, texts, rounds, precision) for name, texts in loads.items()}
    data = {
        "geometry": geometry,
        "precision": precision,
        "kernels": described,
        "rounds": rounds,
        "threads": threads,
        "workloads": measured,
        "environment": environment(),
    }
    print_report(data, file)


if __name__ == "__main__":
    main()
