"""Compare TTFT, prefill and decode throughput of edgeformer and other runtimes on the same checkpoint.

    python tools/checkpoints/random_checkpoint.py smollm2-135m --output /tmp/smollm2-135m
    python tools/benchmarks/compare_peers.py /tmp/smollm2-135m --plot peers.png \\
        --peer llama.cpp=/opt/peers/llama_cpp/bin/python

Each runtime converts the folder with its own tool, reads the same token ids, and generates the same number of tokens,
greedily, one prompt at a time, on the CPU, with the same number of threads. An end-of-text token never ends a run. The
clock runs in the runtime's own process, from token ids to token ids; no text is decoded. Prints prefill throughput
(prompt tokens/s until the first new token), TTFT in ms, decode throughput (tokens/s after it) and edgeformer's
speedups.

Each runtime is a worker process. All workers of a precision are loaded at once, so memory must hold them. They run in
alternation (interleave.py), and those that do not run are stopped, including their threads. A ratio compares two runs
of one round. Each round has another prompt, because a prefix cache (OpenVINO GenAI has one) would answer from memory.

--busy N keeps N other processes computing while each runtime has its turn: on a user's machine other programs run, and
runtimes whose threads wait for each other then lose more than their share.

By default a peer is looked for in this interpreter. The requirements of most peers conflict, so most need an
environment of their own, outside the repository, whose interpreter --peer NAME=PYTHON names:

    python -m venv /opt/peers/llama_cpp
    CMAKE_ARGS=-DGGML_NATIVE=ON /opt/peers/llama_cpp/bin/pip install llama-cpp-python gguf    # compiles for a minute
    python -m venv /opt/peers/openvino
    /opt/peers/openvino/bin/pip install openvino-genai 'optimum-intel[openvino]'
    python -m venv /opt/peers/ctranslate2
    /opt/peers/ctranslate2/bin/pip install ctranslate2 'transformers<5' torch

onnxruntime-genai and transformers can share edgeformer's environment. A missing peer is reported with the line that
installs it. Converted models stay in --work until the checkpoint or a version changes; edgeformer's is always made
anew.
"""

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from benchmarks.environment import environment
from benchmarks.interleave import run_interleaved
from benchmarks.peers.busy import busy_processes
from benchmarks.peers.generation import Generation
from benchmarks.peers.plot import draw
from benchmarks.peers.process import Worker, convert, probe, start
from benchmarks.peers.registry import CACHE_PRECISION, DEFAULT_CACHE, OURS, PEERS
from benchmarks.peers.report import print_facts, print_result, summarise

PRECISIONS = ("fp32", "int8", "int4")

WIDTH = 100
"""Columns of the printed tables, also without a terminal."""


