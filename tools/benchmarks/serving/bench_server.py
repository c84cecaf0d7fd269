"""Measure a server under 1, 4, 16 … clients: tokens a second of all of them, and time to the first token.

    python tools/benchmarks/serving/bench_server.py BUNDLE --clients 1 --clients 4 --clients 16
    python tools/benchmarks/serving/bench_server.py BUNDLE --gguf model.gguf --llama-server /tmp/llama-server

The contenders write the same number of tokens for the same prompts, greedily, on the CPU with the same threads, in
alternation (interleave.py). Prompts are new in every round, so that no contender has read them before:

- server: `edgeformer serve` in a process of its own; each client reads a stream over HTTP;
- engine: `Engine.submit` in this process, a request for each client;
- batch: `generate` with all prompts at once, as `edgeformer bench --batch` times it;
- llama-server (with --gguf): the server of llama.cpp with its defaults and a slot for each client, so that it batches,
  too. peers/llama_cpp.py writes the file from a checkpoint; with the tokenizer that `checkpoints/byte_tokenizer.py`
  writes, a letter of a prompt is a token for both. llama-cpp-python's source on PyPI has llama.cpp under vendor/:
  `cmake -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_OPENSSL=OFF && cmake --build build --target llama-server`.

Prints tokens/s, with the ratio of the server to each contender within a round, and the time to the first token of
streams over HTTP. An end-of-text token ends no stream. If a stream ends early all the same, or a run takes longer than
--timeout, the benchmark says so and stops.
"""

import asyncio
import json
import random
import socket
import string
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from edgeformer.runtime import CausalLM, Engine, load

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from reliability.soaking.soak_client import get, sent
from reliability.soaking.soaked_server import SoakedServer

from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, report_console, run_interleaved

PEER_SECONDS = 120
"""Time in which the peer's server has to listen."""


@dataclass(frozen=True)
class Work:
    """The work of every contender. prompts: one for each client. new: tokens of each answer."""

    prompts: Sequence[str]
    new: int


@dataclass
class Run:
    """One run. first: seconds to the first token of each client; empty where they cannot be seen."""

    tokens: int
    seconds: float
    first: list[float] = field(default_factory=list)


Contender = Callable[[Work], Run]


def over_http(name: str, port: int, timeout: float, options: dict[str, Any]) -> Contender:
    """Return a contender that asks a server for streams.

    timeout: seconds of a run at most. options: fields of its requests that keep streams from ending early.
    """

    async def one(prompt: str, new: int, started: float) -> float:
        body = {"prompt": prompt, "max_tokens": new, "temperature": 0, "stream": True} | options
        first = 0.0
        async with sent(port, "/v1/completions", json.dumps(body).encode()) as exchange:
            if exchange.status != 200:
                raise click.ClickException(f"{name} answers {exchange.status}: {(await exchange.rest())!r}")
            async for event in exchange.events():
                first = first or time.perf_counter() - started
                last = event
        reason = last["choices"][0]["finish_reason"]
        if reason != "length":
            raise click.ClickException(
                f"a stream of {name} ended by {reason!r} before it had {new} tokens, so speeds cannot be compared. "
                "Take fewer --new-tokens, or a checkpoint of another seed."
            )
        return first

    async def all_of(work: Work) -> Run:
        started = time.perf_counter()
        streams: list[Awaitable[float]] = [one(prompt, work.new, started) for prompt in work.prompts]
        try:
            async with asyncio.timeout(timeout):
                first = await asyncio.gather(*streams)
        except TimeoutError:
            raise click.ClickException(
                f"{name} has not answered {len(work.prompts)} clients within {timeout:g} s. Take fewer --clients or "
                "--new-tokens, or a longer --timeout."
            ) from None
        return Run(work.new * len(work.prompts), time.perf_counter() - started, list(first))

    return lambda work: asyncio.run(all_of(work))


def in_engine(model: CausalLM, rows: int) -> Contender:
    """Return a contender that submits to an engine of this process."""
    engine = Engine(model, max_rows=rows)

    def run(work: Work) -> Run:
        started = time.perf_counter()
        streams = [engine.submit(prompt, max_new_tokens=work.new, ignore_eos=True) for prompt in work.prompts]
        tokens = sum(len(stream.finish().token_ids) for stream in streams)
        return Run(tokens, time.perf_counter() - started)

    return run


def in_batch(model: CausalLM) -> Contender:
    """Return a contender that generates for all prompts in one call."""

    def run(work: Work) -> Run:
        started = time.perf_counter()
        found = model.generate(list(work.prompts), max_new_tokens=work.new, ignore_eos=True)
        return Run(sum(len(each.token_ids) for each in found), time.perf_counter() - started)

    return run


@contextmanager
def edgeformer_server(bundle: Path, rows: int, threads: int) -> Iterator[int]:
    """Run `edgeformer serve`; yield its port."""
    server = SoakedServer([bundle], rows, queue=rows, limits={"threads": threads})
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


