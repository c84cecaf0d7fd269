"""Measure what quantization costs a trained model, for every quantization config, on one text.

    python tools/benchmarks/quantization_loss.py tiny-llama
    python tools/benchmarks/quantization_loss.py MODEL --text held_out.txt --calibrate text.txt
    python tools/benchmarks/quantization_loss.py tiny-llama --peer llama.cpp=/opt/peers/llama_cpp/bin/python
    python tools/benchmarks/quantization_loss.py MODEL --text held_out.txt --calibrate text.txt --gguf Q4_0 --gguf Q8_0

Each config is exported and run in onnxruntime on the CPU, where a float32 twin stands for one with an fp8 cache. After
every token, its distribution of the next token is compared with that of the float32 export. Prints,
for each config, the size in MB, the mean Kullback-Leibler divergence in nats (on the answers, and on all tokens), the
share of equal top-1 tokens in percent, and the change of perplexity in percent.
Calibrated configs read another text.

By default the texts are the preset's held-out problems, each with its right answer; calibration texts are drawn like
its training data (tools/presets). The figures are about the answers, because nobody trained the model to predict the
tokens of a question; those count in the divergence on all tokens only. A file given by --text is cut into pieces, of
which every token counts.

--peer also measures what another runtime makes of the same checkpoint with its own tool and defaults (compare_peers.py
tells how to install them), on the same tokens and against the same float32 export. The peer's float32 file is measured
first: if it does not agree with edgeformer's, the peer's losses would mean nothing, and that is an error.

--target-size and --bits measure exports of that size, whose matrices have the formats that lose least by the
calibration text (calibrated configs, too); what each matrix loses is measured once, and kept in the file of
--sensitivities. --plot draws the divergence of each row against its size.

Rows that the file of --json already has, of the same model and number of tokens, are not measured again. --reference
keeps the float32 export and its logits for later runs: 200 kB per token where the vocabulary has 49,152 tokens.

--imatrix also measures llama.cpp's formats with an importance matrix: a file that its llama-imatrix wrote, best of the
text of --calibrate.

--gguf measures what the blocks of a GGUF file lose: the package `gguf` rounds the matrices of the checkpoint and what
they mean is exported in float32, so that nothing else is rounded. Embeddings are Q8_0 where they share the head, as
llama.cpp stores them.
"""

import json
import math
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from edgeformer.checkpoints.source import ModelSource, open_source
from edgeformer.export import export_model
from edgeformer.manifest.parts import sha256
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import load
from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from presets.corpora.mixture import document

from benchmarks.compare_peers import choose, interpreters
from benchmarks.environment import environment
from benchmarks.peers.plot import draw_sizes
from benchmarks.peers.process import convert, read_texts
from benchmarks.peers.registry import IMATRIX, OURS, PEERS
from benchmarks.quality.configs import CONFIGS, Options, calibrated, sized, twin_of, write_rounded
from benchmarks.quality.losses import Loss, Text, compare, keep_logits, logits_of, perplexity_of, read_logits

LENGTH, PIECES = 512, 40
"""Tokens per piece of a text file, and the number of pieces."""
PROBLEMS, DOCUMENTS = 500, 600
"""Problems of a preset to measure on, and documents to calibrate with."""
PROBLEMS_FILE = "evaluation.jsonl"
"""Held-out problems in the folder of a preset; other folders have none."""

SAME_KL = 1e-8
"""Nats. Float32 runs of one model differ far less (2e-12 on tiny-llama); 4 and 8 bits differ far more."""

EXPORT, REFERENCE_OF = "float32", "of.json"
"""In the folder of --reference: the float32 export, and what its logits are of."""


def held_out(folder: Path) -> list[tuple[str, str]]:
    """Return the held-out problems of a preset and their answers."""
    lines = (folder / PROBLEMS_FILE).read_text(encoding="utf-8").splitlines()
    problems = [json.loads(line) for line in lines]
    Random(0).shuffle(problems)
    return [(problem["prompt"], problem["answer"]) for problem in problems[:PROBLEMS]]


