"""edgeformer embed"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeformer.cli._options import COUNT, OUTPUT, Command, execution_options, json_option, option
from edgeformer.cli._output import note, print_json, print_table
from edgeformer.cli.run._encoder import open_embedder, read_texts
from edgeformer.errors import RequestError

if TYPE_CHECKING:
    from edgeformer.runtime import Embedding, Encoder, PictureEncoder

TEXTS = "Texts, pictures and vectors"
SHOWN = 10
"""Tokens of a sparse vector that are printed without --json."""


@click.command("embed", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1)
@execution_options
@option(
    "--image", "images", multiple=True, type=click.Path(path_type=Path), topic=TEXTS,
    help="A picture instead of a text (models of pictures), or in the place of a placeholder of TEXTS (encoders of "
    "pictures and texts). Repeatable.",
)  # fmt: skip
@option("--prompt-name", topic=TEXTS, metavar="NAME", help="Put this prompt of the model before each text: query, …")
@option("--prompt", topic=TEXTS, metavar="TEXT", help="Put this text before each text.")
@option("--dimensions", **COUNT, topic=TEXTS, help="Keep the first numbers of each vector only (Matryoshka).")
@option(
    "--form",
    type=click.Choice(["dense", "sparse", "tokens"]),
    topic=TEXTS,
    help="Make one vector, numbers for some tokens of the vocabulary, or a vector of every token.",
)
@option("--query", is_flag=True, topic=TEXTS, help="Read the texts as queries, for a vector of every token.")
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
    form: Any,
    query: bool,
) -> None:
    """Turn TEXTS into vectors with the encoder in BUNDLE.

    Without TEXTS, every line of standard input is a text. Prints the cosine similarity of each text with the first
    one, the most similar first; --json prints the vectors, --output saves them. A model of pictures turns the files
    of --image into vectors; a dual encoder does so with TEXTS and --image together. An encoder of pictures and texts
    reads them in the places of the placeholders of TEXTS, and each that is left by itself. `--form sparse` prints
    tokens and their numbers, and `--form tokens` how many vectors there are.
    """
    import numpy as np

    from edgeformer.runtime import DualEncoder, PictureEncoder, VisionEncoder
    from edgeformer.runtime.tasks.encoders.encoder import first_dimensions

    model = open_embedder(bundle, provider, threads)
    if isinstance(model, DualEncoder):
        if prompt is not None or prompt_name is not None or query or form is not None:
            raise RequestError("--prompt, --prompt-name, --query and --form: not for a bundle of this kind.")
        words = list(texts) if texts or images else read_texts(texts, "text")
        lines, what = [*words, *map(str, images)], "text or image"
        parts = [model.embed(words)] if words else []
        vectors = np.concatenate([*parts, *([model.embed(images=images)] if images else [])])
        vectors = vectors if dimensions is None else first_dimensions(vectors, dimensions)
    elif isinstance(model, VisionEncoder):
        if texts or prompt is not None or prompt_name is not None or query or form is not None:
            raise RequestError(f"this model reads pictures, and no text: edgeformer embed {bundle} --image PATH…")
        if not images:
            raise RequestError("there is no picture; give at least one: --image PATH.")
        lines, what = [str(image) for image in images], "image"
        vectors = model.embed(images)
        vectors = vectors if dimensions is None else first_dimensions(vectors, dimensions)
    else:
        shown: dict[str, Any] = {}
        lines, what = (list(texts) if texts or images else read_texts(texts, "text")), "text"
        if images:
            if not isinstance(model, PictureEncoder):
                raise RequestError("--image: not for a bundle of this kind, which reads texts.")
            lines, shown["images"] = _with_pictures(model, lines, images)
        if form in ("sparse", "tokens"):
            if dimensions is not None or output is not None:
                raise click.UsageError("--dimensions and --output are for one vector of a text: --form dense.")
            found = model.embeddings(lines, forms=[form], query=query, prompt=prompt, prompt_name=prompt_name, **shown)
            _print_forms(model, _named(lines, shown), found, as_json)
            return
        if query:
            raise click.UsageError("--query is for --form tokens.")
        vectors = model.embed(lines, prompt=prompt, prompt_name=prompt_name, dimensions=dimensions, **shown)
        lines = _named(lines, shown)
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


def _with_pictures(
    model: "PictureEncoder", texts: list[str], images: tuple[Path, ...]
) -> tuple[list[str], list[list[Path]]]:
    """Return texts with the pictures of their placeholders; those that are left are texts of their own."""
    tokenizer, token = model.require_tokenizer(), model.placeholder.token
    left, taken = list(images), list[list[Path]]()
    for text in texts:
        places = tokenizer.encode(text).count(token)
        taken.append(left[:places])
        left = left[places:]
    alone = str(tokenizer.backend.id_to_token(token))
    return [*texts, *[alone] * len(left)], [*taken, *([each] for each in left)]


def _named(texts: list[str], shown: dict[str, Any]) -> list[str]:
    """Return texts with the names of their pictures."""
    pictures = shown.get("images") or [()] * len(texts)
    return [" ".join([text, *map(str, each)]) for text, each in zip(texts, pictures, strict=True)]


def _print_forms(model: "Encoder", lines: list[str], found: "list[Embedding]", as_json: bool) -> None:
    """Print the sparse vectors of texts, or the vectors of their tokens."""
    records: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    heads = ("weight", "token", "text") if found[0].sparse is not None else ("vectors", "numbers", "text")
    for text, each in zip(lines, found, strict=True):
        if each.sparse is not None:
            indices, values = each.sparse.indices.tolist(), each.sparse.values.tolist()
            records.append({"text": text, "indices": indices, "values": values})
            rows += [(f"{value:.3f}", token, text) for token, value in model.sparse_tokens(each.sparse, SHOWN)]
        elif each.tokens is not None:
            records.append({"text": text, "vectors": each.tokens.tolist()})
            rows.append((str(len(each.tokens)), str(each.tokens.shape[1]), text))
    if as_json:
        print_json(records)
    else:
        print_table(rows, *heads)
