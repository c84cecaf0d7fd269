"""What do recipes of quantization cost a trained model? One table, for one model and one text.

    python tools/benchmarks/quantization_loss.py tiny-llama
    python tools/benchmarks/quantization_loss.py MODEL --text held_out.txt --calibrate text.txt
    python tools/benchmarks/quantization_loss.py tiny-llama --peer llama.cpp=/opt/peers/llama_cpp/bin/python

Every recipe is exported and run in onnxruntime as it is used, and its distributions of the next token are compared with
those of the float32 export after every token: the mean of the Kullback-Leibler divergence in nats, how often the
likeliest token is the same, and by how much the perplexity grows. The calibrated recipes read another text.

By default the texts are the preset's held-out problems, each by itself with its right answer, and those to calibrate
with are drawn as it was trained on (tools/presets). What counts is what the model learned to write, the answers. What
it says after each token of a question nobody taught it: that is told apart. A file is cut into pieces, and counts as a
whole.

--peer adds what another runtime makes of the same checkpoint with its own tool and its own defaults (compare_peers.py
tells how to install them): its files read the same tokens, and are held to the same float32 export. Its own float32
file goes first. Unless that says what ours does, its losses would tell nothing, and it is an error.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from edgeformer.export import export_model
from edgeformer.quantization import (
    MATRICES,
    VOCABULARY,
    Quantization,
    QuantizationOverrides,
    QuantizationRule,
    Rounding,
    WeightFormat,
    make_quantization,
)
from edgeformer.runtime import load
from edgeformer.runtime.session import usable_cores
from edgeformer.source import ModelSource, open_source

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from presets.corpora.mixture import document

from benchmarks.compare_peers import choose, interpreters
from benchmarks.environment import environment
from benchmarks.peers.process import convert, read_texts
from benchmarks.peers.registry import OURS, PEERS

LENGTH, PIECES = 256, 48
"""Tokens that are read of a file at once, and how often."""
PROBLEMS, DOCUMENTS = 500, 600
"""Of a preset, to measure and to calibrate with."""
PROBLEMS_FILE = "evaluation.jsonl"
"""Of a preset; a folder without one was not trained on the mixture."""

SAME_KL = 1e-8
"""Two float32 runs of one model stay far below (2e-12 on tiny-llama), and any recipe of 4 or 8 bits far above."""

Options = dict[str, Any]


@dataclass(frozen=True)
class Text:
    """Token ids, of which the model writes all but the first `asked`."""

    tokens: list[int]
    asked: int = 0


@dataclass(frozen=True)
class Loss:
    """bytes: of graph and weights. kl: mean over the places where the model writes, in nats; kl_anywhere: over all.

    top1: part of the places where it writes. perplexity: of what it writes, over float32's.
    """

    bytes: int
    kl: float
    kl_anywhere: float
    top1: float
    perplexity: float


def blocks(precision: Any, rounding: Rounding, **changes: Any) -> Options:
    """Integers in blocks, as exported by default but for what is given."""
    return {
        "precision": precision,
        "quantization": make_quantization(precision, QuantizationOverrides(rounding=rounding, **changes)),
    }


def per_token(rounding: Rounding) -> Options:
    """Products of int8 with int8: a scale for each output and one for each token, as in a view for prompts."""
    form, table = WeightFormat(bits=8, block=None, rounding=rounding), WeightFormat(bits=8, block=128)
    vocabulary = [QuantizationRule(pattern=pattern, format=table) for pattern in VOCABULARY]
    own = QuantizationRule(pattern=MATRICES, format=form)
    return {"precision": "int8", "quantization": Quantization(rules=(*vocabulary, own))}


RECIPES: dict[str, Callable[[], Options]] = {
    "bf16": lambda: {"precision": "bf16"},
    "float32, int8 cache": lambda: {"cache_precision": "int8"},
    "float32, int8 cache, calibrated": lambda: {"cache_precision": "int8"},
    "int8 in blocks of 128, nearest": lambda: blocks("int8", "nearest"),
    "int8 in blocks of 128, gptq": lambda: blocks("int8", "gptq"),
    "int8 × int8, nearest": lambda: per_token("nearest"),
    "int8 × int8, gptq": lambda: per_token("gptq"),
    "int4 in blocks of 32, nearest": lambda: blocks("int4", "nearest"),
    "int4 in blocks of 32, mse": lambda: blocks("int4", "mse"),
    "int4 in blocks of 32, gptq": lambda: blocks("int4", "gptq", block=32),
    "int4 in blocks of 64, gptq": lambda: blocks("int4", "gptq", block=64),
    "int4 in blocks of 128, gptq": lambda: blocks("int4", "gptq", block=128),
    "int4 in blocks of 32, nearest, int8 head": lambda: blocks("int4", "nearest", head="int8"),
    "int4 in blocks of 32, mse, int8 head": lambda: blocks("int4", "mse", head="int8"),
    "int4 in blocks of 32, gptq, int8 head": lambda: blocks("int4", "gptq", block=32, head="int8"),
    "int4 in blocks of 64, gptq, int8 head": lambda: blocks("int4", "gptq", block=64, head="int8"),
    "int4 in blocks of 128, gptq, int8 head": lambda: blocks("int4", "gptq", block=128, head="int8"),
}


def calibrated(name: str) -> bool:
    """Whether a recipe reads a text."""
    return "gptq" in name or "calibrated" in name


def held_out(folder: Path) -> list[tuple[str, str]]:
    """Held-out problems of a preset and their answers."""
    lines = (folder / PROBLEMS_FILE).read_text(encoding="utf-8").splitlines()
    problems = [json.loads(line) for line in lines]
    Random(0).shuffle(problems)
    return [(problem["prompt"], problem["answer"]) for problem in problems[:PROBLEMS]]


def drawn() -> list[str]:
    """Documents as the preset was trained on, but drawn with another seed than any of its steps."""
    random = Random("calibration")
    return ["".join(piece for piece, _ in document(random)) for _ in range(DOCUMENTS)]


def logits_of(bundle: Path, texts: list[Text]) -> Iterator[NDArray[np.float32]]:
    """Logits [S, V] after each of the S tokens, of one text after the other."""
    model = load(bundle, provider="cpu")
    return (model.forward(text.tokens) for text in texts)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithms of the probabilities of the next token [S, V]."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def compare(
    files: Iterable[Path],
    logits: Iterable[NDArray[np.float32]],
    exact: Iterable[NDArray[np.float32]],
    texts: list[Text],
) -> Loss:
    """What a model in these files, which computes these logits, loses of the exact ones."""
    everywhere, divergences, same, nats = [], [], [], []
    for text, rounded, whole in zip(texts, logits, exact, strict=True):
        ours, truth = log_softmax(rounded), log_softmax(whole)
        written = slice(max(text.asked - 1, 0), None)  # the last token of a question is what the first one follows
        divergence = (np.exp(truth) * (truth - ours)).sum(-1)
        everywhere.append(divergence)
        divergences.append(divergence[written])
        same.append((ours.argmax(-1) == truth.argmax(-1))[written])
        nexts = np.array(text.tokens[1:])[:, None]
        nats.append(np.take_along_axis((truth - ours)[:-1], nexts, -1)[written, 0])
    return Loss(
        bytes=sum(path.stat().st_size for path in files),
        kl=float(np.concatenate(divergences).mean()),
        kl_anywhere=float(np.concatenate(everywhere).mean()),
        top1=float(np.concatenate(same).mean()),
        perplexity=float(np.exp(np.concatenate(nats).mean())),
    )


def row(name: str, precision: str) -> str:
    """What a peer's file is called in the table."""
    return f"{name}, {PEERS[name].precisions[precision]}"