def drawn() -> list[str]:
    """Return documents drawn like the preset's training data, with a seed that no training step used."""
    random = Random("calibration")
    return ["".join(piece for piece, _ in document(random)) for _ in range(DOCUMENTS)]


def rows_of(name: str, imatrix: Path | None) -> dict[str, str]:
    """Return the names of a peer's rows in the table, by precision or format; fp32 comes first."""
    peer = PEERS[name]
    formats = (*peer.formats, *(peer.imatrix_formats if imatrix else ()))
    own = peer.precisions | {form: form for form in formats}
    return {precision: f"{name}, {called}" for precision, called in own.items()}


def peer_losses(
    name: str,
    facts: dict[str, Any],
    source: ModelSource,
    work: Path,
    texts: list[Text],
    exact: list[NDArray[np.float32]],
    only: Sequence[str],
    known: Collection[str],
    imatrix: Path | None,
) -> Iterator[tuple[str, Loss]]:
    """Yield a row name and its loss for each requested precision or format of a peer, after its float32 file.

    known: rows that are left out.
    imatrix: a file with an importance matrix for formats that take one.

    Raises ClickException if the peer fails, or if its float32 file computes another model.
    """
    peer, checkpoint = PEERS[name], source.folder.resolve()
    settings = {IMATRIX: str(imatrix.resolve())} if imatrix else {}
    for precision, row in rows_of(name, imatrix).items():
        if row in known or not (precision == "fp32" or asked_for(row, only)):
            continue
        folder = work / name.replace(" ", "-") / precision
        if peer.converts:
            convert(name, peer, facts["python"], checkpoint, folder, precision, facts["versions"], settings)
        tokens = [text.tokens for text in texts]
        runs = (checkpoint, folder, precision, usable_cores(), tokens, source.config.vocab_size)
        logits = read_texts(name, peer, facts["python"], *runs)
        files = (folder if peer.converts else checkpoint).glob(peer.weights)
        loss = compare(files, logits, exact, texts)
        if precision == "fp32" and not loss.kl_anywhere < SAME_KL:
            raise click.ClickException(
                f"{name} computes another model in float32: its mean KL to ours is {loss.kl_anywhere:.1e}. What its "
                "integers lose can't be told from that."
            )
        yield row, loss


def reference_logits(bundle: Path, source: ModelSource, texts: list[Text], folder: Path) -> list[NDArray[np.float32]]:
    """Return the logits of the float32 export, which an earlier run may have left in a folder.

    Raises ClickException if these are of another model or of other texts.
    """
    weights = {file.name: sha256(file) for file in sorted(source.folder.glob("*.safetensors"))}
    of, file = {"weights": weights, "tokens": [text.tokens for text in texts]}, folder / REFERENCE_OF
    if not file.exists():
        kept = keep_logits(bundle, texts, folder)
        file.write_text(json.dumps(of), encoding="utf-8")
        return kept
    if json.loads(file.read_text(encoding="utf-8")) != of:
        raise click.ClickException(f"{folder} has the logits of another model or of other texts. Name another folder.")
    return read_logits(texts, folder)


def asked_for(name: str, only: Sequence[str]) -> bool:
    """Return whether --only selects a row."""
    return not only or any(part in name for part in only)


def measured_texts(model: Any, file: Path | None, preset: Path) -> list[Text]:
    """Return the texts to measure on: pieces of a file, or without one the held-out problems of a preset."""
    if file is None:
        problems = [(model.encode(asked), model.encode(answer)) for asked, answer in held_out(preset)]
        return [Text(asked + answer, len(asked)) for asked, answer in problems]
    tokens = model.tokenizer.encode(file.read_text(encoding="utf-8"))  # a file may be longer than the context
    return [Text(tokens[start : start + LENGTH]) for start in range(0, len(tokens), LENGTH)[:PIECES]]


