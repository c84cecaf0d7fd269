"""Write prepacked graphs of a bundle for this machine (`optimize`), and measure what they save."""

import shutil
import tempfile
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.documents.durability import sync_folder
from edgeformer.errors import BundleError, ParityError, RequestError, require
from edgeformer.manifest.manifest import MODELS, Manifest
from edgeformer.manifest.providers import CPU
from edgeformer.runtime import request_values
from edgeformer.runtime.measure.benchmarking.result import Memory
from edgeformer.runtime.measure.benchmarking.startup import measure_loading, measure_memory
from edgeformer.runtime.measure.benchmarking.workloads import Request, Source
from edgeformer.runtime.media.sound.audio import SAMPLE_RATE
from edgeformer.runtime.sessions.graphs.fused_nodes import with_fused_nodes
from edgeformer.runtime.sessions.graphs.optional_inputs import OPTIONAL, with_optional_inputs
from edgeformer.runtime.sessions.kernels import KernelChoice, choose_kernels
from edgeformer.runtime.sessions.prepacked.prepacked_graphs import FOLDER, opened_graphs, prepacked_folder
from edgeformer.runtime.sessions.prepacked.prepacked_record import CACHE, record_file, remember
from edgeformer.runtime.sessions.prepacked.stored_panels import store_panels
from edgeformer.runtime.sessions.session import (
    choose_threads,
    onnxruntime,
    onnxruntime_errors,
    session_options,
    usable_cores,
)
from edgeformer.runtime.steps.runner import StepRunner
from edgeformer.runtime.tasks.causal_lm import CausalLM
from edgeformer.runtime.tasks.encoders.encoder import Encoder
from edgeformer.runtime.tasks.loading import load
from edgeformer.runtime.tasks.model import Model
from edgeformer.runtime.tasks.seq2seq import Seq2SeqLM
from edgeformer.runtime.tasks.vision.dual_encoder import DualEncoder
from edgeformer.runtime.tasks.vision.picture_reader import PictureReader

TOKENS, STEPS = 24, 4
"""Tokens of the text, and decode steps after it, by which graphs are compared."""

SMALLEST = 1024
"""Bytes of the smallest weight that is stored in the data file instead of the graph's own file."""

PAGE = 4096
"""Alignment of weights in the data file, in bytes: a page of memory."""

CHUNK = 1 << 24
"""Bytes that are copied at once."""

KEPT_FOR_KERNELS = ("QuickGeluFusion",)
"""Optimizers of onnxruntime that are left out where kernels run nodes as one. What they would fuse, kernels compute in
these (`fused_nodes.LIGHT`); of the op that they make of it, onnxruntime would, and rounds otherwise."""


@dataclass(frozen=True, kw_only=True)
class Startup:
    """Loading in a fresh process.

    load_seconds: time of `load`. memory: of the process after one short request; None where the system does not tell.
    """

    load_seconds: float
    memory: Memory | None


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """The result of `optimize`.

    folder: what was added to the bundle. bytes: its size. before, after: loading without and with it.
    """

    folder: Path
    bytes: int
    before: Startup
    after: Startup


def optimize(bundle: str | Path, threads: int | None = None) -> Optimized:
    """Write prepacked graphs of a bundle for this machine, and remove all that were written before.

    Graphs that are prepacked load faster and take less memory. Where edgeformer-kernels is installed and used, they are
    for its kernels. threads: for measuring, None for all usable cores. Their outputs must equal those of the bundle's
    own graphs bit for bit: otherwise raises ParityError and keeps nothing.
    Raises BundleError if they cannot be written, and RequestError for a bundle that is not for onnxruntime on the CPU.
    """
    require("onnx", "export")  # before minutes of work
    folder = request_values.path("bundle", bundle)
    manifest = Manifest.read(folder)
    if not manifest.plan.runs_on.prepacked:
        made_for = manifest.plan.runs_on.title
        raise RequestError(
            f"graphs are prepacked for the CPU, and this bundle is for {made_for}, which would not use them."
        )
    if not manifest.graph.endswith(".onnx"):
        raise RequestError("graphs in ORT format are for small builds of onnxruntime, which load no prepacked graphs.")
    remove(folder)
    before, expected = _startup(folder, threads), _answers(load(folder, "cpu", threads))
    kernels = choose_kernels(CPU)
    destination = prepacked_folder(folder, manifest, kernels)
    staging = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", dir=folder))
    try:
        for graph in opened_graphs(manifest):
            _write(folder / graph, staging / PurePosixPath(graph).name, kernels)
        destination.parent.mkdir()
        sync_folder(staging)
        staging.rename(destination)
        sync_folder(destination.parent)
        _remember(destination)
        answers = _answers(load(folder, "cpu", threads))
        if any(not np.array_equal(*pair) for pair in zip(expected, answers, strict=True)):
            raise ParityError(
                "the outputs of the prepacked graphs differ from the bundle's own; they were removed. This is a bug of "
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
    """Remove the prepacked graphs of all machines, and temporary folders; return whether there were any."""
    Manifest.read(folder)  # raises for a folder that is no bundle, whose files are not ours
    there = [path for path in (folder / FOLDER,) if path.is_dir() or path.is_symlink()]
    there += folder.glob(f".{FOLDER}.*")
    for each in there:
        if each.is_symlink():
            each.unlink()  # what it points to is not ours
        else:
            shutil.rmtree(each)
    return bool(there)


def _remember(prepacked: Path) -> None:
    """Record prepacked graphs as written here. Raises BundleError where the user's cache cannot be written."""
    try:
        remember(prepacked)
    except OSError as error:
        raise BundleError(
            f"cannot write {record_file(prepacked.name)}, the record without which prepacked graphs are not opened: "
            f"{error.strerror or error}. Let {CACHE} name a folder that you can write to. Nothing was kept."
        ) from error


def _write(graph: Path, prepacked: Path, kernels: KernelChoice) -> None:
    """Let onnxruntime write a graph as it runs it: optimised, with prepacked weights. Pack those of kernels, too."""
    options = session_options(usable_cores())
    kernels.register(options)
    options.optimized_model_filepath = str(prepacked)
    for name, value in (
        ("save_external_prepacked_constant_initializers", "1"),
        ("optimized_model_external_initializers_file_name", f"{prepacked.name}_data"),
        ("optimized_model_external_initializers_min_size_in_bytes", str(SMALLEST)),
    ):
        options.add_session_config_entry(f"session.{name}", value)
    try:
        # With the input, or onnxruntime takes its default for a constant, which it shares with what is 0 forever.
        model = with_optional_inputs(graph, options)
        fuses = kernels.library is not None and with_fused_nodes(graph, kernels.library.ops, None) is not None
        disabled = KEPT_FOR_KERNELS if fuses else ()
        onnxruntime().InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(disabled)
        )
    except onnxruntime_errors() as error:
        raise BundleError(f"onnxruntime cannot prepack {graph}: {error}") from error
    _lay_out(prepacked, kernels)