def peer_losses(
    name: str, facts: dict[str, Any], source: ModelSource, work: Path, texts: list[Text], only: Sequence[str]
) -> Iterator[tuple[str, Loss]]:
    """A row and its loss for each precision of a peer that is asked for, after that of its float32 file.

    Raises ClickException if the peer fails, or if its float32 file computes something else.
    """
    peer, checkpoint = PEERS[name], source.folder.resolve()
    for precision in peer.precisions:  # fp32 is the first
        if precision != "fp32" and not asked_for(row(name, precision), only):
            continue
        folder = work / name.replace(" ", "-") / precision
        if peer.converts:
            convert(name, peer, facts["python"], checkpoint, folder, precision, facts["versions"])
        tokens = [text.tokens for text in texts]
        runs = (checkpoint, folder, precision, usable_cores(), tokens, source.config.vocab_size)
        logits = read_texts(name, peer, facts["python"], *runs)
        files = (folder if peer.converts else checkpoint).glob(peer.weights)
        loss = compare(files, logits, logits_of(work / "whole", texts), texts)
        if precision == "fp32" and not loss.kl_anywhere < SAME_KL:
            raise click.ClickException(
                f"{name} computes another model in float32: its mean KL to ours is {loss.kl_anywhere:.1e}. What its "
                "integers lose can't be told from that."
            )
        yield row(name, precision), loss


