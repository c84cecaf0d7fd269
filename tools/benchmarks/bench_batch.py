"""Break a batch job at random moments, and measure it against an engine and a script over transformers' pipelines.

    python tools/benchmarks/bench_batch.py kills BUNDLE --rows 200000 --kills 20 --folder /tmp/kills
    python tools/benchmarks/bench_batch.py speed BUNDLE --rows 20000 --checkpoint tiny-translate

`kills` runs `edgeformer batch` on a Ray cluster of three nodes on this machine (a head without workers, two nodes of a
core each), kills a worker, a node or the driver after a random time, and goes on until all rows are committed. Then it
compares every row with a plain loop over `model.generate` or `model.embed`. It is seeded, and goes on with a folder
that holds a job.

`speed` alternates: the job on this machine, an `Engine` or `embed` in one process, and with --checkpoint the pipeline
of transformers with batches of 8, each with one thread. It prints rows/s, the job's with and without its start, and the
largest memory of a worker for the rows and for a tenth of them.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
import pyarrow.parquet as pq

from edgeformer.batch.options import SHARD_ROWS, BatchOptions
from edgeformer.batch.verbs import Runner, choose_verb
from edgeformer.runtime import Encoder, Seq2SeqLM, load

WORDS = ("one", "two", "cat", "dog", "bird", "sees", "likes", "the", "a", "red", "old", "house", "friend", "runs")
NEW_TOKENS = 16
"""Tokens of a text at most."""
OBJECT_STORE = 80 << 20
"""Bytes of the object store of a node: the least that Ray starts with is 75 MB."""


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


class Nodes:
    """A Ray cluster on this machine: a head without workers, and two nodes of one core."""

    def __init__(self, folder: str):
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, "RAY_BACKEND_LOG_LEVEL": "fatal"}
        Path(folder, "ray").mkdir()
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self.add()
        self.add()

    def add(self) -> None:
        """Add a node of one core."""
        self._cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE)

    def replace(self, draw: random.Random) -> None:
        """Kill a node and add another one."""
        nodes = sorted(self._cluster.worker_nodes, key=lambda node: str(node.unique_id))
        self._cluster.remove_node(draw.choice(nodes), allow_graceful=False)
        self.add()

    def close(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


def workers() -> list[psutil.Process]:
    """Return the processes below this one that hold a bundle."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "ShardActor" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def break_job(nodes: Nodes, run: Sequence[str], kills: int, seed: int, most_seconds: float) -> dict[str, int]:
    """Run a job to its end, with kills at random moments; return how many there were of each kind.

    Kills of drivers and workers wait for a first commit of this attempt, so that the job moves on between them.
    """
    draw, counts, began = random.Random(seed), {"worker": 0, "node": 0, "driver": 0, "starts": 0}, time.monotonic()
    while True:
        counts["starts"] += 1
        driver = subprocess.Popen([*run, "--address", nodes.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output = Path(run[6])
        before = len(list(output.glob("_job/commits/*.json")))
        while driver.poll() is None and sum(counts.values()) - counts["starts"] < kills:
            if time.monotonic() - began > most_seconds:
                driver.kill()
                raise click.ClickException(f"the job took longer than {most_seconds:.0f} s. Run it again to go on.")
            if len(list(output.glob("_job/commits/*.json"))) <= before:
                time.sleep(0.05)
                continue
            time.sleep(draw.uniform(0, 2))
            kind = draw.choice(("worker", "node", "driver"))
            if kind == "worker":
                for process in workers()[:1]:
                    process.send_signal(signal.SIGKILL)
            elif kind == "node":
                nodes.replace(draw)
            else:
                driver.kill()
            counts[kind] += 1
            before = len(list(output.glob("_job/commits/*.json")))
        _, errors = driver.communicate()
        if driver.returncode == 0:
            return counts
        if driver.returncode != -signal.SIGKILL:
            raise click.ClickException(errors.decode()[-2000:])


def verify(bundle: Path, texts: Sequence[str], output: Path) -> None:
    """Raise ClickException unless every row is there once, with what a plain loop gives."""
    model = load(bundle, "cpu", 1)
    place = 0
    for path in sorted(output.glob("part-*.parquet")):
        table = pq.read_table(path).to_pylist()
        here = texts[place : place + len(table)]
        if [row["id"] for row in table] != list(range(place, place + len(table))):
            raise click.ClickException(f"{path.name} does not hold the rows from {place} on, once each.")
        if isinstance(model, Encoder):
            alone = model.embed(here)
            good = bool(np.abs(np.array([row["output"] for row in table]) - alone).max() < 1e-5)
        else:
            beams = {"num_beams": 1} if isinstance(model, Seq2SeqLM) else {}
            expected = [model.generate(text, max_new_tokens=NEW_TOKENS, **beams).text for text in here]
            good = [row["output"] for row in table] == expected
        if not good:
            raise click.ClickException(f"{path.name} differs from a plain loop.")
        place += len(table)
    if place != len(texts):
        raise click.ClickException(f"there are {place} rows of {len(texts)}.")


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
        counts = break_job(nodes, run, kills, seed, most_seconds)
    finally:
        nodes.close()
        shutil.rmtree(temporary, ignore_errors=True)
    seconds = time.monotonic() - began
    verify(bundle, texts, folder / "shards")
    click.echo(json.dumps({"rows": rows, **counts, "seconds": round(seconds, 1), "equal": True}))


def timed(function: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def job(bundle: Path, rows: Path, output: Path) -> tuple[dict[str, Any], int]:
    """Run a job of one worker on this machine; return its counts and the largest resident bytes of a worker."""
    shutil.rmtree(output, ignore_errors=True)
    run = subprocess.Popen(command(bundle, rows, output, "--workers", "1"), stdout=subprocess.PIPE)
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
    """Return the seconds of an engine in this process for all texts, without loading."""
    model = load(bundle, "cpu", 1)
    if isinstance(model, Encoder):
        return timed(lambda: model.embed(list(texts)))
    beams = {"num_beams": 1} if isinstance(model, Seq2SeqLM) else {}
    options = BatchOptions(shard_rows=len(texts), generation={"max_new_tokens": NEW_TOKENS, **beams})
    runner = Runner(model, choose_verb(model.manifest, None), options)
    seconds = timed(lambda: runner.run(texts, 0))
    runner.close()
    return seconds


def transformers_seconds(checkpoint: Path, bundle: Path, texts: Sequence[str]) -> float:
    """Return the seconds of transformers for all texts, in batches of 8 of similar lengths, with one thread."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    torch.set_num_threads(1)
    kinds = {"encoder": AutoModel, "seq2seq-lm": AutoModelForSeq2SeqLM, "causal-lm": AutoModelForCausalLM}
    task = load(bundle, "cpu", 1).manifest.task
    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), kinds[task].from_pretrained(checkpoint).eval()
    ordered = sorted(texts, key=len)

    def run() -> None:
        for start in range(0, len(ordered), 8):
            encoded = tokenizer(ordered[start : start + 8], return_tensors="pt", padding=True)
            with torch.inference_mode():
                if task == "encoder":
                    model(**encoded)
                else:
                    model.generate(**encoded, max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1)

    return timed(run)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--rows", type=click.IntRange(SHARD_ROWS + 1), default=20_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Folder that transformers loads, to compare with.")
def speed(bundle: Path, rows: int, rounds: int, checkpoint: Path | None) -> None:
    """Compare a job of one worker with an engine and with transformers."""
    with tempfile.TemporaryDirectory(prefix="ef") as name:
        folder = Path(name)
        texts = write_rows(folder / "rows.jsonl", rows, 0)
        write_rows(folder / "tenth.jsonl", max(rows // 10, 1), 0)
        for _ in range(rounds):
            whole, memory = job(bundle, folder / "rows.jsonl", folder / "shards")
            _, tenth = job(bundle, folder / "tenth.jsonl", folder / "shards")
            engine = engine_seconds(bundle, texts)
            figures = {
                "job rows/s": rows / whole["seconds"],
                "job rows/s after its first shard": (rows - SHARD_ROWS) / (whole["seconds"] - whole["startup_seconds"]),
                "engine rows/s": rows / engine,
                "start of the job in s": whole["startup_seconds"],
                "memory of a worker in MB": memory / 1e6,
                "with a tenth of the rows": tenth / 1e6,
            }
            if checkpoint is not None:
                part = texts[: max(rows // 20, 8)]
                figures["transformers rows/s"] = len(part) / transformers_seconds(checkpoint, bundle, part)
            click.echo(json.dumps({label: round(value, 1) for label, value in figures.items()}))


if __name__ == "__main__":
    main()
