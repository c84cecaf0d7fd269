"""Open onnxruntime sessions with explicit threads, provider and options."""

import os
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from functools import cache
from itertools import count as counted
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from edgeformer.errors import BundleError, MissingDependencyError, RequestError, require
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Arithmetic
from edgeformer.manifest.providers import (
    CPU,
    OTHERS,
    PROVIDERS,
    Provider,
    ProviderChoice,
    ProviderName,
    unproven_provider,
)
from edgeformer.runtime.sessions.graphs.fused_nodes import with_fused_nodes
from edgeformer.runtime.sessions.graphs.optional_inputs import with_optional_inputs
from edgeformer.runtime.sessions.graphs.packed_weights import with_packed_weights
from edgeformer.runtime.sessions.int8_saturation import products_saturate
from edgeformer.runtime.sessions.kernels import BODIES, KernelChoice
from edgeformer.runtime.sessions.narrow_floats import BFLOAT16
from edgeformer.runtime.sessions.providers import DEVICES, ProviderSessions, sessions_of
from edgeformer.runtime.sessions.providers.cpu import give_back_memory
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions

CACHE_DTYPES: dict[Arithmetic, type[np.generic]] = {"fp32": np.float32, "fp16": np.float16, "bf16": BFLOAT16}
"""Element type of a cache that is not quantized, by the arithmetic of the bundle; see `narrow_floats`."""

OLDEST = (1, 30)
"""The oldest onnxruntime with which bundles of all kinds pass verification; 1.29 frees IOBinding outputs on rebind."""

TILED_ATTENTION_OFF = "ORT_GQA_DISABLE_FLASH_ATTENTION"
"""The environment variable that onnxruntime's GroupQueryAttention reads when a session is opened."""

BESIDE = "a small graph of edgeformer beside the model's"
"""The name of graphs that copy and choose on a device, in errors."""

_PROFILED: ContextVar[tuple[Path, list[Any]] | None] = ContextVar("profiled sessions", default=None)

_ENVIRONMENT = Lock()
"""The environment belongs to all threads of the process, so sessions are opened one after the other."""


class Rewritten(NamedTuple):
    """A graph that is opened in place of the one of a file, whose weights it reads.

    content: of an ONNX file. values: weights that the file lacks, by name, as `onnxruntime.OrtValue`s.
    """

    content: bytes
    values: Mapping[str, Any]


class SessionSettings(NamedTuple):
    """The arguments of `load` that its sessions are opened with; it says what each means."""

    provider: ProviderChoice | str = "auto"
    threads: int | None = None
    kernels: bool = True
    options: ProviderOptions | None = None
    cache_precision: Literal["int8"] | None = None


