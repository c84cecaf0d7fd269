"""Break a batch job at random moments, and measure it against an engine and a script over transformers' pipelines.

    python tools/benchmarks/serving/bench_batch.py kills BUNDLE --rows 200000 --kills 20 --folder /tmp/kills
    python tools/benchmarks/serving/bench_batch.py speed BUNDLE --rows 20000 --checkpoint tiny-translate
    python tools/benchmarks/serving/bench_batch.py nodes BUNDLE
    python tools/benchmarks/serving/bench_batch.py overhead BUNDLE

`kills` runs `edgeformer batch` on a Ray cluster of three nodes on this machine (a head without workers, two nodes of a
core each), kills a worker, a node or the driver at random moments, and goes on until all rows are committed. Then it
compares every row with a plain loop over `model.generate` or `model.embed`. It is seeded, goes on with a folder that
holds a job, and writes its kills into kills.jsonl.

`speed` alternates: the job on this machine, an `Engine` or `embed` in one process, and with --checkpoint transformers'
`generate` in batches of 8 to 256, of the texts as they come and sorted by characters or by tokens, each with one
thread, or, with --workers, a job of so many workers and transformers with so many threads. It prints rows/s, the job's
with and without its start, and the largest memory of a worker for the rows and for a tenth of them.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
import psutil

from edgeformer.batch.job import committed, open_job
from edgeformer.batch.options import MAX_ROWS, SHARD_ROWS, BatchOptions
from edgeformer.batch.run import _commits, _prepare, _ray
from edgeformer.batch.storage import Folder
from edgeformer.batch.worker import Assignment, ShardWriter
from edgeformer.runtime import Encoder, Engine, Seq2SeqLM, load

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.serving.batch_kills import Killer, Nodes, break_job, verify, workers

WORDS = ("one", "two", "cat", "dog", "bird", "sees", "likes", "the", "a", "red", "old", "house", "friend", "runs")
BATCHES = 8, 32, 128, 256
"""Texts that transformers runs together."""

NEW_TOKENS = 16
"""Tokens of a text at most."""


def write_rows(path: Path, count: int, seed: int) -> list[str]:
    """Write a JSONL file of short texts; return them."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]
    if not path.exists():
        lines = (json.dumps({"id": index, "text": text}) + "\n" for index, text in enumerate(texts))
        path.write_text("".join(lines), encoding="utf-8")
    return texts


def command(bundle: Path, rows: Path, output: Path, *more: str) -> list[str]:
    """Return the command line of a job."""
    generation = [] if isinstance(load(bundle, "cpu", 1), Encoder) else ["--max-new-tokens", str(NEW_TOKENS)]
    beams = ["--num-beams", "1"] if generation and isinstance(load(bundle, "cpu", 1), Seq2SeqLM) else []
    return [sys.executable, "-m", "edgeformer", "batch", str(bundle), str(rows), str(output), "--column", "text",
            *generation, *beams, "--json", *more]  # fmt: skip


