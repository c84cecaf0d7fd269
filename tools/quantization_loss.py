"""What do recipes of quantization cost a trained model? One table, for one model and one text.

    python tools/quantization_loss.py tiny-llama
    python tools/quantization_loss.py MODEL --text held_out.txt --calibrate text.txt

Every recipe is exported and run in onnxruntime as it is used, and its distributions of the next token are compared with
those of the float32 export after every token: the mean of the Kullback-Leibler divergence in nats, how often the
likeliest token is the same, and by how much the perplexity grows. The calibrated recipes read another text.

By default the texts are the preset's held-out problems, each by itself with its right answer, and those to calibrate
with are drawn as it was trained on (tools/presets). A file is cut into pieces.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import click
import numpy as np
from environment import environment
from numpy.typing import NDArray
from presets.mixture import document
from rich.console import Console
from rich.table import Table

from edgeformer.export import export_model
from edgeformer.quantization import MATRICES, VOCABULARY, Quantization, QuantizationRule, Rounding, WeightFormat, recipe
from edgeformer.runtime import load
from edgeformer.source import open_source

LENGTH, PIECES = 256, 48
"""Tokens that are read of a file at once, and how often."""
PROBLEMS, DOCUMENTS = 500, 600
"""Of a preset, to measure and to calibrate with."""

Options = dict[str, Any]


@dataclass(frozen=True)
class Loss:
    """bytes: of the weights in the bundle. kl: mean, in nats. top1: part of all places. perplexity: over float32's."""

    bytes: int
    kl: float
    top1: float
    perplexity: float


def blocks(precision: Any, rounding: Rounding, **changes: Any) -> Options:
    """Integers in blocks, as exported by default but for what is given."""
    return {"precision": precision, "quantization": recipe(precision, rounding=rounding, **changes)}


def by_token(rounding: Rounding) -> Options:
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
    "int8 × int8, nearest": lambda: by_token("nearest"),
    "int8 × int8, gptq": lambda: by_token("gptq"),
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


def held_out(model: str) -> list[str]:
    """Held-out problems of a preset, each with its answer."""
    lines = (open_source(model).folder / "evaluation.jsonl").read_text(encoding="utf-8").splitlines()
    problems = [json.loads(line) for line in lines]
    Random(0).shuffle(problems)
    return [problem["prompt"] + problem["answer"] for problem in problems[:PROBLEMS]]


def drawn() -> list[str]:
    """Documents as the preset was trained on, but drawn with another seed than any of its steps."""
    random = Random("calibration")
    return ["".join(piece for piece, _ in document(random)) for _ in range(DOCUMENTS)]


def distributions(bundle: Path, pieces: list[list[int]]) -> Iterator[NDArray[np.float64]]:
    """Logarithms of the probabilities of the next token [S, V], of one piece after the other."""
    model = load(bundle, provider="cpu")
    for piece in pieces:
        logits = model.forward(piece).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        yield logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def compare(bundle: Path, whole: Path, pieces: list[list[int]]) -> Loss:
    """What a bundle loses of a float32 one."""
    divergences, same, nats = [], [], []
    pairs = zip(pieces, distributions(bundle, pieces), distributions(whole, pieces), strict=True)
    for piece, ours, truth in pairs:
        divergences.append((np.exp(truth) * (truth - ours)).sum(-1))
        same.append(ours.argmax(-1) == truth.argmax(-1))
        nexts = np.array(piece[1:])[:, None]
        nats.append(np.take_along_axis((truth - ours)[:-1], nexts, -1)[:, 0])
    return Loss(
        bytes=sum(path.stat().st_size for path in (bundle / "onnx").iterdir()),
        kl=float(np.concatenate(divergences).mean()),
        top1=float(np.concatenate(same).mean()),
        perplexity=float(np.exp(np.concatenate(nats).mean())),
    )


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("model")
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What to measure on.")
@click.option("--calibrate", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What gptq goes by.")
@click.option("--only", multiple=True, help="Recipes whose names hold this; repeatable.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write it here.")
def main(model: str, text: Path | None, calibrate: Path | None, only: tuple[str, ...], json_file: Path | None) -> None:
    """Measure all recipes."""
    chosen = [name for name in RECIPES if not only or any(part in name for part in only)]
    if not chosen:
        raise click.ClickException(f"no recipe is called so; there are: {'; '.join(RECIPES)}")
    found: dict[str, Loss] = {}
    with tempfile.TemporaryDirectory(prefix="quantization_loss.") as temporary:
        folder = Path(temporary)
        export_model(model, folder / "whole", verify=None)
        whole = load(folder / "whole", provider="cpu")
        calibration = calibrate or [whole.encode(each) for each in drawn()]
        if text is None:
            pieces = [whole.encode(each) for each in held_out(model)]
        else:
            tokens = whole.encode(text.read_text(encoding="utf-8"))
            pieces = [tokens[start : start + LENGTH] for start in range(0, len(tokens), LENGTH)][:PIECES]
        for name in chosen:
            options = RECIPES[name]()
            if "gptq" in name or "calibrated" in name:
                options["calibration"] = calibration
            export_model(model, folder / "bundle", verify=None, overwrite=True, **options)
            found[name] = compare(folder / "bundle", folder / "whole", pieces)
            click.echo(f"{name}: {found[name].kl:.2e}", err=True)
    table = Table(title=f"{model}: {sum(map(len, pieces)):,} tokens, beside float32", title_justify="left")
    for column in ("weights and embeddings", "MB", "mean KL", "same likeliest", "perplexity"):
        table.add_column(column, justify="left" if column.startswith("weights") else "right")
    for name, loss in found.items():
        change = f"{100 * (loss.perplexity - 1):+.2f} %"
        table.add_row(name, f"{loss.bytes / 1e6:.2f}", f"{loss.kl:.1e}", f"{100 * loss.top1:.2f} %", change)
    Console(highlight=False).print(table)
    if json_file:
        data = {"model": model, "tokens": sum(map(len, pieces)), "environment": environment()}
        losses = {name: asdict(loss) for name, loss in found.items()}
        json_file.write_text(json.dumps(data | {"losses": losses}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
