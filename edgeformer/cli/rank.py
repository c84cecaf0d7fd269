"""edgeformer rank"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edgeformer.cli._options import COUNT, Command, execution_options, json_option, option
from edgeformer.cli._output import print_json, print_table
from edgeformer.errors import RequestError


@click.command("rank", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("query")
@click.argument("documents", nargs=-1)
@option("--top-k", **COUNT, help="Print the best N only.")
@execution_options
@json_option
def rank_command(
    bundle: Path,
    query: str,
    documents: tuple[str, ...],
    top_k: int | None,
    provider: Any,
    threads: int | None,
    as_json: bool,
) -> None:
    """Rank DOCUMENTS as answers to QUERY with the cross-encoder in BUNDLE.

    Without DOCUMENTS, every line of standard input is one. Prints the score of each, the best first.
    """
    from edgeformer.runtime import Encoder, load

    model = load(bundle, provider, threads)
    if not isinstance(model, Encoder):
        raise RequestError(f"{bundle} is no encoder; it generates text: edgeformer run {bundle}")
    texts = list(documents) or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not texts:
        raise RequestError("there is no document; give at least one.")
    found = model.rank(query, texts, top_k=top_k)
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table([(f"{each.score:.3f}", each.text) for each in found], "score", "text")
