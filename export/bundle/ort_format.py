"""Graphs in ORT format, which small builds of onnxruntime read, and the list of kernels that such a build needs.

    onnx/model.onnx, model.onnx_data  →  onnx/model.ort           graph and weights in one file
                                         required_operators_and_types.config

Graphs are optimized when they are converted, because nothing optimizes them when they are loaded. The level is
ORT_ENABLE_EXTENDED, whose fused kernels every build for CPUs has; the level above it lays tensors out for the processor
that converts.

Source: onnxruntime.ai/docs/performance/model-optimizations/ort-format-models.html
"""

import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import onnx

from edgeformer.errors import ExportError
from edgeformer.manifest.deployment import OPERATORS_FILE
from edgeformer.runtime.sessions.graphs.optional_inputs import with_optional_inputs
from edgeformer.runtime.sessions.session import onnxruntime, onnxruntime_errors, session_options

SUFFIX = ".ort"

LARGEST = 2**31 - 1
"""Bytes of an .ort file at most, which is a flatbuffer (FLATBUFFERS_MAX_BUFFER_SIZE)."""

FOLDING = ["ConstantFolding"]
"""Optimizers that are turned off: they would replace weights by others, which no manifest lists."""


def ort_name(graph: str) -> str:
    """Return the name of a graph in ORT format."""
    return str(PurePosixPath(graph).with_suffix(SUFFIX))


def convert_to_ort(folder: Path, graphs: Sequence[str], largest: int = LARGEST) -> None:
    """Convert the graphs of a folder to ORT format, replacing the ONNX files, and write the list of kernels.

    Raises ExportError for a graph that takes more than `largest` bytes with its weights.
    """
    models = {name: onnx.load(folder / name, load_external_data=False) for name in graphs}
    for name, model in models.items():
        check_size(name, model, largest)
    for name in graphs:
        _save(folder / name, folder / ort_name(name), "ORT", "ORT_ENABLE_EXTENDED")
    for name, model in models.items():
        # A file of weights that several graphs share is listed by each of them.
        for data in {entry.value for entry in _external(model, "location")}:
            (folder / name).with_name(data).unlink(missing_ok=True)
        (folder / name).unlink()
    _write_operators(folder, [ort_name(name) for name in graphs])


def check_size(name: str, model: onnx.ModelProto, largest: int) -> None:
    """Raise ExportError for a graph that takes more than `largest` bytes with its weights."""
    size = model.ByteSize() + sum(int(entry.value) for entry in _external(model, "length"))
    if size > largest:
        raise ExportError(
            f"{name} takes {size / 1e9:.2f} GB with its weights, and a file in ORT format may have {largest / 1e9:.2f} "
            "GB. Store them in fewer bits (--precision int4), or export without --deployment mobile: onnxruntime's own "
            "packages for phones read ONNX files, too."
        )


def load_onnx(path: Path) -> onnx.ModelProto:
    """Load a graph in either format. Weights of an ONNX graph stay in their files; an .ort graph contains its own."""
    if path.suffix != SUFFIX:
        return onnx.load(path, load_external_data=False)
    with tempfile.TemporaryDirectory(prefix="edgeformer.") as folder:
        spelled = Path(folder) / "model.onnx"
        _save(path, spelled, "ONNX", "ORT_DISABLE_ALL")
        return onnx.load(spelled)


def _external(model: onnx.ModelProto, key: str) -> list[onnx.StringStringEntryProto]:
    return [entry for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == key]


def _save(source: Path, destination: Path, form: str, level: str) -> None:
    """Let onnxruntime load a graph and save it in a format (`ORT` or `ONNX`), optimized up to a level."""
    ort, options = onnxruntime(), session_options(1)
    options.optimized_model_filepath = str(destination)
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.save_model_format", form)
    # Prepacked weights would fit only this kind of processor, and would be in memory twice.
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        model = with_optional_inputs(source, options)
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=FOLDING)
    except onnxruntime_errors() as error:
        raise ExportError(f"onnxruntime cannot write {source.name} as {destination.name}: {error}") from error


def _write_operators(folder: Path, graphs: Sequence[str]) -> None:
    """Write the list of ops and types that `--include_ops_by_config` of onnxruntime's build reads."""
    from onnxruntime.tools.ort_format_model import create_config_from_models

    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    path = folder / OPERATORS_FILE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves the files that it reads to be closed by Python
        create_config_from_models([folder / name for name in graphs], path, True)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f"{folder}/", ""), encoding="utf-8")
