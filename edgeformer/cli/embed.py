"""edgeformer embed"""

from pathlib import Path
from typing import Any

import click

from edgeformer.cli._encoder import open_embedder, read_texts
from edgeformer.cli._options import COUNT, OUTPUT, Command, execution_options, json_option, option
from edgeformer.cli._output import note, print_json, print_table
from edgeformer.errors import RequestError

TEXTS = "Texts, pictures and vectors"


@click.command("embed", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1)
@execution_options
@option(
    "--image", "images", multiple=True, type=click.Path(path_type=Path), topic=TEXTS,
    help="A picture instead of a text (models of pictures). Repeatable.",
)  # fmt: skip
@option("--prompt-name", topic=TEXTS, metavar="NAME", help="Put this prompt of the model before each text: query, …")
@option("--prompt", topic=TEXTS, metavar="TEXT", help="Put this text before each text.")
@option("--dimensions", **COUNT, topic=TEXTS, help="Keep the first numbers of each vector only (Matryoshka).")
@option("--output", "-o", type=click.Path(path_type=Path), topic=OUTPUT, help="Save the vectors as this .npy file.")
@json_option
def embed_command(
    bundle: Path,
    texts: tuple[str, ...],
    images: tuple[Path, ...],
    output: Path | None,
    provider: Any,
    threads: int | None,
    as_json: bool,
    prompt_name: str | None,
    prompt: str | None,
    dimensions: int | None,
) -> None:
    """Turn TEXTS into vectors with the encoder in BUNDLE.

    Without TEXTS, every line of standard input is a text. Prints the cosine similarity of each text with the first
    one, the most similar first; --json prints the vectors, --output saves them. A model of pictures turns the files
    of --image into vectors.
    """
    import numpy as np

    from edgeformer.runtime import VisionEncoder
    from edgeformer.runtime.tasks.encoder import first_dimensions

    model, what = open_embedder(bundle, provider, threads), "text"
    if isinstance(model, VisionEncoder):
        if texts or prompt is not None or prompt_name is not None:
            raise RequestError(f"this model reads pictures, and no text: edgeformer embed {bundle} --image PATH…")
        if not images:
            raise RequestError("there is no picture; give at least one: --image PATH.")
        lines, what = [str(image) for image in images], "image"
        vectors = model.embed(images)
        vectors = vectors if dimensions is None else first_dimensions(vectors, dimensions)
    else:
        if images:
            raise RequestError("--image: not for a bundle of this kind, which reads texts.")
        lines = read_texts(texts, "text")
        vectors = model.embed(lines, prompt=prompt, prompt_name=prompt_name, dimensions=dimensions)
    if output is not None:
        try:
            with output.open("wb") as file:  # given a path, numpy would change its name
                np.save(file, vectors, allow_pickle=False)
        except OSError as error:
            raise RequestError(f"cannot write {output}: {error.strerror}.") from error
        note(f"saved {len(lines)} vectors of {vectors.shape[1]} to {output}")
    if as_json:
        print_json([{what: line, "vector": vector.tolist()} for line, vector in zip(lines, vectors, strict=True)])
    elif output is None or len(lines) > 1:
        lengths = np.linalg.norm(vectors, axis=1)
        similarity = vectors @ vectors[0] / np.maximum(lengths * lengths[0], 1e-12)
        order = np.argsort(-similarity, kind="stable").tolist()
        print_table([(f"{similarity[index]:.3f}", lines[index]) for index in order], "cosine", what)