def asked_for(name: str, only: Sequence[str]) -> bool:
    """Whether --only lets a row be."""
    return not only or any(part in name for part in only)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("model")
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What to measure on.")
@click.option("--calibrate", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What gptq goes by.")
@click.option("--only", multiple=True, help="Rows whose names hold this; repeatable.")
@click.option("--peer", "given", multiple=True, metavar="NAME=PYTHON", help="Also measure what it stores; repeatable.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write it here.")
def main(
    model: str,
    text: Path | None,
    calibrate: Path | None,
    only: tuple[str, ...],
    given: tuple[str, ...],
    json_file: Path | None,
) -> None:
    """Measure all rows that are asked for."""
    python_of = interpreters(given)
    if OURS in python_of:
        raise click.UsageError(f"{OURS} is measured anyway, and is no --peer.")
    recipes = [name for name in RECIPES if asked_for(name, only)]
    rows = [row(name, precision) for name in python_of for precision in PEERS[name].precisions]
    if not recipes and not any(asked_for(name, only) for name in rows):
        raise click.ClickException(f"no recipe is called so; there are: {'; '.join([*RECIPES, *rows])}")
    peers, _ = choose(list(python_of), python_of)
    source = open_source(model)
    wants_text = text is None or (calibrate is None and any(map(calibrated, recipes)))
    if wants_text and not (source.folder / PROBLEMS_FILE).is_file():
        raise click.UsageError(
            f"{model} has no {PROBLEMS_FILE}, as presets have. Give --text FILE to measure on, and for the recipes "
            "that are calibrated --calibrate FILE, another text of the kind that it was trained on."
        )
    ours: dict[str, Loss] = {}
    theirs: dict[str, Loss] = {}
    with tempfile.TemporaryDirectory(prefix="quantization_loss.") as temporary:
        folder = Path(temporary)
        export_model(model, folder / "whole", verify=None)
        whole = load(folder / "whole", provider="cpu")
        calibration = calibrate or [whole.encode(each) for each in drawn()]
        if text is None:
            problems = [(whole.encode(asked), whole.encode(answer)) for asked, answer in held_out(source.folder)]
            texts = [Text(asked + answer, len(asked)) for asked, answer in problems]
        else:
            tokens = whole.encode(text.read_text(encoding="utf-8"))
            starts = range(0, len(tokens), LENGTH)[:PIECES]
            texts = [Text(tokens[start : start + LENGTH]) for start in starts]
        for name, facts in peers.items():  # first, because they may fail
            for called, loss in peer_losses(name, facts, source, folder, texts, only):
                theirs[called] = loss
                click.echo(f"{called}: {loss.kl:.2e}", err=True)
        for name in recipes:
            options = RECIPES[name]()
            if calibrated(name):
                options["calibration"] = calibration
            export_model(model, folder / "bundle", verify=None, overwrite=True, **options)
            logits, exact = (logits_of(folder / bundle, texts) for bundle in ("bundle", "whole"))
            ours[name] = compare((folder / "bundle" / "onnx").iterdir(), logits, exact, texts)
            click.echo(f"{name}: {ours[name].kl:.2e}", err=True)
    found = ours | theirs
    read = sum(len(text.tokens) for text in texts)
    written = read - sum(text.asked for text in texts)
    title = f"{model}: {written:,} tokens that it writes, of {read:,}, beside float32"
    table = Table(title=title, title_justify="left")
    for column in ("weights and embeddings", "MB", "mean KL", "of all", "same likeliest", "perplexity"):
        table.add_column(column, justify="left" if column.startswith("weights") else "right")
    for name, loss in found.items():
        change = f"{100 * (loss.perplexity - 1):+.2f} %"
        kl, anywhere, top1 = f"{loss.kl:.1e}", f"{loss.kl_anywhere:.1e}", f"{100 * loss.top1:.2f} %"
        table.add_row(name, f"{loss.bytes / 1e6:.2f}", kl, anywhere, top1, change)
    Console(highlight=False, width=100).print(table)
    if json_file:
        versions = {name: facts["versions"] for name, facts in peers.items()}
        data = {"model": model, "tokens": read, "written": written, "peers": versions, "environment": environment()}
        losses = {name: asdict(loss) for name, loss in found.items()}
        json_file.write_text(json.dumps(data | {"losses": losses}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
