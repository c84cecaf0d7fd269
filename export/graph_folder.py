"""A folder that graphs are written into: the state of an export and of a twin while their graphs are made."""

from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from edgeformer.export.bundle.writer import GraphWriter
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.lower import GraphJob, Lowered
from edgeformer.export.progress import Progress
from edgeformer.manifest.graph_forms import BundledGraphs


@dataclass(kw_only=True)
class GraphFolder:
    """A folder, the job of its graphs, and what is made of it so far.

    Attributes:
        job: what the graphs are captured and lowered from.
        folder: where they are written.
        writer: writes them, and shares weights between them.
        progress: is told about long work.
        text: what the model is calibrated with.
        models: lowered graphs that are still to be written, over weights in common, by file.
        graphs: entries of the manifest.
        lowered: what passes and rules did to each graph, by file.
    """

    job: GraphJob
    folder: Path
    writer: GraphWriter
    progress: Progress
    text: CalibrationTokens | None = None
    models: dict[str, ir.Model] = field(default_factory=dict)
    graphs: BundledGraphs = field(default_factory=BundledGraphs)
    lowered: dict[str, Lowered] = field(default_factory=dict)
