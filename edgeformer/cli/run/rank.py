"""edgeformer rank"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edgeformer.cli._options import COUNT, Command, execution_options, json_option, option
from edgeformer.cli._output import print_json, print_table
from edgeformer.cli.run._encoder import open_encoder, read_texts


@click.command("rank", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("query")
@click.argument("documents", nargs=-1)
@option("--prompt-name", metavar="NAME", help="Search by this instruction of the model.")
@option("--prompt", metavar="TEXT", help="Search by this instruction, for models that read one.")
@option("--top-k", **COUNT, help="Print the best N only.")
@execution_options
@json_option
def rank_command(
    bundle: Path,
    query: str,
    documents: tuple[str, ...],
    prompt_name: str | None,
    prompt: str | None,
    top_k: int | None,
    provider: Any,
    threads: int | None,
    as_json: bool,
) -> None:
    """Rank DOCUMENTS as answers to QUERY with the encoder in BUNDLE.

    A cross-encoder scores pairs; a model of vectors of tokens (ColBERT) scores by MaxSim.

    Without DOCUMENTS, every line of standard input is one. Prints the score of each, the best first.
    """
    model = open_encoder(bundle, provider, threads, "scores")
    found = model.rank(query, read_texts(documents, "document"), top_k=top_k, prompt=prompt, prompt_name=prompt_name)
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table([(f"{each.score:.3f}", each.text) for each in found], "score", "text")
