"""A Ray cluster on this machine, and a batch job on it that is broken at random moments."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click
import numpy as np
import psutil
import pyarrow.parquet as pq

from edgeformer.runtime import Encoder, Seq2SeqLM, load

OBJECT_STORE = 80 << 20
"""Bytes of the object store of a node: the least that Ray starts with is 75 MB."""

LAST = 0.9
"""Part of the shards that are committed when the last kill falls due. The job must not end before it."""


class Nodes:
    """A Ray cluster on this machine: a head without workers, and nodes of one core. folder: for Ray's files."""

    def __init__(self, folder: str, count: int = 2):
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, "RAY_BACKEND_LOG_LEVEL": "fatal"}
        Path(folder, "ray").mkdir()
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self._nodes: list[subprocess.Popen[bytes]] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        """Start a node of one core, which joins the cluster within seconds."""
        store = f"--object-store-memory={OBJECT_STORE}"
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={self.address}", "--num-cpus=1"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._nodes.append(subprocess.Popen([*start, store, "--block"], start_new_session=True, **quiet))

    def replace(self, draw: random.Random) -> None:
        """Kill all processes of a node at once and start another one."""
        _kill_all(self._nodes.pop(draw.randrange(len(self._nodes))))
        self.add()

    def close(self) -> None:
        """End all nodes."""
        for node in self._nodes:
            _kill_all(node)
        self._cluster.shutdown()


def _kill_all(node: subprocess.Popen[bytes]) -> None:
    for process in [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    node.wait()


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


class Killer:
    """Kills that fall due when random numbers of shards are committed, each after a random part of a second.

    log: a JSON line for every kill that was done. A killer that finds it there goes on behind the last one.
    """

    def __init__(self, nodes: Nodes, output: Path, log: Path, shards: int, kills: int, seed: int):
        self._nodes, self._output, self._log, self._seed = nodes, output, log, seed
        draw = random.Random(seed)
        self._due = sorted(draw.uniform(0, LAST * shards) for _ in range(kills))
        self.done: list[str] = []
        if log.exists():
            self.done = [json.loads(line)["kind"] for line in log.read_text().splitlines()]

    @property
    def left(self) -> int:
        """How many kills there are still to do."""
        return len(self._due) - len(self.done)

    def committed(self) -> int:
        """Return how many shards are committed."""
        folder = self._output / "_job/commits"
        return sum(name.endswith(".json") for name in os.listdir(folder)) if folder.is_dir() else 0

    def run(self, driver: subprocess.Popen[bytes]) -> None:
        """Do the next kill, if it is due: of a worker, of a node or of the driver, with equal probability."""
        place = len(self.done)
        if not self.left or self.committed() < self._due[place]:
            return
        draw = random.Random(self._seed * 1000 + place)
        time.sleep(draw.uniform(0, 0.5))
        kind = draw.choice(("worker", "node", "driver"))
        victims = workers()
        if driver.poll() is not None or (kind == "worker" and not victims):
            return  # the kill stays due
        if kind == "worker":
            draw.choice(victims).send_signal(signal.SIGKILL)
        elif kind == "node":
            self._nodes.replace(draw)
        else:
            driver.kill()
        self.done.append(kind)
        with self._log.open("a") as log:
            log.write(json.dumps({"kind": kind, "shards": self.committed(), "workers": len(victims)}) + "\n")


def break_job(killer: Killer, run: Sequence[str], most_seconds: float) -> Counter[str]:
    """Run the command of a job until it has ended by itself and all kills are done; return the kills by their kind.

    Raises ClickException for a job that fails, takes too long, or ends before the last kill.
    """
    began, starts = time.monotonic(), 0
    while True:
        starts += 1
        driver = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while driver.poll() is None:
            killer.run(driver)
            time.sleep(0.05)
            if time.monotonic() - began > most_seconds:
                driver.kill()
                raise click.ClickException(
                    f"the job has {killer.committed()} shards after {most_seconds:.0f} s. Run it again to go on."
                )
        _, errors = driver.communicate()
        if driver.returncode not in (0, -signal.SIGKILL):
            raise click.ClickException(errors.decode()[-2000:])
        if driver.returncode == 0:
            if killer.left:
                raise click.ClickException(f"the job ended before {killer.left} of the kills. Give it more rows.")
            return Counter(killer.done) + Counter(starts=starts)


def verify(bundle: Path, texts: Sequence[str], output: Path, max_new_tokens: int) -> None:
    """Raise ClickException unless every row is there once, with what a plain loop gives. Equal texts are run once."""
    expected = _plain_loop(bundle, texts, max_new_tokens)
    place = 0
    for path in sorted(output.glob("part-*.parquet")):
        table = pq.read_table(path).to_pylist()
        if [row["id"] for row in table] != list(range(place, place + len(table))):
            raise click.ClickException(f"{path.name} does not hold the rows from {place} on, once each.")
        for row in table:
            if row["text"] != texts[row["id"]] or not _equal(row["output"], next(expected)):
                raise click.ClickException(f"row {row['id']} in {path.name} differs from a plain loop.")
        place += len(table)
    if place != len(texts):
        raise click.ClickException(f"there are {place} rows of {len(texts)}.")


def _plain_loop(bundle: Path, texts: Sequence[str], max_new_tokens: int) -> Iterator[str | np.ndarray]:
    model = load(bundle, "cpu", 1)
    options = {"max_new_tokens": max_new_tokens} | ({"num_beams": 1} if isinstance(model, Seq2SeqLM) else {})
    known: dict[str, str | np.ndarray] = {}
    for text in texts:
        if text not in known:
            known[text] = model.embed(text) if isinstance(model, Encoder) else model.generate(text, **options).text
        yield known[text]


def _equal(found: object, expected: str | np.ndarray) -> bool:
    """Return whether a result is that of the loop. Vectors of a batch may differ in their last bits."""
    if isinstance(expected, str):
        return found == expected
    return bool(np.abs(np.asarray(found) - expected).max() < 1e-5)