def onnxruntime() -> Any:
    """Import onnxruntime.

    It comes in two packages (CPU and CUDA), so edgeformer depends on neither. Raises MissingDependencyError, which says
    how to install it, if it is missing or older than OLDEST.
    """
    # onnxruntime reads this when it is imported; a value that the user has set stays.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    module = require("onnxruntime", "cpu")
    if tuple(map(int, module.__version__.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MissingDependencyError(
            f"this runtime needs onnxruntime {oldest} or newer, and {module.__version__} is installed. Install one "
            f"with: pip install 'onnxruntime>={oldest}' (onnxruntime-gpu for CUDA). Without edgeformer a bundle may "
            "run in an older one; docs/reference/clients.md says in which."
        )
    return module


@contextmanager
def _without_tiled_attention() -> Iterator[None]:
    """Switch onnxruntime's tiled attention off, on x86, for sessions opened in this context.

    The tiled kernel takes 1.5 to 2.7 times as long for one query, and 1 to 1.3 times for a chunk of a prompt (measured
    on x86), because only the other one uses AVX kernels. It saves memory where long prompts run at once, which this
    runtime does not do, but other code in the process may. A value that the user has set stays.
    """
    with _ENVIRONMENT:
        off = TILED_ATTENTION_OFF not in os.environ and platform.machine() in ("x86_64", "AMD64")
        if off:
            os.environ[TILED_ATTENTION_OFF] = "1"
        try:
            yield
        finally:
            if off:
                del os.environ[TILED_ATTENTION_OFF]


@contextmanager
def profiled(folder: Path) -> Iterator[list[Any]]:
    """Profile the sessions that this thread opens in this context; yield the list of them, in order.

    `session.end_profiling()` then returns the path of a file in `folder`, with one event per kernel run, as JSON.
    """
    sessions: list[Any] = []
    token = _PROFILED.set((folder, sessions))
    try:
        yield sessions
    finally:
        _PROFILED.reset(token)


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Return the exception types that onnxruntime raises; they have no common base class.

    A message that cites bytes of a graph, which need not be UTF-8, becomes a UnicodeDecodeError.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return (RuntimeError, UnicodeDecodeError, *own)


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and the CPU quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota_file = Path("/sys/fs/cgroup/cpu.max")
    if quota_file.is_file():
        quota, period = quota_file.read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def choose_threads(threads: int | None) -> int:
    """Return the number of threads of a session: all usable cores for None.

    Raises RequestError for a number that is not between 1 and the usable cores. onnxruntime takes 0 and less for its
    own choice, and threads beyond the cores spin against each other: 10,000 stop a machine for minutes.
    """
    cores = usable_cores()
    if threads is None:
        return cores
    if type(threads) is not int or not 1 <= threads <= cores:
        raise RequestError(
            f"threads is {threads!r}; it must be a number from 1 to {cores}, the cores that this process may use, or "
            "None for all of them."
        )
    return threads


def choose_provider(
    choice: ProviderChoice | str, manifest: Manifest, options: ProviderOptions | None = None
) -> Provider:
    """Resolve `auto`, and refuse a provider that does not work here instead of falling back to a slower one.

    `auto` is the CPU where onnxruntime has no device, where there is none at all, and for a bundle that does not run on
    one; it warns of the latter two, and of a device that onnxruntime cannot use. Raises RequestError if onnxruntime has
    no such provider, if the driver or a library is missing or too old, or if the bundle does not run on it.

    choice: onnxruntime's own name of another provider takes that one, with a warning that nothing was proven of it.
    """
    other = isinstance(choice, str) and choice.endswith(OTHERS)
    if not other and (not isinstance(choice, str) or choice not in ("auto", *PROVIDERS)):
        *others, last = ("auto", *PROVIDERS)
        raise RequestError(
            f"provider is {choice!r}; it must be {', '.join(others)} or {last}, or onnxruntime's name of another one, "
            "such as OpenVINOExecutionProvider."
        )
    ort = onnxruntime()
    if choice == "auto":
        reasons = [(each.provider, each.why_not(ort, manifest, options)) for each in DEVICES]
        chosen = next((provider for provider, why_not in reasons if why_not is None), CPU)
        for _, why_not in reasons:
            if chosen is CPU and why_not is not None and why_not.surprises:
                warnings.warn(f"provider auto is the CPU: {why_not.reason}. {why_not.advice}.", stacklevel=4)
    else:
        chosen = unproven_provider(choice) if other else PROVIDERS[cast(ProviderName, choice)]
    sessions_of(chosen).check(ort, manifest, options)
    return chosen


def session_options(threads: int) -> Any:
    """Return the options that all sessions share; onnxruntime's warnings, meant for authors of graphs, are off.

    Between runs, threads spin for 1 ms, which bridges the Python code between two steps. onnxruntime's default of 40 ms
    keeps the cores from the next session: after a prompt, the first steps took 1.5 times as long (measured).
    """
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.spin_duration_us", "1000")
    if products_saturate(ort):
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


@cache
def _graph_session(base: Any) -> Any:
    """Return the class of sessions, whose errors name the graph: onnxruntime, imported late, has the base class.

    A run in a fork of the process that opened a session of several threads would wait for threads that no fork has.
    sessions: of its provider. uncaptured: options of a run that gives none. has_team: whether kernels of our own have
    threads of their own.
    """

    class GraphSession(base):  # type: ignore[misc]
        has_team = False

        def __init__(
            self,
            name: str,
            sessions: ProviderSessions,
            has_threads: bool,
            uncaptured: Any,
            model: str | bytes,
            options: Any,
            providers: list[Any],
        ) -> None:
            self._graph = name
            self._sessions = sessions
            self._has_threads = has_threads
            self._uncaptured = uncaptured
            self._graphs = counted(1)
            self._process = os.getpid()
            super().__init__(model, options, providers=providers, enable_fallback=0)

        def new_graph_run(self) -> Any:
            """Return options of runs that are captured the first time, and replayed later."""
            return graph_run(next(self._graphs))

        def run(self, names: Any, feeds: Any, options: Any = None) -> Any:
            if self._has_threads and os.getpid() != self._process:
                raise _fork_error(self._graph)
            with _named_errors(self._graph, self._sessions):
                return super().run(names, feeds, options or self._uncaptured)

        def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
            if self._has_threads and os.getpid() != self._process:
                raise _fork_error(self._graph)
            # A context manager would take as long as all else that Python does in a decode step.
            try:
                self._sess.run_with_iobinding(binding._iobinding, options or self._uncaptured)
            except onnxruntime_errors() as error:
                raise _run_error(self._graph, self._sessions, error) from error

    return GraphSession


def graph_session(name: str, sessions: ProviderSessions, model: bytes, options: Any) -> Any:
    """Return a session of a model in memory, in the thread that runs it. name: by which errors call the model."""
    ort = onnxruntime()
    providers = sessions.choose(ort, options)
    with _named_errors(name, sessions):
        kind = _graph_session(ort.InferenceSession)
        return kind(name, sessions, sessions.provider.on_device, None, model, options, providers)


@contextmanager
def _named_errors(graph: str, sessions: ProviderSessions) -> Iterator[None]:
    kinds: tuple[type[Exception], ...] = (*onnxruntime_errors(), ValueError)
    try:
        yield
    except kinds as error:
        raise _run_error(graph, sessions, error) from error


def _fork_error(graph: str) -> RequestError:
    return RequestError(
        f"{graph} was loaded before this process was forked, and a fork has none of its threads. Load the model in the "
        "new process, start that by multiprocessing's method spawn, or load the model with threads=1."
    )


def _run_error(graph: str, sessions: ProviderSessions, error: Exception) -> BundleError:
    # No bundle has a graph of our own, so that verification has nothing to say of it.
    advice = sessions.advice(error) or ("" if graph == BESIDE else "Check the bundle with: edgeformer verify")
    return BundleError(f"onnxruntime cannot run {graph}: {error} {advice}".rstrip())


NO_GRAPH = -1
"""The number of a run that onnxruntime neither captures nor replays."""


def graph_run(graph: int) -> Any:
    """Return options of runs that are captured together, by their number in the session."""
    options = onnxruntime().RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


def check_tensors(session: Any, graph: str, inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """Raise BundleError for a graph without one of the inputs and outputs that the manifest implies."""
    for what, needed, has in (("input", inputs, session.get_inputs()), ("output", outputs, session.get_outputs())):
        lacking = sorted(set(needed) - {each.name for each in has})
        if lacking:
            raise BundleError(
                f"{graph} has no {what} {', '.join(lacking[:5])}, which its manifest implies. Export the model again."
            )


def open_session(
    graph: Path,
    provider: Provider = CPU,
    threads: int | None = None,
    *,
    prepack: bool = True,
    kernels: KernelChoice = BODIES,
    options: ProviderOptions | None = None,
    rewritten: Rewritten | None = None,
) -> Any:
    """Open an `onnxruntime.InferenceSession`, whose runs raise BundleError where onnxruntime cannot run the graph.

    Args:
        graph: the file.
        provider: that it runs on.
        threads: None for all usable cores.
        prepack: rearrange weights for speed, which takes a copy of them in memory; without it they stay mapped.
        kernels: edgeformer's own, for functions of the graph.
        options: of the provider; None for the defaults, by which verification runs: no TF32.
        rewritten: a graph to open in place of the file's.

    Raises BundleError for a graph that onnxruntime cannot load, and RequestError for a number of threads that
    `choose_threads` refuses, or if the provider cannot start.
    """
    ort, chosen = onnxruntime(), choose_threads(threads)
    settings = session_options(chosen)
    if not prepack:
        settings.add_session_config_entry("session.disable_prepacking", "1")
    profiling = _PROFILED.get()
    if profiling is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(profiling[0] / f"session-{len(profiling[1])}")
    sessions = sessions_of(provider)
    sessions.check_weights(ort, Path(graph), options)
    uncaptured = graph_run(NO_GRAPH) if sessions.captures(options) else None
    providers = sessions.choose(ort, settings, options)
    try:
        # onnxruntime prints libraries that it cannot load to stdout, which is for our results.
        with redirect_stdout(sys.stderr), _without_tiled_attention():
            has_team = kernels.register(settings, Path(graph))
            sessions.prepare(ort)
            kind = _graph_session(ort.InferenceSession)
            has_threads = chosen > 1 or provider.on_device  # of onnxruntime, or of our kernels
            content = None if rewritten is None else rewritten.content
            if kernels.library is not None:
                content = with_packed_weights(Path(graph), kernels.library.ops, content)
            if kernels.library is not None and profiling is None:  # a profile has times of single nodes
                content = with_fused_nodes(Path(graph), kernels.library.ops, content)
            model = with_optional_inputs(Path(graph), settings, content)
            if rewritten is not None and rewritten.values:
                settings.add_external_initializers(list(rewritten.values), list(rewritten.values.values()))
            session = kind(str(graph), sessions, has_threads, uncaptured, model, settings, providers)
    except onnxruntime_errors() as error:
        raise sessions.not_opened(ort, Path(graph), error, options) from error
    session.has_team = has_team
    give_back_memory()
    sessions.check_opened(ort, session)
    if profiling is not None:
        profiling[1].append(session)
    return session
