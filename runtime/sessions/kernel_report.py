"""Say which functions of a bundle's graphs run as kernels of edgeformer-kernels, and which as their bodies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.sessions.graphs.graph_functions import function_calls
from edgeformer.runtime.sessions.kernels import PACKAGE, KernelChoice
from edgeformer.runtime.sessions.prepacked.prepacked_graphs import graph_file, opened_graphs


@dataclass(frozen=True, kw_only=True)
class KernelReport:
    """Says what runs the functions of domain `edgeformer` in the graphs that the runtime opens.

    version: of edgeformer-kernels, level: its SIMD level, threads: those of the session, or a team of their own; all
    None where it is not used. kernels, bodies: number of calls by name of the function. reason: why bodies run; empty
    where none does.
    """

    version: str | None
    level: str | None
    threads: Literal["session", "team"] | None
    kernels: dict[str, int]
    bodies: dict[str, int]
    reason: str

    def describe(self) -> str:
        """Describe it in a line."""
        if not self.kernels and not self.bodies:
            return "the graphs have no functions for them"
        parts = []
        if self.kernels:
            threads = "threads of their own" if self.threads == "team" else "the session's threads"
            parts.append(f"{_listed(self.kernels)} by {PACKAGE} {self.version} ({self.level}, {threads})")
        if self.bodies:
            parts.append(f"{_listed(self.bodies)} by onnxruntime: {self.reason}")
        return "; ".join(parts)

    def describe_briefly(self) -> str:
        """Say in a few words whether kernels run; nothing where the graphs have no functions for them."""
        if self.kernels:
            return f"kernels {self.level}"
        return f"no kernels: {self.reason}" if self.bodies else ""


def report_kernels(folder: Path, manifest: Manifest, choice: KernelChoice) -> KernelReport:
    """Read from the graphs of a bundle what runs their functions on the CPU, with the kernels of a choice.

    Raises BundleError for a damaged graph.
    """
    files = dict.fromkeys(graph_file(folder, manifest, graph, choice) for graph in opened_graphs(manifest))
    return report_files(tuple(files), choice)


def report_files(files: Sequence[Path], choice: KernelChoice) -> KernelReport:
    """Say what runs the functions of some graphs. Raises BundleError for a damaged graph."""
    library = choice.library
    kernels: Counter[str] = Counter()
    bodies: Counter[str] = Counter()
    for file in files:
        if file.suffix == ".ort":
            continue  # whoever wrote it has replaced functions by their bodies
        for total, found in zip(
            (kernels, bodies), function_calls(file).split(() if library is None else library.ops), strict=True
        ):
            total.update(found)
    reason = choice.reason if library is None else f"{PACKAGE} {library.version} has no kernel for it"
    return KernelReport(
        version=None if library is None else library.version,
        level=None if library is None else choice.level or library.level,
        threads=None if library is None else "team" if any(map(choice.has_team, files)) else "session",
        kernels=dict(sorted(kernels.items())),
        bodies=dict(sorted(bodies.items())),
        reason=reason if bodies else "",
    )


def _listed(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ×{count:,}" for name, count in calls.items())
