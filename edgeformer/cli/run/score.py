"""edgeformer score"""

from pathlib import Path
from typing import Any

import click

from edgeformer.cli._options import Command, execution_options, json_option
from edgeformer.cli._output import print_json
from edgeformer.cli.run._encoder import open_encoder


@click.command("score", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("first")
@click.argument("second")
@execution_options
@json_option
def score_command(bundle: Path, first: str, second: str, provider: Any, threads: int | None, as_json: bool) -> None:
    """Score how FIRST and SECOND belong together, with the cross-encoder in BUNDLE.

    A model of several labels gives one score for each.
    """
    scores = open_encoder(bundle, provider, threads, "scores").score((first, second)).tolist()
    if as_json:
        print_json(scores)
    else:
        click.echo(" ".join(f"{score:.6g}" for score in (scores if isinstance(scores, list) else [scores])))
