"""Load a server with seeded requests, many of them from clients that misbehave, and count what goes wrong.

    python tools/reliability/soaking/soak.py BUNDLE… --seconds 240 [--requests 20000] [--kills 3] [--output soak.json]

BUNDLES are those of a decoder and, if embeddings are to be asked for, of an encoder. `edgeformer serve` runs in a
process of its own. Every completion and every vector is compared with what the model says by itself. A fault is: a
wrong answer, an answer that does not come, a request that is still in a row after its client has gone, memory that
grows with the number of requests, connections that stay open, a traceback in the server's log, an exit code other
than 0. Then the server is killed by SIGKILL while it works, and started again, `--kills` times: requests that were
being answered may be lost, and no others.

Requests have numbers: the same number is the same request. With --output, the run goes on behind the requests that the
file has, and adds to its counts. Exits with 1 if there was a fault.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))  # the folders of tools/ are packages

from reliability.soaking.leak import Growth, growth  # noqa: E402
from reliability.soaking.soak_requests import Cases, Outcome, cases_of, run_request  # noqa: E402
from reliability.soaking.soaked_server import SoakedServer  # noqa: E402

SAMPLE_SECONDS = 0.25
"""Time between two looks at the server's memory."""

FAULTS_KEPT = 20
"""Faults that are kept with their texts; all are counted."""

KILL_AFTER = 1.0
"""Seconds of load before the server is killed."""

LIMITS = MappingProxyType({"prefix-cache": 4.0})
"""Limits of the server. Prefixes get few megabytes, so that they are full in the warm-up and then go and come. Every
new text adds to them until they are full, which in a larger budget looks like a leak for 10⁵ requests and more."""

SPARE_FILES = 4
"""Files by which an idle server may differ from one that has just started: pools of threads open some."""