def text_config(checkpoint: Path) -> dict[str, Any]:
    """Return the config of a checkpoint's text model, which may be a part of another model."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    inside: dict[str, Any] = config.get("text_config", config)
    return inside


def link_with_tokenizer(checkpoint: Path, folder: Path) -> None:
    """Fill an empty folder with links to the checkpoint, and add a tokenizer of numbers if it has none.

    Converters require a tokenizer; prompts are token ids, so it is never used.
    """
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    if (checkpoint / "tokenizer.json").is_file():
        return
    config = text_config(checkpoint)
    vocabulary = {str(token): token for token in range(config["vocab_size"])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "0"}
    special = {f"{name}_token": str(config.get(f"{name}_token_id") or 0) for name in ("bos", "eos")}
    words = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    special |= {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "0"}
    for name, content in {"tokenizer.json": words, "tokenizer_config.json": special}.items():
        (folder / name).unlink(missing_ok=True)  # remove the link: writing through it would change the checkpoint
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def interpreters(given: Sequence[str]) -> dict[str, Path]:
    """Parse the values of --peer: peer name → interpreter. Raises UsageError for an unknown peer or a missing file."""
    found = {}
    for value in given:
        name, _, python = value.partition("=")
        if name not in PEERS:
            raise click.UsageError(f"there is no peer {name!r}. The peers are: {', '.join(PEERS)}.")
        if not Path(python).is_file():
            raise click.UsageError(f"--peer {name}=PYTHON takes an interpreter, and {python!r} is not a file.")
        found[name] = Path(python).absolute()  # not resolved: the link identifies the virtual environment
    return found


def choose(names: Sequence[str], given: dict[str, Path]) -> tuple[dict[str, Any], list[str]]:
    """Return the available peers with interpreter and versions, and one line for each that is missing.

    Raises ClickException if an interpreter was given and lacks what its peer needs.
    """
    chosen, left_out = {}, []
    for name in names:
        peer, python = PEERS[name], given.get(name, Path(sys.executable))
        missing, versions = probe(python, peer)
        if missing and name in given:
            raise click.ClickException(f"{python} lacks {', '.join(missing)} for {name}. To install: {peer.recipe}")
        if missing:
            left_out.append(f"{name}, because {', '.join(missing)} is missing. To install: {peer.recipe}")
        else:
            chosen[name] = {"python": python, "versions": versions, "precisions": peer.precisions}
    return chosen, left_out


class Prompts:
    """Random token ids: the same for all runtimes in a round, different in each round (prefix caches gain nothing)."""

    def __init__(self, vocab_size: int, length: int):
        self._vocab_size, self._length = vocab_size, length

    def __getitem__(self, number: int) -> list[int]:
        return np.random.default_rng([number, self._length]).integers(0, self._vocab_size, self._length).tolist()


def next_prompt_of(worker: Worker, prompts: Prompts, new: int) -> Callable[[], Generation]:
    """Return a system for run_interleaved: each call has the worker continue the next prompt."""
    rounds = itertools.count()
    return lambda: worker.generate(prompts[next(rounds)], new)


def measure(
    chosen: dict[str, Any],
    checkpoint: Path,
    work: Path,
    precision: str,
    lengths: Sequence[int],
    *,
    new: int,
    rounds: int,
    threads: int,
    busy: int,
) -> Iterator[dict[str, Any]]:
    """Convert for one precision, start every peer that supports it, and yield one result per prompt length.

    busy: number of processes that compute beside each of them.
    """
    vocab_size = text_config(checkpoint)["vocab_size"]
    having = [name for name in chosen if precision in PEERS[name].precisions]
    folders = {name: work / precision / name.replace(" ", "-") for name in having}
    for name, folder in folders.items():
        if not PEERS[name].converts:
            continue
        click.echo(f"{precision}: {name}", err=True)
        facts = chosen[name]
        convert(name, PEERS[name], facts["python"], checkpoint, folder, precision, facts["versions"])
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                start(name, PEERS[name], chosen[name]["python"], checkpoint, folder, precision, threads)
            )
            for name, folder in folders.items()
        }
        for length in lengths:
            click.echo(f"{precision}: {rounds} rounds of {length} + {new} tokens", err=True)
            prompts = Prompts(vocab_size, length)
            systems = {name: next_prompt_of(worker, prompts, new) for name, worker in workers.items()}
            with busy_processes(busy):
                runs = run_interleaved(systems, rounds, pause_seconds=0)  # a stopped process does not spin
            yield {"precision": precision, "prompt_tokens": length, **summarise(runs, length, new)}


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--precision", "precisions", type=click.Choice(PRECISIONS), multiple=True, help="[default: all three]")
@click.option("--prompt", "lengths", type=click.IntRange(min=1), multiple=True, default=(128, 512), show_default=True)
@click.option("--new", type=click.IntRange(min=2), default=128, show_default=True, help="Tokens to generate.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of each runtime. [default: all usable cores]")
@click.option(
    "--busy",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Processes that compute beside each runtime.",
)
@click.option(
    "--cache-precision",
    type=click.Choice(["fp16", "int8"]),
    default=DEFAULT_CACHE,
    show_default=True,
    help="Cache of edgeformer beside int8 and int4 weights.",
)
@click.option("--peer", "given", multiple=True, metavar="NAME=PYTHON", help="Python interpreter of a peer; repeatable.")
@click.option("--only", type=click.Choice(list(PEERS)), multiple=True, help="Compare this peer only; repeatable.")
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of converted models. [default: beside the checkpoint]",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report to this file."
)
@click.option(
    "--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw the speeds to this file."
)
def main(
    checkpoint: Path,
    precisions: Sequence[str],
    lengths: Sequence[int],
    new: int,
    rounds: int,
    threads: int | None,
    busy: int,
    cache_precision: str,
    given: Sequence[str],
    only: Sequence[str],
    work: Path | None,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Compare at each precision."""
    checkpoint = checkpoint.resolve()
    work = (work or checkpoint.with_name(f"{checkpoint.name}-peers")).resolve()
    precisions, threads = precisions or PRECISIONS, threads or usable_cores()
    chosen, left_out = choose([name for name in PEERS if not only or name in only], interpreters(given))
    os.environ[CACHE_PRECISION] = cache_precision  # for the worker
    if OURS in chosen and cache_precision != DEFAULT_CACHE:
        ours = chosen[OURS]["precisions"]
        chosen[OURS]["precisions"] = {
            name: said if name == "fp32" else f"{said}, cache of {cache_precision}" for name, said in ours.items()
        }
    left_out += [
        f"{name} at {precision}, which it does not support."
        for precision in precisions
        for name in chosen
        if precision not in PEERS[name].precisions
    ]
    data: dict[str, Any] = {
        "tool": "compare_peers",
        "checkpoint": checkpoint.name,
        "new_tokens": new,
        "threads": threads,
        "rounds": rounds,
        "busy_processes": busy,
        "peers": {name: {key: facts[key] for key in ("versions", "precisions")} for name, facts in chosen.items()},
        "left_out": left_out,
        "environment": environment(),
        "results": [],
    }
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    with tempfile.TemporaryDirectory(prefix="compare_peers.") as linked:
        link_with_tokenizer(checkpoint, Path(linked))
        for precision in precisions:
            options = {"new": new, "rounds": rounds, "threads": threads, "busy": busy}
            for result in measure(chosen, Path(linked), work, precision, lengths, **options):
                data["results"].append(result)
                print_result(console, result, data)
    print_facts(console, data)
    if json_file:
        json_file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if plot_file:
        draw(data, plot_file)


if __name__ == "__main__":
    main()
