"""Prepack a bundle for this machine, and say what it brings."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import BundleError, ParityError, RequestError, require
from edgeformer.manifest import Manifest
from edgeformer.runtime.audio import SAMPLE_RATE
from edgeformer.runtime.benchmarking.result import Memory
from edgeformer.runtime.benchmarking.startup import measure_loading, measure_memory
from edgeformer.runtime.benchmarking.workloads import Request
from edgeformer.runtime.causal_lm import CausalLM
from edgeformer.runtime.encoder import Encoder
from edgeformer.runtime.loading import load
from edgeformer.runtime.model import Model
from edgeformer.runtime.prepacked_graphs import FOLDER, opened_graphs, place
from edgeformer.runtime.seq2seq import Seq2SeqLM
from edgeformer.runtime.session import onnxruntime, onnxruntime_errors, session_options, usable_cores

TOKENS, STEPS = 24, 4
"""Of the text by which graphs are compared."""
SMALLEST = 1024
"""Bytes of a weight that is worth a place in the file."""
PAGE = 4096
CHUNK = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Startup:
    """Seconds until a fresh process has the bundle open, and its memory after a first short answer."""

    load_seconds: float
    memory: Memory | None


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """folder: what was added to the bundle. bytes: its size."""

    folder: Path
    bytes: int
    before: Startup
    after: Startup


def optimize(bundle: str | Path, threads: int | None = None) -> Optimized:
    """Prepack the graphs of a bundle for this machine, in place of what was prepacked before.

    The prepacked graphs must answer bit for bit as the bundle's own. Raises ParityError, and keeps nothing, where they
    do not; BundleError where they cannot be written.
    """
    require("onnx", "export")  # before minutes of work
    folder = Path(bundle)
    manifest = Manifest.read(folder)
    if manifest.provider != "cpu":
        raise RequestError("graphs are prepacked for the CPU, and this bundle is for CUDA, which needs none of it.")
    if not manifest.graph.endswith(".onnx"):
        raise RequestError("graphs in ORT format are made for small builds of onnxruntime, which prepack no files.")
    remove(folder)
    before, expected = _startup(folder, threads), _answers(load(folder, "cpu", threads))
    destination = place(folder, manifest)
    staging = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", dir=folder))
    try:
        for graph in opened_graphs(manifest):
            _write(folder / graph, staging / PurePosixPath(graph).name)
        destination.parent.mkdir()
        staging.rename(destination)
        answers = _answers(load(folder, "cpu", threads))
        if any(not np.array_equal(*pair) for pair in zip(expected, answers, strict=True)):
            raise ParityError(
                "the prepacked graphs answer otherwise than the bundle's own; they were removed. This is a fault of "
                f"onnxruntime {onnxruntime().__version__}: please report it with the model's config.json."
            )
        size = sum(path.stat().st_size for path in destination.iterdir())
        return Optimized(folder=destination, bytes=size, before=before, after=_startup(folder, threads))
    except BaseException as error:
        remove(folder)
        if isinstance(error, OSError):
            raise BundleError(f"cannot write into {folder}: {error.strerror or error}. Nothing was kept.") from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove(folder: Path) -> bool:
    """Remove what is prepacked, for whatever machine, and what killed commands left. Returns whether there was any."""
    Manifest.read(folder)  # in a folder that is no bundle, what is called so is not ours
    there = [folder / FOLDER] if (folder / FOLDER).is_dir() else []
    there += folder.glob(f".{FOLDER}.*")
    for each in there:
        shutil.rmtree(each)
    return bool(there)


def _write(graph: Path, prepacked: Path) -> None:
    """Let onnxruntime write a graph as it runs it."""
    options = session_options(usable_cores())
    options.optimized_model_filepath = str(prepacked)
    for name, value in (
        ("save_external_prepacked_constant_initializers", "1"),
        ("optimized_model_external_initializers_file_name", f"{prepacked.name}_data"),
        ("optimized_model_external_initializers_min_size_in_bytes", str(SMALLEST)),
    ):
        options.add_session_config_entry(f"session.{name}", value)
    try:
        onnxruntime().InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except onnxruntime_errors() as error:
        raise BundleError(f"onnxruntime cannot prepack {graph}: {error}") from error
    _align(prepacked)


def _align(graph: Path) -> None:
    """Let every weight in the file begin where a page does.

    onnxruntime 1.31 writes them one behind the other and maps them from where they are, while its kernels count on the
    alignment of memory that they allocate: MatMulNBits finds its scales elsewhere, and others end the process.
    """
    onnx = require("onnx", "export")
    model = onnx.load(graph, load_external_data=False)
    data, aligned = (graph.with_name(graph.name + suffix) for suffix in ("_data", "_aligned"))
    with data.open("rb") as source, aligned.open("wb") as target:

        def moved(offset: str, length: str) -> str:
            place = target.seek(-(-target.tell() // PAGE) * PAGE)
            source.seek(int(offset))
            left = int(length)
            while left:
                left -= target.write(source.read(min(left, CHUNK)))
            return str(place)

        for tensor in model.graph.initializer:
            entries = {entry.key: entry for entry in tensor.external_data}
            if not entries:
                continue
            entries["offset"].value = moved(entries["offset"].value, entries["length"].value)
            for name, entry in entries.items():
                if name.startswith("prepacked_"):  # key|offset;length;flags|offset;length;flags…
                    key, *blobs = entry.value.split("|")
                    parts = [blob.split(";") for blob in blobs]
                    entry.value = "|".join([key, *(";".join([moved(*part[:2]), *part[1:]]) for part in parts)])
        target.truncate(max(target.tell(), 1))
    aligned.replace(data)
    onnx.save(model, graph)


def _startup(folder: Path, threads: int | None) -> Startup:
    threads = threads or usable_cores()
    new_tokens = 0 if Manifest.read(folder).task == "encoder" else 1
    memory = measure_memory(folder, "cpu", threads, Request(tokens=1, batch_size=1, new_tokens=new_tokens))
    return Startup(load_seconds=measure_loading(folder, "cpu", threads).load, memory=memory)


def _answers(model: Model) -> list[NDArray[Any]]:
    """What all graphs of a model make of random tokens: states, or logits after a text and some steps."""
    manifest = model.manifest
    length = TOKENS if manifest.prefill is None else max(TOKENS, manifest.prefill.from_tokens)
    length = min(length, max(1, manifest.context_length - STEPS))
    tokens = np.random.default_rng(0).integers(0, manifest.vocab_size, length).tolist()
    if isinstance(model, Encoder):
        return list(model.run([tokens]).values())
    if isinstance(model, Seq2SeqLM):
        source: Any = np.zeros(SAMPLE_RATE, np.float32) if model.is_speech else tokens
        decoder, answers = model.new_decoder(model.run_encoder([source]), STEPS), []
    else:
        assert isinstance(model, CausalLM)
        decoder = model.new_decoder(1, len(tokens) + STEPS)
        # A view, where there is one, gives the second.
        answers = [model.forward(tokens), decoder.prefill(0, tokens).copy()]
    return answers + [decoder.decode_one_token([token]).copy() for token in tokens[:STEPS]]
