"""Graphs in ORT format, which small builds of onnxruntime read, and the list of kernels that such a build needs.

    onnx/model.onnx, model.onnx_data  →  onnx/model.ort           graph and weights in one file
                                         required_operators_and_types.config

Graphs are optimised when they are converted, since nothing optimises them when they are loaded, up to
ORT_ENABLE_EXTENDED: that puts in fused kernels which every build for CPUs has. The level above it lays tensors out for
the processor that converts.

Source: onnxruntime.ai/docs/performance/model-optimizations/ort-format-models.html
"""

import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import onnx

from edgeformer.errors import ExportError
from edgeformer.runtime.session import onnxruntime, onnxruntime_errors, session_options

SUFFIX = ".ort"
OPERATORS = "required_operators_and_types.config"

LARGEST = 2**31 - 1
"""Bytes of an .ort file, which is a flatbuffer (FLATBUFFERS_MAX_BUFFER_SIZE); of an ONNX file without others, too."""


FOLDING = ["ConstantFolding"]
"""What would replace weights by others, which no manifest lists."""


def ort_name(graph: str) -> str:
    """What a graph is called in ORT format."""
    return str(PurePosixPath(graph).with_suffix(SUFFIX))


def convert_to_ort(folder: Path, graphs: Sequence[str], largest: int = LARGEST) -> None:
    """Write the graphs of a folder in ORT format, in place of what they were in; and the list of kernels.

    Raises ExportError for a graph that takes more than `largest` bytes with its weights.
    """
    models = {name: onnx.load(folder / name, load_external_data=False) for name in graphs}
    for name, model in models.items():
        check_size(name, model, largest)
    for name in graphs:
        _save(folder / name, folder / ort_name(name), "ORT", "ORT_ENABLE_EXTENDED")
    for name, model in models.items():
        # Where a graph has its weights, and nothing else: files of several graphs are named by each of them.
        for data in {entry.value for entry in _external(model, "location")}:
            (folder / name).with_name(data).unlink(missing_ok=True)
        (folder / name).unlink()
    _write_operators(folder, [ort_name(name) for name in graphs])


def check_size(name: str, model: onnx.ModelProto, largest: int) -> None:
    """Raise ExportError for a graph whose weights are too many for one file."""
    size = model.ByteSize() + sum(int(entry.value) for entry in _external(model, "length"))
    if size > largest:
        raise ExportError(
            f"{name} takes {size / 1e9:.2f} GB with its weights, and a file in ORT format may have {largest / 1e9:.2f} "
            "GB. Store them in fewer bits (--precision int4), or export without --deployment mobile: onnxruntime's own "
            "packages for phones read ONNX files, too."
        )


def load_onnx(path: Path) -> onnx.ModelProto:
    """Read a graph in either format; weights of one in ORT format are in it, those of others in their files."""
    if path.suffix != SUFFIX:
        return onnx.load(path, load_external_data=False)
    with tempfile.TemporaryDirectory(prefix="edgeformer.") as folder:
        spelled = Path(folder) / "model.onnx"
        _save(path, spelled, "ONNX", "ORT_DISABLE_ALL")
        return onnx.load(spelled)


def _external(model: onnx.ModelProto, key: str) -> list[onnx.StringStringEntryProto]:
    return [entry for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == key]


def _save(source: Path, destination: Path, form: str, level: str) -> None:
    """Let onnxruntime read a graph and write it."""
    ort, options = onnxruntime(), session_options(1)
    options.optimized_model_filepath = str(destination)
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.save_model_format", form)
    # Rearranged for this processor, weights would be of no use elsewhere, and twice in memory.
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"], disabled_optimizers=FOLDING)
    except onnxruntime_errors() as error:
        raise ExportError(f"onnxruntime cannot write {source.name} as {destination.name}: {error}") from error


def _write_operators(folder: Path, graphs: Sequence[str]) -> None:
    """List ops, and the types that they are used with, as `--include_ops_by_config` of onnxruntime's build wants it."""
    from onnxruntime.tools.ort_format_model import create_config_from_models

    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    path = folder / OPERATORS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves the files that it reads to be closed by Python
        create_config_from_models([folder / name for name in graphs], path, True)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f"{folder}/", ""), encoding="utf-8")
