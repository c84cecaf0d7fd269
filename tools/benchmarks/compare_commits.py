"""Compare the speed of an earlier commit with that of the working tree, in turns.

    python tools/checkpoints/random_checkpoint.py smollm2-135m --output /tmp/smollm2-135m
    python tools/benchmarks/compare_commits.py HEAD~20 /tmp/smollm2-135m --precision int4

A comparison with other runtimes does not show that ours became slower since last week, for its figures are all of one
day. Here both contenders are edgeformer. The commit is checked out in a folder of its own, with kernels built from it;
each tree exports the checkpoint by its own defaults, and a process of each, with the packages of this environment,
generates in turns with the other (peers/process.py). A ratio is above 1 where the working tree is faster. HEAD, with
nothing changed, says how much of a ratio is noise.
"""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from benchmarks.command import measurement, publish
from benchmarks.commits.trees import ADAPTER, ROOT, build_kernels, checked_out, interpreter
from benchmarks.compare_peers import PRECISIONS, Prompts, link_with_tokenizer, next_prompt_of, text_config
from benchmarks.environment import environment
from benchmarks.interleave import report_console, run_interleaved
from benchmarks.peers.process import convert, start
from benchmarks.peers.registry import OURS, Peer
from benchmarks.peers.report import print_result, summarise

EITHER = Peer(ADAPTER, (), (), {}, "", "", keep=False)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("commit")
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--precision", type=click.Choice(PRECISIONS), default="int4", show_default=True)
@click.option("--prompt", "lengths", type=click.IntRange(min=1), multiple=True, default=(128, 512), show_default=True)
@click.option("--new", type=click.IntRange(min=2), default=128, show_default=True, help="Tokens to generate.")
@click.option("--kernels/--no-kernels", default=True, help="With the kernels of each tree, or with none.")
@measurement(rounds=9)
def main(
    commit: str,
    checkpoint: Path,
    precision: str,
    lengths: Sequence[int],
    new: int,
    kernels: bool,
    rounds: int,
    threads: int | None,
    file: Path | None,
) -> None:
    """Compare at each length of a prompt."""
    data: dict[str, Any] = {"tool": "compare_commits", "checkpoint": checkpoint.name, "commit": commit}
    data |= {"new_tokens": new, "threads": threads or usable_cores(), "rounds": rounds, "kernels": kernels}
    data |= {"environment": environment(), "results": []}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare_commits.")))
        before = stack.enter_context(checked_out(commit, work / "tree"))
        (work / "checkpoint").mkdir()
        link_with_tokenizer(checkpoint.resolve(), work / "checkpoint")
        workers = {}
        for name, tree in ((OURS, ROOT), (commit, before)):
            folder = work / ("before" if tree is before else "now")
            folder.mkdir()
            if kernels:
                click.echo(f"{name}: kernels", err=True)
                build_kernels(tree, folder / "kernels")
            python = interpreter(folder, [tree, folder / "kernels"], kernels)
            click.echo(f"{name}: export", err=True)
            told = (work / "checkpoint", folder / "model", precision)
            convert(name, EITHER, python, *told, versions={})
            workers[name] = stack.enter_context(start(name, EITHER, python, *told, data["threads"]))
        for length in lengths:
            prompts = Prompts(text_config(checkpoint)["vocab_size"], length)
            systems = {name: next_prompt_of(worker, prompts, new) for name, worker in workers.items()}
            runs = run_interleaved(systems, rounds, pause_seconds=0)  # a stopped process does not spin
            result = {"precision": precision, "prompt_tokens": length, **summarise(runs, length, new)}
            data["results"].append(result)
            print_result(report_console(), result, data)
    publish(data, file)


if __name__ == "__main__":
    main()
