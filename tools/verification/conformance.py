"""One bundle, the same prompts, every client that is here: do all find the same tokens?

    edgeformer export --model tiny-llama
    npm install --ignore-scripts --prefix examples/node
    python tools/verification/conformance.py tiny-llama --checkpoint edgeformer/presets/tiny-llama

The bundle is loaded unmodified by each client, which continues token ids greedily until a token ends the text; of an
encoder-decoder that reads text, they are the source, and only clients that know such models are asked. Our own runtime
says what is expected; a client that is missing is named with the line that installs it. Most clients run a program of
examples/. transformers reads the checkpoint instead, in float32: of a quantized bundle it need not find the same. Exits
with 1 if any client failed or differs.
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
from edgeformer.manifest import Manifest
from edgeformer.runtime import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from verification.clients.client import EXAMPLES, Client, ClientError, Places, Prompts, Tokens
from verification.clients.registry import CLIENTS

OURS = "edgeformer"
PROMPTS = 2
PROMPT_LENGTH = 11
WIDTH = 120
"""Of the table, also where no terminal is."""


def until_end(tokens: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Tokens before the first that ends a text: some clients give that one too."""
    place = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return list(tokens[:place])


def ours(bundle: Path, prompts: Prompts, new_tokens: int) -> Tokens:
    """What our own runtime finds."""
    model = load(bundle)
    options = {"num_beams": 1} if model.manifest.task == "seq2seq-lm" else {}
    return [model.generate(list(prompt), max_new_tokens=new_tokens, **options).token_ids for prompt in prompts]


def difference(expected: Tokens, found: Tokens) -> str | None:
    """Where the tokens of the first prompt that differs part, in words; None where all are the same."""
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
    """Run all clients; return by their names a status (same, differs, failed or missing), versions, tokens, a word."""
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
    """A table that Markdown reads too, and what is to be said of each client."""
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
    """The values of --python: an interpreter by the name of its client. Raises UsageError for anything else."""
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
@click.option("--only", type=click.Choice(list(CLIENTS)), multiple=True, help="Run no others; repeatable.")
@click.option("--checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path), help="For transformers.")
@click.option(
    "--node-modules",
    type=click.Path(path_type=Path),
    envvar="EDGEFORMER_NODE_MODULES",
    default=EXAMPLES / "node" / "node_modules",
    help="With transformers.js. [default: that of examples/node]",
)
@click.option(
    "--onnxruntime",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="EDGEFORMER_ONNXRUNTIME",
    help="A release with include/ and lib/; without lib/, the Python package's library is linked.",
)
@click.option("--chromium", help="A program. [default: the first of the usual names]")
@click.option("--python", "given", multiple=True, metavar="CLIENT=PYTHON", help="Whose interpreter it is; repeatable.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report here.")
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
        raise click.UsageError(f"{bundle} is an encoder, which writes no tokens to compare.")
    if isinstance(manifest.model, Seq2SeqConfig) and manifest.model.encoder.audio is not None:
        raise click.UsageError(f"{bundle} hears, and this tool compares what follows from texts.")
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
    """Token ids that are not special ones, the same each time."""
    special = {*manifest.tokens.eos, manifest.tokens.bos, manifest.tokens.pad}
    read = manifest.model.encoder if isinstance(manifest.model, Seq2SeqConfig) else manifest
    ordinary = [token for token in range(read.vocab_size) if token not in special]
    return np.random.default_rng(0).choice(ordinary, (PROMPTS, PROMPT_LENGTH)).tolist()


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