@contextmanager
def llama_server(program: Path, gguf: Path, threads: int, slots: int, context: int) -> Iterator[int]:
    """Run llama-server; yield its port. slots: requests that run at once. context: tokens of each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        program, "--model", gguf, "--host", "127.0.0.1", "--port", port, "--threads", threads,
        "--threads-batch", threads, "--parallel", slots, "--ctx-size", slots * context,
    ]  # fmt: skip
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([str(part) for part in command], **quiet) as peer:
        try:
            until = time.monotonic() + PEER_SECONDS
            while not is_ready(port):
                if peer.poll() is not None or time.monotonic() > until:
                    line = " ".join(str(part) for part in command)
                    raise click.ClickException(f"llama-server did not start. To see why, run: {line}")
                time.sleep(0.1)
            yield port
        finally:
            peer.terminate()


def is_ready(port: int) -> bool:
    """Return whether llama-server has loaded its model."""
    try:
        return asyncio.run(get(port, "/health")).status == 200
    except (OSError, EOFError):
        return False


def measure(systems: dict[str, Contender], clients: int, letters: int, new: int, rounds: int) -> dict[str, Any]:
    """Run all contenders in alternation; return spreads of tokens/s and of ratios, and percentiles of first tokens."""

    def run_of(contender: Contender) -> Callable[[], Run]:
        seeds = count()
        return lambda: contender(Work(prompts_of(clients, letters, next(seeds)), new))

    runs = run_interleaved({name: run_of(contender) for name, contender in systems.items()}, rounds)
    assert len({run.tokens for of_one in runs.values() for run in of_one}) == 1, "all write as many tokens"
    speeds, ratios = compare(
        {name: [run.tokens / run.seconds for run in of_one] for name, of_one in runs.items()}, "server"
    )
    first = {name: [seconds for run in of_one for seconds in run.first] for name, of_one in runs.items()}
    return {
        "tokens_per_second": speeds,
        "ratios": ratios,
        "first_token_seconds": {
            name: {f"p{part}": float(np.percentile(seconds, part)) for part in (50, 95)}
            for name, seconds in first.items()
            if seconds
        },
    }


def prompts_of(clients: int, letters: int, seed: int = 0) -> list[str]:
    """Return seeded prompts of random letters, one for each client."""
    draw = random.Random(seed)
    return ["".join(draw.choices(string.ascii_letters, k=letters)) for _ in range(clients)]


def show(results: dict[int, dict[str, Any]]) -> None:
    """Print the results by the number of clients."""
    table = Table("clients", "contender", "tokens/s", "server / it", "first token p50", "p95")
    for clients, found in results.items():
        for name, speed in found["tokens_per_second"].items():
            first = found["first_token_seconds"].get(name)
            times = [f"{1000 * first[part]:,.0f} ms" for part in ("p50", "p95")] if first else ["", ""]
            table.add_row(str(clients), name, cell(speed, 0), cell(found["ratios"].get(name), 2), *times)
    report_console().print(table)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--clients", multiple=True, type=int, default=(1, 4, 16), show_default=True)
@click.option("--prompt-letters", default=128, show_default=True, help="Letters of each prompt.")
@click.option("--new-tokens", default=64, show_default=True, help="Tokens of each answer.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--timeout", default=120.0, show_default=True, help="Seconds of one run over HTTP at most.")
@click.option("--gguf", type=click.Path(path_type=Path, exists=True), help="Model of the peer.")
@click.option("--llama-server", "program", type=click.Path(path_type=Path, exists=True), help="The peer.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="File for the results.")
def main(
    bundle: Path, clients: tuple[int, ...], prompt_letters: int, new_tokens: int, threads: int, rounds: int,
    timeout: float, gguf: Path | None, program: Path | None, json_file: Path | None,
) -> None:  # fmt: skip
    """Measure a server of BUNDLE."""
    if (gguf is None) != (program is None):
        raise click.UsageError("--gguf and --llama-server go together.")
    model, rows = load(bundle, "cpu", threads), max(clients)
    assert isinstance(model, CausalLM), "a decoder is measured"
    results: dict[int, dict[str, Any]] = {}
    with ExitStack() as stack:
        port = stack.enter_context(edgeformer_server(bundle, rows, threads))
        to_the_end = {"ignore_eos": True}
        systems = {"server": over_http("server", port, timeout, to_the_end)}
        if gguf is not None and program is not None:
            length = prompt_letters + new_tokens + 8
            port = stack.enter_context(llama_server(program, gguf, threads, rows, length))
            systems["llama-server"] = over_http("llama-server", port, timeout, to_the_end)
        systems |= {"engine": in_engine(model, rows), "batch": in_batch(model)}
        for number in clients:
            results[number] = measure(systems, number, prompt_letters, new_tokens, rounds)
    show(results)
    if json_file:
        json_file.write_text(json.dumps({"environment": environment(), "clients": results}, indent=1))


if __name__ == "__main__":
    main()