def _lay_out(graph: Path, kernels: KernelChoice) -> None:
    """Move every weight in the data file to the beginning of a page, those of kernels packed.

    onnxruntime 1.31 writes weights without alignment and maps them as they are, while its kernels rely on the alignment
    of memory that it allocates: MatMulNBits reads wrong scales, and other kernels crash.
    """
    onnx = require("onnx", "export")
    model = onnx.load(graph, load_external_data=False)
    data, aligned = (graph.with_name(graph.name + suffix) for suffix in ("_data", "_aligned"))
    with data.open("rb") as source, aligned.open("wb") as target:

        def next_page() -> str:
            return str(target.seek(-(-target.tell() // PAGE) * PAGE))

        def append(panels: NDArray[np.uint8]) -> dict[str, str]:
            offset = next_page()
            target.write(panels.data)
            return {"location": data.name, "offset": offset, "length": str(len(panels))}

        def moved(offset: str, length: str) -> str:
            place = next_page()
            source.seek(int(offset))
            left = int(length)
            while left:
                left -= target.write(source.read(min(left, CHUNK)))
            return place

        panels = [] if kernels.library is None else store_panels(model, data, kernels, append)
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
        model.graph.initializer.extend(panels)
        for added in [value for value in model.graph.input if value.name in OPTIONAL]:
            model.graph.input.remove(added)  # as in the bundle's own graph: they are added when the file is opened
        target.truncate(max(target.tell(), 1))
    aligned.replace(data)
    onnx.save(model, graph)


def _startup(folder: Path, threads: int | None) -> Startup:
    threads = choose_threads(threads)
    new_tokens = 0 if MODELS[Manifest.read(folder).task].form == "encoder" else 1
    source = Source(str(folder), "cpu", threads)
    memory = measure_memory(source, Request(tokens=1, batch_size=1, new_tokens=new_tokens))
    return Startup(load_seconds=measure_loading(source).load, memory=memory)


def _answers(model: Model) -> list[NDArray[Any]]:
    """Return outputs of all graphs of a model for random tokens: states, or logits after a text and after steps."""
    manifest = model.manifest
    length = min(TOKENS, max(1, manifest.context_length - STEPS))
    tokens = np.random.default_rng(0).integers(0, max(1, manifest.vocab_size), length).tolist()  # pictures have none
    return _outputs(model, tokens)


@singledispatch
def _outputs(model: Model, tokens: list[int]) -> list[NDArray[Any]]:
    """Return outputs of all graphs of a model that reads these tokens."""
    raise TypeError(f"{type(model).__name__} has no outputs to compare")


@_outputs.register
def _states(model: Encoder, tokens: list[int]) -> list[NDArray[Any]]:
    return list(model.run([tokens]).values())


@_outputs.register
def _pooled(model: PictureReader, tokens: list[int]) -> list[NDArray[Any]]:
    return list(model.run([np.zeros((8, 8, 3), np.uint8)]).values())


@_outputs.register
def _of_both_halves(model: DualEncoder, tokens: list[int]) -> list[NDArray[Any]]:
    return [*_pooled(model, tokens), *model.run_texts(np.array([tokens], np.int64)).values()]


@_outputs.register
def _source_logits(model: Seq2SeqLM, tokens: list[int]) -> list[NDArray[Any]]:
    source: Any = tokens
    if not model.reads_text:
        source = np.zeros(SAMPLE_RATE, np.float32) if model.is_speech else np.zeros((8, 8, 3), np.uint8)
    return _steps(model.new_decoder(model.run_encoder([source]), STEPS), tokens)


@_outputs.register
def _text_logits(model: CausalLM, tokens: list[int]) -> list[NDArray[Any]]:
    decoder = model.new_decoder(1, len(tokens) + STEPS)
    whole = model.new_decoder(1, len(tokens)).prefill_all(0, tokens)
    return [whole, decoder.prefill(0, tokens).copy(), *_steps(decoder, tokens)]


def _steps(decoder: StepRunner, tokens: list[int]) -> list[NDArray[Any]]:
    return [decoder.decode_one_token([token]).copy() for token in tokens[:STEPS]]