@click.group()
def main() -> None:
    """Break and measure batch jobs."""


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--rows", default=200_000, show_default=True)
@click.option("--kills", default=20, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="For the rows and the shards.")
@click.option("--shard-rows", default=256, show_default=True)
@click.option("--most-seconds", default=1800.0, show_default=True)
def kills(bundle: Path, rows: int, kills: int, seed: int, folder: Path, shard_rows: int, most_seconds: float) -> None:
    """Kill workers, nodes and drivers of a job, then compare its rows with a plain loop."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = write_rows(folder / "rows.jsonl", rows, seed)
    temporary = tempfile.mkdtemp(prefix="ef")
    nodes = Nodes(temporary)
    began = time.monotonic()
    try:
        run = command(bundle, folder / "rows.jsonl", folder / "shards", "--shard-rows", str(shard_rows))
        shards = -(-rows // shard_rows)
        killer = Killer(nodes, folder / "shards", folder / "kills.jsonl", shards, kills, seed)
        counts = break_job(killer, [*run, "--address", nodes.address], most_seconds)
    finally:
        nodes.close()
        shutil.rmtree(temporary, ignore_errors=True)
    seconds = time.monotonic() - began
    click.echo(f"all shards are there after {seconds:.0f} s; now the plain loop", err=True)
    verify(bundle, texts, folder / "shards", NEW_TOKENS)
    click.echo(json.dumps({"rows": rows, **counts, "seconds": round(seconds, 1), "equal": True}))


def timed(function: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def job(bundle: Path, rows: Path, output: Path, *more: str) -> tuple[dict[str, Any], int]:
    """Run a job; return its counts and the largest resident bytes of a worker. more: options."""
    shutil.rmtree(output, ignore_errors=True)
    run = subprocess.Popen(command(bundle, rows, output, *more), stdout=subprocess.PIPE)
    largest = [0]

    def watch() -> None:
        while run.poll() is None:
            for process in workers():
                try:
                    largest[0] = max(largest[0], process.memory_info().rss)
                except psutil.Error:
                    continue
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    printed, _ = run.communicate()
    watcher.join()
    if run.returncode:
        raise click.ClickException(f"the job ended with {run.returncode}.")
    return json.loads(printed), largest[0]


def engine_seconds(bundle: Path, texts: Sequence[str]) -> float:
    """Return the seconds of an engine in this process for all texts, without loading. Encoders run `embed`."""
    model = load(bundle, "cpu", 1)
    if isinstance(model, Encoder):
        return timed(lambda: model.embed(list(texts)))
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS} | (
        {"num_beams": 1} if isinstance(model, Seq2SeqLM) else {}
    )
    with Engine(model, max_rows=MAX_ROWS, max_queue=len(texts)) as engine:

        def run() -> None:
            for stream in [engine.submit(text, **options) for text in texts]:
                stream.finish()

        return timed(run)


def orders_of(texts: Sequence[str], bundle: Path) -> dict[str, Sequence[str]]:
    """Return the texts in the orders in which transformers runs them."""
    encode = load(bundle, "cpu", 1).encode
    by_tokens = sorted(texts, key=lambda text: len(encode(text)))
    return {"": texts, " sorted by characters": sorted(texts, key=len), " sorted by tokens": by_tokens}


def transformers_seconds(checkpoint: Path, bundle: Path, texts: Sequence[str], size: int, threads: int) -> float:
    """Return the seconds of transformers for all texts, in batches of their order."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    torch.set_num_threads(threads)
    kinds = {"encoder": AutoModel, "seq2seq-lm": AutoModelForSeq2SeqLM, "causal-lm": AutoModelForCausalLM}
    task = load(bundle, "cpu", 1).manifest.task
    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), kinds[task].from_pretrained(checkpoint).eval()

    def run(texts: Sequence[str]) -> None:
        for start in range(0, len(texts), size):
            encoded = tokenizer(list(texts[start : start + size]), return_tensors="pt", padding=True)
            with torch.inference_mode():
                if task == "encoder":
                    model(**encoded)
                else:
                    model.generate(**encoded, max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1)

    run(texts[:size])  # the first run of a process is slower
    return timed(lambda: run(texts))


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--rows", type=click.IntRange(SHARD_ROWS + 1), default=20_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Folder that transformers loads, to compare with.")
@click.option("--workers", default=1, show_default=True, help="Workers of the job, and threads of transformers.")
def speed(bundle: Path, rows: int, rounds: int, checkpoint: Path | None, workers: int) -> None:
    """Compare a job with an engine of one thread and with transformers."""
    count = ("--workers", str(workers))
    with tempfile.TemporaryDirectory(prefix="ef") as name:
        folder = Path(name)
        texts = write_rows(folder / "rows.jsonl", rows, 0)
        write_rows(folder / "tenth.jsonl", max(rows // 10, 1), 0)
        for _ in range(rounds):
            whole, memory = job(bundle, folder / "rows.jsonl", folder / "shards", *count)
            _, tenth = job(bundle, folder / "tenth.jsonl", folder / "shards", *count)
            part = texts[: max(rows // 6, 8)]
            figures = {
                "job rows/s": rows / whole["seconds"],
                "job rows/s behind its first shards": (rows - workers * SHARD_ROWS)
                / (whole["seconds"] - whole["startup_seconds"]),
                "engine rows/s": len(part) / engine_seconds(bundle, part),
                "start of the job in s": whole["startup_seconds"],
                "memory of a worker in MB": memory / 1e6,
                "with a tenth of the rows": tenth / 1e6,
            }
            if checkpoint is not None:
                for size, (order, given) in product(BATCHES, orders_of(part, bundle).items()):
                    seconds = transformers_seconds(checkpoint, bundle, given, size, workers)
                    figures[f"transformers rows/s, {size}{order} together"] = len(part) / seconds
            click.echo(json.dumps({label: round(value, 1) for label, value in figures.items()}))


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--rows", default=12_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--shard-rows", default=256, show_default=True)
def nodes(bundle: Path, rows: int, rounds: int, shard_rows: int) -> None:
    """Compare jobs on one and on two nodes of a core each, by turns."""
    with tempfile.TemporaryDirectory(prefix="ef") as name:
        folder = Path(name)
        write_rows(folder / "rows.jsonl", rows, 0)
        cluster = Nodes(name)
        try:
            for _ in range(rounds):
                rates = {}
                for count in (1, 2):
                    more = ("--workers", str(count), "--address", cluster.address, "--shard-rows", str(shard_rows))
                    done, _ = job(bundle, folder / "rows.jsonl", folder / "shards", *more)
                    seconds = done["seconds"] - done["startup_seconds"]
                    rates[f"rows/s of {count}"] = round((rows - count * shard_rows) / seconds, 1)
                click.echo(json.dumps(rates))
        finally:
            cluster.close()


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--pieces", default=1000, show_default=True)
def overhead(bundle: Path, pieces: int) -> None:
    """Measure what a piece costs beside its rows: of one row, without Ray; then of none, with Ray.

    Pieces that are committed already are scheduled once more, and their workers read the commits alone.
    """
    with tempfile.TemporaryDirectory(prefix="ef") as name:
        folder = Path(name)
        texts = write_rows(folder / "rows.jsonl", pieces, 0)
        prepared, found, _ = _prepare(bundle, str(folder / "rows.jsonl"), BatchOptions(shard_rows=1, column="text"))
        output = str(folder / "shards")
        open_job(Folder(output), prepared)
        writer = ShardWriter(Assignment(job=prepared, bundle=str(bundle), output=output))
        model = load(bundle, "cpu", 1)
        alone = timed(
            lambda: [model.embed(text) if isinstance(model, Encoder) else model.generate(text) for text in texts]
        )
        whole = timed(lambda: [writer.write(piece) for piece in found.pieces])
        listed = timed(lambda: committed(Folder(output), prepared))
        with _ray(None, output):
            stamps = [time.perf_counter() for _ in _commits(found.pieces, bundle, output, prepared, 1, False)]
        figures = {
            "read, write and commit a shard": (whole - alone) / pieces,
            "list a commit": listed / pieces,
            "schedule a piece by Ray": (stamps[-1] - stamps[0]) / (len(stamps) - 1),
        }
        click.echo(json.dumps({label: f"{value * 1000:.2f} ms" for label, value in figures.items()}))


if __name__ == "__main__":
    main()
