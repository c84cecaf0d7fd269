"""edgeformer batch"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from edgeformer.cli._generation import declared, explicit_options, length_options, sampling_options
from edgeformer.cli._options import (
    COMMON,
    COUNT,
    ENCODER_DECODERS,
    EXECUTION,
    OUTPUT,
    Command,
    cache_option,
    json_option,
    option,
)
from edgeformer.cli._output import note, print_json, print_table
from edgeformer.errors import require
from edgeformer.manifest.providers import PROVIDERS
from edgeformer.options.generation import BeamOptions

ROWS = "Rows and prompts"
CLUSTER = "Cluster"
VERBS = ["generate", "chat", "translate", "transcribe", "embed", "classify", "fill-mask", "perplexity"]

JOB_OPTIONS = (
    "verb",
    "column",
    "images",
    "template",
    "format",
    "shard_rows",
    "max_rows",
    "threads",
    "seed",
    "prefix",
    "provider",
    "cache_precision",
)
"""Options of the job; the others that say what is generated are of the model."""

OF_ONE_REQUEST = ("num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size")
"""Options of drafts, whose lengths follow the clock; a job writes the same bytes again."""


@click.command("batch", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("source", metavar="INPUT")
@click.argument("output", metavar="OUTPUT")
@option(
    "--verb",
    type=click.Choice(VERBS),
    metavar="VERB",
    topic=ROWS,
    help=f"What to do to a row: {', '.join(VERBS)}. [default: what the bundle is for]",
)
@option("--column", metavar="NAME", topic=ROWS, help="Column of the prompt. [default: prompt, messages, path or text]")
@option("--images", metavar="NAME", topic=ROWS, help="Column of the prompt's pictures. [default: images or image]")
@option("--sounds", metavar="NAME", topic=ROWS, help="Column of its recordings. [default: sounds, sound or audio]")
@option("--template", metavar="FILE|JINJA", topic=ROWS, help="Make the prompt from the row's columns instead.")
@option("--prefix", metavar="TEXT", topic=ROWS, help="Put this before the names of the new columns.")
@length_options
@sampling_options
@option("--source-language", topic=ENCODER_DECODERS, help="Language of the rows.")
@option("--target-language", topic=ENCODER_DECODERS, help="Language to translate into.")
@option("--language", topic=ENCODER_DECODERS, help="Language spoken in the recordings.")
@declared(BeamOptions)
@option(
    "--address", metavar="ADDRESS", topic=CLUSTER, help="Ray cluster: auto, HOST:PORT. [default: this machine alone]"
)
@option("--workers", **COUNT, topic=CLUSTER, help="Processes that each hold the bundle. [default: cores / --threads]")
@option("--ship", is_flag=True, topic=CLUSTER, help="Send the bundle to the nodes, which do not see its path.")
@option(
    "--threads", **COUNT, topic=EXECUTION, help="CPU threads of a worker. [default: 1, 4 or 8, by the bundle's size]"
)
@option("--provider", type=click.Choice(list(PROVIDERS)), topic=EXECUTION, help="Execution provider. [default: cpu]")
@cache_option
@option("--max-rows", **COUNT, topic=EXECUTION, help="Rows that a worker generates together. [default: 64]")
@option("--shard-rows", **COUNT, topic=OUTPUT, help="Rows of a shard. [default: 1024]")
@option("--format", type=click.Choice(["parquet", "jsonl"]), topic=OUTPUT, help="Of the shards. [default: parquet]")
@option("--max-errors", type=click.IntRange(min=0), metavar="N", topic=COMMON, help="Stop once more rows have errors.")
@option("--dry-run", is_flag=True, topic=COMMON, help="Say how many rows, tokens and bytes there are; write nothing.")
@json_option
def batch_command(
    bundle: Path, source: str, output: str, dry_run: bool, max_errors: int | None, as_json: bool, **options: Any
) -> None:
    """Run the model in BUNDLE on all rows of INPUT, on one machine or many.

    INPUT is a JSONL, CSV or Parquet file, a folder or pattern of such files, of texts or of recordings, by a path or an
    fsspec URL; OUTPUT is a folder of shards. The same command goes on with a job that was interrupted.
    """
    require("ray", "batch")
    require("pyarrow", "batch")
    from edgeformer.batch import BatchOptions, plan_batch, run_batch
    from edgeformer.batch.run import summary

    cluster = {name: options.pop(name) for name in ("address", "workers", "ship")}
    chosen = explicit_options(options)
    job = {name: chosen.pop(name) for name in JOB_OPTIONS if name in chosen}
    refused = [name for name in OF_ONE_REQUEST if name in chosen]
    if refused:
        raise click.UsageError(f"--{refused[0].replace('_', '-')} is for one request at a time; leave it out of a job.")
    if "template" in job and Path(job["template"]).is_file():
        job["template"] = Path(job["template"]).read_text(encoding="utf-8")
    whole = BatchOptions(**job, generation=chosen)
    if dry_run:
        plan = asdict(plan_batch(bundle, source, output, whole))
        print_json(plan) if as_json else print_table(
            [(name.replace("_", " "), _shown(value)) for name, value in plan.items()]
        )
        return
    with _bar() as update:
        result = summary(run_batch(bundle, source, output, whole, max_errors=max_errors, progress=update, **cluster))
    if as_json:
        print_json(result)
    else:
        print_table([(name.replace("_", " "), _shown(value)) for name, value in result.items()])
    if result["errors"]:
        note(f"{result['errors']:,} rows have errors; the column `error` of the shards says which.")


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "–" if value is None else str(value)


@contextmanager
def _bar() -> Iterator[Callable[[int, int, int], None]]:
    """Yield `update(rows, total, errors)`, which draws a bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("rows", total=None)

        def update(rows: int, total: int, errors: int) -> None:
            progress.update(
                task, completed=rows, total=total, description=f"rows, {errors} errors" if errors else "rows"
            )

        yield update
