"""Find edgeformer's own kernels, and register them in sessions.

They come in a package of their own, edgeformer-kernels. Graphs of bundles call them through functions of the graph,
whose bodies run where no library is registered, so a bundle is right either way. `load(kernels=False)` and the
environment variable EDGEFORMER_KERNELS=0 leave them out. `kernel_report.py` says what a model runs.
"""

import base64
import ctypes
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import Distribution, PackagePath
from pathlib import Path
from typing import Any

from edgeformer.errors import RequestError, require
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.sessions.graphs.graph_functions import function_calls

PACKAGE = "edgeformer-kernels"
"""The package that has the library."""

CONTRACT = 4
"""Version of the contract between graphs and kernels; a library with another one is not used."""

SWITCH = "EDGEFORMER_KERNELS"
"""The environment variable that turns kernels off with the value 0.

With `team` they have threads of their own, with `session` the session's, with 1 as it is faster for each graph.
"""

SWITCHES = {"0": None, "1": None, "team": True, "session": False}
"""Values of the switch, and what they say of the threads."""

THREADS = "edgeformer.threads"
"""The session option by which kernels have a team of that many threads, instead of the threads of the session."""

LEVEL = "edgeformer.level"
"""The session option that names the SIMD level of kernels, instead of the fastest that runs here."""

NAMES = ("libedgeformer_kernels.so", "libedgeformer_kernels.dylib", "edgeformer_kernels.dll")
"""File names of the library."""


@dataclass(frozen=True)
class Library:
    """An installed library of kernels.

    Attributes:
        path: absolute.
        version: of the package.
        ops: names of the functions that it has kernels for.
        levels: SIMD levels that run here, the fastest first.
        level: that of sessions that name none.
        panels: names of the formats in which levels pack weights; none of a library that cannot store them.
    """

    path: str
    version: str
    ops: tuple[str, ...]
    levels: tuple[str, ...]
    level: str
    panels: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class KernelChoice:
    """The kernels that sessions use.

    library: None for the bodies of functions; `reason` then says why. team: whether kernels have threads of their
    own, None for what is faster for a graph. level: their SIMD level, None for the library's choice.
    """

    library: Library | None
    reason: str = ""
    team: bool | None = None
    level: str | None = None

    @property
    def panels(self) -> str | None:
        """The format in which the kernels read packed weights; None without kernels, or if it has no name."""
        return None if self.library is None else self.library.panels.get(self.level or self.library.level)

    def has_team(self, graph: Path) -> bool:
        """Return whether the kernels of a graph have threads of their own.

        Steps are faster then, since starting them costs less. onnxruntime keeps one thread for all other ops, so by
        default that is so where kernels do all of the heavy work. Raises BundleError for a damaged graph.
        """
        if self.library is None or self.team is not None or graph.suffix == ".ort":
            return bool(self.team)
        return self.run_all(graph)

    def run_all(self, graph: Path) -> bool:
        """Return whether kernels do all of the heavy work of a graph. Raises BundleError for a damaged graph."""
        if self.library is None or graph.suffix == ".ort":
            return False
        calls = function_calls(graph)
        kernels, bodies = calls.split(self.library.ops)
        return calls.only_light and bool(kernels) and not bodies

    def register(self, options: Any, graph: Path | None = None) -> bool:
        """Register the library, if there is one, in the options of a session; return whether it has threads of its own.

        graph: that of the session, which decides about the threads; None for those of the session.
        """
        if self.library is None:
            return False
        has_team = graph is not None and self.has_team(graph)
        if has_team:
            options.add_session_config_entry(THREADS, str(options.intra_op_num_threads))
            options.intra_op_num_threads = 1
        if self.level is not None:
            options.add_session_config_entry(LEVEL, self.level)
        options.register_custom_ops_library(self.library.path)
        return has_team


BODIES = KernelChoice(None, "kernels were not asked for")
"""The choice of sessions that run the bodies of all functions."""


def choose_kernels(provider: Provider = CPU, wanted: bool = True) -> KernelChoice:
    """Return the kernels for sessions of a provider, as the environment and the installed packages decide.

    wanted: False for none. Raises RequestError for a value of EDGEFORMER_KERNELS that means nothing.
    """
    switch = os.environ.get(SWITCH) or "1"
    if switch not in SWITCHES:
        raise RequestError(
            f"{SWITCH} is {switch!r}; it must be 0 (no kernels), 1, team (threads of their own), or session (those "
            "of the session)."
        )
    if not wanted:
        return BODIES
    if switch == "0":
        return KernelChoice(None, f"{SWITCH}=0 turns kernels off")
    if not provider.own_kernels:
        return KernelChoice(None, "kernels are for the CPU")
    library = find_library()
    if isinstance(library, str):
        return KernelChoice(None, library)
    return KernelChoice(library, team=SWITCHES[switch])


@cache
def find_library() -> Library | str:
    """Return the library of the installed edgeformer-kernels, or why there is none that can be used.

    It is the file that pip installed, by its SHA-256: never one from a bundle, from the working directory, or from a
    folder that is merely importable. Warns of a package that is installed and does not fit.
    """
    distribution = _distribution()
    if distribution is None:
        return f"{PACKAGE} is not installed"
    recorded = next((each for each in distribution.files or () if each.name in NAMES), None)
    if recorded is None:
        return f"{PACKAGE} {distribution.version} could not build its library where it was installed"
    try:
        return _open(recorded)
    except ValueError as problem:
        warnings.warn(f"{PACKAGE} {distribution.version} is not used: {problem}", stacklevel=2)
        return f"{PACKAGE} {distribution.version} does not fit"


def _distribution() -> Distribution | None:
    """Return the metadata of the installed package; those in the working directory, which may be a bundle, are none."""
    folders = [each for each in dict.fromkeys(sys.path) if each and os.path.isdir(each)]
    elsewhere = [each for each in folders if not os.path.samefile(each, ".")]
    return next(iter(Distribution.discover(name=PACKAGE, path=elsewhere)), None)


def _open(recorded: PackagePath) -> Library:
    """Check the library of a package and read what it says of itself. Raises ValueError for one that does not fit."""
    again = f"Install it again with: pip install --force-reinstall {PACKAGE}"
    path = Path(str(recorded.locate())).resolve()
    if not path.is_file():
        raise ValueError(f"its library is missing. {again}")
    if not _is_installed(recorded, path):
        raise ValueError(f"{path} is not the file that was installed, by its SHA-256. {again}")
    try:
        describe = ctypes.CDLL(str(path)).edgeformer_kernels_describe
    except (OSError, AttributeError) as problem:
        raise ValueError(f"its library cannot be opened: {problem}. {again}") from None
    describe.restype = ctypes.c_char_p
    said = json.loads(describe())
    if said["contract"] != CONTRACT:
        raise ValueError(
            f"it is for version {said['contract']} of the contract between graphs and kernels, and this edgeformer has "
            f"version {CONTRACT}. Install the version that belongs to it with: pip install 'edgeformer[kernels]'"
        )
    found = require("onnxruntime", "cpu").__version__
    if _version(found) < _version(said["onnxruntime"]):
        raise ValueError(f"it needs onnxruntime {said['onnxruntime']} or newer, and {found} is installed.")
    return Library(
        str(path), said["version"], tuple(said["ops"]), tuple(said["levels"]), said["level"], said.get("panels", {})
    )


def _is_installed(recorded: PackagePath, path: Path) -> bool:
    """Return whether a file has the SHA-256 with which the wheel listed it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return recorded.hash is not None and (recorded.hash.mode, recorded.hash.value) == ("sha256", digest)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))
