"""Run the same prompts through a bundle in every installed client, and compare the generated tokens.

    edgeformer export --model tiny-llama
    npm install --ignore-scripts --prefix examples/node
    python tools/verification/conformance.py tiny-llama --checkpoint edgeformer/presets/tiny-llama

Each client loads the bundle unmodified and continues token ids greedily until an end-of-text token. For an
encoder-decoder of texts, the ids are the source, and only clients that support such models run. edgeformer's own
runtime gives the expected tokens; a missing client is reported with the line that installs it. Most clients run a
program of examples/. transformers reads the checkpoint in float32 instead, so it may differ from a quantized bundle.

Prints a table of clients, the number of tokens and whether they are the same. Exits with 1 if a client failed or
differs.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from edgeformer.config import Seq2SeqConfig
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from verification.client_programs.client import EXAMPLES, Client, ClientError, Places, Prompts, Tokens
from verification.client_programs.registry import CLIENTS

OURS = "edgeformer"
PROMPTS = 2
PROMPT_LENGTH = 11
WIDTH = 120
"""Columns of the printed table, also without a terminal."""


def until_end(tokens: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the tokens before the first end-of-text token, which some clients return too."""
    place = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return list(tokens[:place])


def ours(bundle: Path, prompts: Prompts, new_tokens: int) -> Tokens:
    """Return the tokens that edgeformer's runtime generates."""
    model = load(bundle)
    options = {"num_beams": 1} if model.manifest.task == "seq2seq-lm" else {}
    return [model.generate(list(prompt), max_new_tokens=new_tokens, **options).token_ids for prompt in prompts]


def difference(expected: Tokens, found: Tokens) -> str | None:
    """Describe where the first prompt that differs does so; None if all tokens are the same."""
    for number, (right, tokens) in enumerate(zip(expected, found, strict=True), 1):
        if right == tokens:
            continue
        pairs = zip(right, tokens, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(right), len(tokens)))
        here, there = (str(row[place]) if place < len(row) else "the end" for row in (right, tokens))
        return f"prompt {number}: {place} tokens agree, then {there} instead of {here}"
    return None


def compare(
    clients: Mapping[str, Client], bundle: Path, prompts: Prompts, new_tokens: int, places: Places
) -> dict[str, Any]:
    """Run all clients; return status (same, differs, failed or missing), versions, tokens and a note of each."""
    ends = Manifest.read(bundle).tokens.eos
    expected = [until_end(row, ends) for row in ours(bundle, prompts, new_tokens)]
    versions = {"edgeformer": version("edgeformer"), "onnxruntime": version("onnxruntime")}
    results: dict[str, Any] = {OURS: {"status": "same", "versions": versions, "tokens": expected, "note": ""}}
    for name, client in clients.items():
        click.echo(name, err=True)
        lacking = client.missing(places)
        if lacking is not None:
            results[name] = {"status": "missing", "versions": {}, "tokens": [], "note": lacking}
            continue
        result = {"status": "same", "versions": client.versions(places), "tokens": [], "note": ""}
        try:
            found = [until_end(row, ends) for row in client.generate(bundle, prompts, new_tokens, places)]
            note = difference(expected, found)
            result |= {"status": "differs" if note else "same", "tokens": found, "note": note or ""}
        except ClientError as error:
            result |= {"status": "failed", "note": str(error)}
        results[name] = result
    return results


def print_results(console: Console, results: Mapping[str, Any]) -> None:
    """Print a Markdown table, and a note on each client that needs one."""
    table = Table(box=box.MARKDOWN)
    for column in ("client", "tokens", "versions"):
        table.add_column(column)
    for name, result in results.items():
        count = sum(map(len, result["tokens"]))
        said = f"{count} {result['status']}" if result["tokens"] else result["status"]
        table.add_row(name, said, ", ".join(f"{package} {number}" for package, number in result["versions"].items()))
    console.print(table)
    for name, result in results.items():
        if result["note"]:
            console.print(f"{name} {result['status']}: {result['note']}", markup=False)


def pythons(values: Sequence[str]) -> dict[str, Path]:
    """Parse the values of --python: client name → interpreter. Raises UsageError for anything else."""
    found = {}
    for value in values:
        name, _, python = value.partition("=")
        if name not in CLIENTS or not Path(python).is_file():
            raise click.UsageError(f"--python {value} is not CLIENT=INTERPRETER with one of: {', '.join(CLIENTS)}.")
        found[name] = Path(python)
    return found


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--prompt", "texts", multiple=True, help="A text; repeatable. [default: random token ids]")
@click.option("--new-tokens", type=click.IntRange(1, 64), default=48, show_default=True)
@click.option("--only", type=click.Choice(list(CLIENTS)), multiple=True, help="Run this client only; repeatable.")
@click.option(
    "--checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Checkpoint for transformers."
)
@click.option(
    "--node-modules",
    type=click.Path(path_type=Path),
    envvar="EDGEFORMER_NODE_MODULES",
    default=EXAMPLES / "node" / "node_modules",
    help="Folder with transformers.js. [default: that of examples/node]",
)
@click.option(
    "--onnxruntime",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="EDGEFORMER_ONNXRUNTIME",
    help="A release with include/ and lib/; without lib/, the Python package's library is linked.",
)
@click.option("--chromium", help="Chromium program. [default: the first of the usual names]")
@click.option(
    "--python", "given", multiple=True, metavar="CLIENT=PYTHON", help="Python interpreter of a client; repeatable."
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report to this file."
)
def main(
    bundle: Path,
    texts: Sequence[str],
    new_tokens: int,
    only: Sequence[str],
    checkpoint: Path | None,
    node_modules: Path,
    onnxruntime: Path | None,
    chromium: str | None,
    given: Sequence[str],
    json_file: Path | None,
) -> None:
    """Compare and report."""
    manifest = Manifest.read(bundle)
    if manifest.task == "encoder":
        raise click.UsageError(f"{bundle} is an encoder, which generates no tokens to compare.")
    if isinstance(manifest.model, Seq2SeqConfig) and manifest.model.encoder.audio is not None:
        raise click.UsageError(f"{bundle} is a speech model, and this tool compares models of texts.")
    places = Places(
        node_modules=node_modules,
        onnxruntime=onnxruntime,
        chromium=chromium,
        checkpoint=checkpoint,
        pythons=pythons(given),
    )
    prompts: Prompts = [load(bundle).tokenizer.encode(text) for text in texts] or random_prompts(manifest)
    clients = {
        name: client for name, client in CLIENTS.items() if manifest.task in client.tasks and (not only or name in only)
    }
    results = compare(clients, bundle, prompts, new_tokens, places)
    print_results(Console(highlight=False, soft_wrap=True, width=WIDTH), results)
    if json_file:
        report = {"bundle": manifest.name, "prompts": prompts, "new_tokens": new_tokens, "clients": results}
        json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if any(result["status"] in ("differs", "failed") for result in results.values()):
        sys.exit(1)


def random_prompts(manifest: Manifest) -> Prompts:
    """Return seeded random token ids without special tokens."""
    special = {*manifest.tokens.eos, manifest.tokens.bos, manifest.tokens.pad}
    read = manifest.model.encoder if isinstance(manifest.model, Seq2SeqConfig) else manifest
    ordinary = [token for token in range(read.vocab_size) if token not in special]
    return np.random.default_rng(0).choice(ordinary, (PROMPTS, PROMPT_LENGTH)).tolist()


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