COLUMNS = ("weights and embeddings", "MB", "bits per weight", "mean KL", "on all tokens", "same top-1", "perplexity")


def cells(name: str, loss: Loss, weights: int) -> list[str]:
    """Return a row of the table. weights: the number of parameters."""
    change = f"{100 * (loss.perplexity - 1):+.2f} %"
    kl, anywhere, top1 = f"{loss.kl:.1e}", f"{loss.kl_anywhere:.1e}", f"{100 * loss.top1:.2f} %"
    return [name, f"{loss.bytes / 1e6:.2f}", f"{8 * loss.bytes / weights:.2f}", kl, anywhere, top1, change]


def read_losses(file: Path | None, model: str, read: int) -> dict[str, Loss]:
    """Return the losses that an earlier run of the same model and number of tokens wrote into a file."""
    if file is None or not file.exists():
        return {}
    data = json.loads(file.read_text(encoding="utf-8"))
    same = (data["model"], data["tokens"]) == (Path(model).name, read)
    return {name: Loss(**loss) for name, loss in data["losses"].items()} if same else {}


def print_losses(losses: dict[str, Loss], title: str, weights: int) -> None:
    """Print the table. weights: the number of parameters."""
    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column.startswith("weights") else "right")
    for name, loss in losses.items():
        table.add_row(*cells(name, loss, weights))
    Console(highlight=False, width=100).print(table)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("model")
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Text file to measure on.")
@click.option(
    "--calibrate", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Text file to calibrate with."
)
@click.option("--only", multiple=True, help="Rows whose names contain this; repeatable.")
@click.option("--peer", "given", multiple=True, metavar="NAME=PYTHON", help="Also measure this peer; repeatable.")
@click.option("--target-size", "sizes", multiple=True, metavar="SIZE", help="Also measure this size; repeatable.")
@click.option("--bits", "bits", multiple=True, type=float, help="Also measure this many bits; repeatable.")
@click.option("--sensitivities", type=click.Path(dir_okay=False, path_type=Path), help="File that is kept for sizes.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Also draw size against loss here.")
@click.option("--gguf", multiple=True, metavar="TYPE", help="Also measure blocks of a GGUF file; repeatable.")
@click.option(
    "--imatrix", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Importance matrix for llama.cpp."
)
@click.option(
    "--reference", type=click.Path(file_okay=False, path_type=Path), help="Folder that keeps the float32 logits."
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures to this file."
)
def main(
    model: str,
    text: Path | None,
    calibrate: Path | None,
    only: tuple[str, ...],
    given: tuple[str, ...],
    sizes: tuple[str, ...],
    bits: tuple[float, ...],
    sensitivities: Path | None,
    plot: Path | None,
    gguf: tuple[str, ...],
    imatrix: Path | None,
    reference: Path | None,
    json_file: Path | None,
) -> None:
    """Measure all selected rows."""
    python_of = interpreters(given)
    if OURS in python_of:
        raise click.UsageError(f"{OURS} is always measured; it cannot be a --peer.")
    if imatrix and not any(PEERS[name].imatrix_formats for name in python_of):
        raise click.UsageError("--imatrix is for formats of llama.cpp. Give --peer llama.cpp=PYTHON, too.")
    configs = [name for name in CONFIGS if asked_for(name, only)]
    rows = [row for name in python_of for row in rows_of(name, imatrix).values()]
    targets: dict[str, Options] = {f"target size {size}": {"target_size": size} for size in sizes}
    targets |= {f"{each:g} bits per weight": {"bits": each} for each in bits}
    if not configs and not gguf and not targets and not any(asked_for(name, only) for name in rows):
        raise click.ClickException(f"no row matches --only; the rows are: {'; '.join([*CONFIGS, *rows])}")
    peers, _ = choose(list(python_of), python_of)
    source = open_source(model)
    wants_text = text is None or (calibrate is None and (targets or any(map(calibrated, configs))))
    if wants_text and not (source.folder / PROBLEMS_FILE).is_file():
        raise click.UsageError(
            f"{model} has no {PROBLEMS_FILE}, as presets have. Give --text FILE to measure on, and --calibrate FILE, "
            "another text like its training data, for the calibrated configs."
        )
    weights = sum(map(math.prod, model_spec_of(source.config).parameter_shapes().values()))
    ours: dict[str, Loss] = {}
    theirs: dict[str, Loss] = {}
    with tempfile.TemporaryDirectory(prefix="quantization_loss.") as temporary:
        folder = Path(temporary)
        kept_in = reference or folder / "reference"
        if not (kept_in / EXPORT).exists():
            export_model(model, kept_in / EXPORT, verify=None)
        whole = load(kept_in / EXPORT, provider="cpu")
        calibration = calibrate or [whole.encode(each) for each in drawn()]
        texts = measured_texts(whole, text, source.folder)
        exact = reference_logits(kept_in / EXPORT, source, texts, kept_in)
        perplexity = perplexity_of(exact, texts)
        read = sum(len(each.tokens) for each in texts)
        written = read - sum(each.asked for each in texts)
        title = f"{Path(model).name}, {read:,} tokens"
        if written < read:
            title += f", of which {written:,} are answers"
        title += f"; in float32 the perplexity is {perplexity:.2f}"

        for name, loss in read_losses(json_file, model, read).items():
            (theirs if name.startswith(("GGUF", *(f"{peer}, " for peer in PEERS))) else ours)[name] = loss
        known = ours.keys() | theirs.keys()

        def keep(losses: dict[str, Loss], name: str, loss: Loss) -> None:
            """Keep a row, and write what there is, since the next rows take minutes."""
            losses[name] = loss
            click.echo(f"{name}: {loss.kl:.2e}", err=True)
            if json_file:
                versions = {name: facts["versions"] for name, facts in peers.items()}
                found = ours | theirs
                data = {"tool": "quantization_loss", "title": title, "environment": environment()}
                data |= {"model": Path(model).name, "weights": weights}
                data |= {"tokens": read, "written": written, "peers": versions, "perplexity": perplexity}
                data |= {"losses": {name: asdict(each) for name, each in found.items()}}
                data |= {"tables": [{"columns": COLUMNS, "rows": [cells(*each, weights) for each in found.items()]}]}
                json_file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

        for name, facts in peers.items():  # first, because a peer can fail
            for called, loss in peer_losses(name, facts, source, folder, texts, exact, only, known, imatrix):
                keep(theirs, called, loss)
        wanted = {name: CONFIGS[name] for name in configs}
        kept = sensitivities or folder / "sensitivities.json"
        wanted |= {name: partial(sized, target, kept) for name, target in targets.items()}
        for name, make in wanted.items():
            if name in known:
                continue
            options = dict(make())
            if calibrated(name) or name in targets:
                options["calibration"] = calibration
            bundle = export_model(model, folder / "bundle", verify=None, overwrite=True, **options).path
            if options.get("cache_precision") == "fp8":
                bundle = twin_of(bundle, model, Path(tempfile.mkdtemp(dir=folder)) / "twin")
            keep(ours, name, compare((bundle / "onnx").iterdir(), logits_of(bundle, texts), exact, texts))
        for kind in gguf:
            if f"GGUF {kind}" in known:
                continue
            blocks = write_rounded(source, kind, folder / kind)
            bundle = export_model(folder / kind, folder / "bundle", verify=None, overwrite=True).path
            keep(theirs, f"GGUF {kind}", compare([blocks], logits_of(bundle, texts), exact, texts))
    print_losses(ours | theirs, title, weights)
    if plot is not None:
        draw_sizes({name: (loss.bytes, loss.kl_anywhere) for name, loss in (ours | theirs).items()}, title, plot)


if __name__ == "__main__":
    main()
