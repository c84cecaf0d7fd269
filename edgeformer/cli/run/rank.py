"""edgeformer rank"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeformer.cli._options import COUNT, Command, execution_options, json_option, option
from edgeformer.cli._output import print_json, print_table
from edgeformer.cli.run._encoder import open_ranker, read_texts
from edgeformer.errors import RequestError

if TYPE_CHECKING:
    from edgeformer.runtime import DualEncoder


@click.command("rank", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("query")
@click.argument("documents", nargs=-1)
@option(
    "--image", "images", multiple=True, type=click.Path(path_type=Path),
    help="A picture instead of a document (dual encoders of texts and pictures). Repeatable.",
)  # fmt: skip
@option("--prompt-name", metavar="NAME", help="Search by this instruction of the model.")
@option("--prompt", metavar="TEXT", help="Search by this instruction, for models that read one.")
@option("--top-k", **COUNT, help="Print the best N only.")
@execution_options
@json_option
def rank_command(
    bundle: Path,
    query: str,
    documents: tuple[str, ...],
    images: tuple[Path, ...],
    prompt_name: str | None,
    prompt: str | None,
    top_k: int | None,
    provider: Any,
    threads: int | None,
    as_json: bool,
) -> None:
    """Rank DOCUMENTS as answers to QUERY with the encoder in BUNDLE.

    A cross-encoder scores pairs; a model of vectors of tokens (ColBERT) scores by MaxSim.

    Without DOCUMENTS, every line of standard input is one. Prints the score of each, the best first. A dual encoder of
    texts and pictures ranks the files of --image by how well they fit QUERY.
    """
    from edgeformer.runtime import DualEncoder

    model = open_ranker(bundle, provider, threads)
    if isinstance(model, DualEncoder):
        _rank_pictures(model, query, documents, images, top_k, prompt or prompt_name, as_json)
        return
    if images:
        raise RequestError("--image: not for a bundle of this kind, which reads texts.")
    found = model.rank(query, read_texts(documents, "document"), top_k=top_k, prompt=prompt, prompt_name=prompt_name)
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table([(f"{each.score:.3f}", each.text) for each in found], "score", "text")


def _rank_pictures(
    model: "DualEncoder",
    query: str,
    documents: tuple[str, ...],
    images: tuple[Path, ...],
    top_k: int | None,
    prompt: str | None,
    as_json: bool,
) -> None:
    """Print pictures by how well they fit a text."""
    if documents or prompt is not None or not images:
        raise RequestError(f"this model ranks pictures by a text: edgeformer rank {model.folder} TEXT --image PATH…")
    found = [(each.score, str(images[each.index]), each.index) for each in model.rank(query, images, top_k=top_k)]
    if as_json:
        print_json([{"index": index, "score": score, "image": image} for score, image, index in found])
    else:
        print_table([(f"{score:.3f}", image) for score, image, _ in found], "cosine", "image")