@dataclass
class Result:
    """The findings of a soak. first_token_ms, latency_ms: how many requests took so many milliseconds."""

    seed: int = 0
    next: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    first_token_ms: Counter[str] = field(default_factory=Counter)
    latency_ms: Counter[str] = field(default_factory=Counter)
    growths: list[dict[str, float]] = field(default_factory=list)
    kills: int = 0
    lost_at_kills: int = 0
    fault_count: int = 0
    faults: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Return the result that a file has."""
        data = json.loads(path.read_text())
        for name in ("counts", "first_token_ms", "latency_ms"):
            data[name] = Counter(data[name])
        return cls(**data)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        self.counts[f"{outcome.kind} {outcome.result}"] += 1
        if outcome.seconds is not None:
            self.latency_ms[str(round(outcome.seconds * 1000))] += 1
        if outcome.first_token_seconds is not None:
            self.first_token_ms[str(round(outcome.first_token_seconds * 1000))] += 1
        if outcome.result not in ("ok", "busy"):
            self.fault(f"{outcome.kind} {outcome.result}: {outcome.detail}")

    def fault(self, text: str) -> None:
        """Count a fault, and keep the first ones."""
        self.fault_count += 1
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(text)


def percentile(counts: Counter[str], part: float) -> int:
    """Return the milliseconds that this part of the requests took at most; 0 for no requests."""
    left = part * counts.total()
    for milliseconds in sorted(map(int, counts)):
        left -= counts[str(milliseconds)]
        if left <= 0:
            return milliseconds
    return 0


@dataclass
class Soak:
    """A soak at work. clients: requests at a time."""

    server: SoakedServer
    cases: Cases
    result: Result
    clients: int

    async def load(self, requests: int, seconds: float) -> list[tuple[int, int]]:
        """Run requests until there were enough of either; return pairs of requests done and bytes of memory."""
        samples: list[tuple[int, int]] = []
        first, until = self.result.next, time.monotonic() + seconds

        async def client() -> None:
            while self.result.next < first + requests and time.monotonic() < until:
                number = self.result.next
                self.result.next += 1
                self.result.add(await run_request(number, self.result.seed, self.server.port, self.cases))

        async def watch() -> None:
            while True:
                samples.append((self.result.next - first, self.server.memory()))
                await asyncio.sleep(SAMPLE_SECONDS)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(client() for _ in range(self.clients)))
        watching.cancel()
        return samples

    async def kill(self) -> None:
        """Kill the server while it answers, start it again, and see that it answers as before."""
        done: list[Outcome] = []
        killed = False

        async def client() -> None:
            while not killed:
                number = self.result.next
                self.result.next += 1
                done.append(await run_request(number, self.result.seed, self.server.port, self.cases))

        clients = [asyncio.create_task(client()) for _ in range(self.clients)]
        await asyncio.sleep(KILL_AFTER)
        killed = True
        self.server.kill()
        await asyncio.gather(*clients)
        lost = sum(outcome.result == "lost" for outcome in done)
        self.result.kills += 1
        self.result.lost_at_kills += lost
        if lost > self.clients:
            self.result.fault(f"a kill lost {lost} requests, and {self.clients} were being answered")
        for outcome in done:
            if outcome.result != "lost":
                self.result.add(outcome)
        await asyncio.to_thread(self.server.start)
        await self.load(self.clients * 4, seconds=60)


async def soak(
    bundles: list[Path],
    result: Result,
    *,
    requests: int,
    seconds: float,
    clients: int,
    rows: int,
    kills: int,
    limits: Mapping[str, float] = LIMITS,
    short: bool = False,
) -> Result:
    """Add one run of a server to a result. limits: options of the server. short: requests of few tokens."""
    cases, started = cases_of(bundles, result.seed, short=short), time.monotonic()
    server = SoakedServer(bundles, rows, max(2, clients // 2), limits)
    work = Soak(server, cases, result, clients)
    try:
        await asyncio.to_thread(server.start)
        files = server.files()
        samples = await work.load(requests, seconds)
        result.seconds += time.monotonic() - started
        await check_idle(server, result, files)
        found = growth(samples)
        if found is not None:
            result.growths.append(vars(found))
            if found.leaks:
                result.fault(f"the memory of the server grows: {found}")
        for _ in range(kills):
            await work.kill()
            await check_idle(server, result, files)
    except BaseException:
        server.kill()
        raise
    code = await asyncio.to_thread(server.stop)
    if code:
        result.fault(f"the server ended with exit code {code}")
    return result


async def check_idle(server: SoakedServer, result: Result, files: int) -> None:
    """Look for what requests have left behind in a server that has no more of them."""
    if await server.idle() is None:
        result.fault(f"rows or requests are left without a client: {await server.statistics()}")
    if (now := server.files()) > files + SPARE_FILES:
        result.fault(f"the idle server has {now} files open, and had {files} at first")
    for line, count in server.tracebacks().items():
        result.fault(f"the server's log has {count} tracebacks that end in {line}")


def show(result: Result, console: Console) -> None:
    """Print a result."""
    table = Table("request", "ok", "busy", "faults")
    for kind in sorted({key.split()[0] for key in result.counts}):
        of_kind = {key.split()[1]: count for key, count in result.counts.items() if key.split()[0] == kind}
        ok, busy = of_kind.pop("ok", 0), of_kind.pop("busy", 0)
        table.add_row(kind, f"{ok:,}", f"{busy:,}", str(sum(of_kind.values())))
    console.print(table)
    console.print(f"{result.counts.total():,} requests, {result.seconds:,.0f} s")
    for name, counts in (("first token", result.first_token_ms), ("whole answer", result.latency_ms)):
        shown = ", ".join(f"p{round(100 * part)} {percentile(counts, part):,} ms" for part in (0.5, 0.95, 0.99))
        console.print(f"{name}: {shown} (of {counts.total():,})")
    for found in result.growths:
        console.print(f"memory: {Growth(**found)}")
    console.print(f"{result.kills} kills lost {result.lost_at_kills} requests that were being answered")
    console.print(f"{result.fault_count} faults", *result.faults, sep="\n")


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--seconds", default=60.0, show_default=True, help="Time of the load in this run, at most.")
@click.option("--requests", default=100_000, show_default=True, help="Requests in this run, at most.")
@click.option("--clients", default=16, show_default=True, help="Requests at a time.")
@click.option("--rows", default=8, show_default=True, help="Rows of the engine.")
@click.option("--kills", default=1, show_default=True, help="Times that the server is killed.")
@click.option("--prefix-cache", default=LIMITS["prefix-cache"], show_default=True, help="MB of prefixes.")
@click.option("--memory", type=float, help="MB of the rows. [default: that of the server]")
@click.option("--short", is_flag=True, help="Prompts of 3 and 10 words, and answers of 8 tokens at most.")
@click.option("--seed", default=0, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="JSON file to write, or to go on with.")
def main(
    bundles: tuple[Path, ...], prefix_cache: float, memory: float | None, seed: int, output: Path | None, **options: Any
) -> None:
    """Soak a server of BUNDLES."""
    result = Result.read(output) if output and output.exists() else Result(seed)
    limits = {"prefix-cache": prefix_cache} | ({} if memory is None else {"memory": memory})
    asyncio.run(soak(list(bundles), result, limits=limits, **options))
    if output:
        partial = output.with_suffix(".partial")
        partial.write_text(json.dumps(vars(result), indent=1))
        os.replace(partial, output)
    show(result, Console(width=160, highlight=False))
    sys.exit(1 if result.fault_count else 0)


if __name__ == "__main__":
    main()
