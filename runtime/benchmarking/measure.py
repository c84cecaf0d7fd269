"""`benchmark`: everything in turns, round after round, so that a change of the machine meets all figures alike."""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edgeformer.config import ModelConfig
from edgeformer.errors import RequestError
from edgeformer.manifest import Manifest
from edgeformer.runtime.benchmarking.costs import Costs
from edgeformer.runtime.benchmarking.machine import Machine
from edgeformer.runtime.benchmarking.profile import Profile, measure_profile
from edgeformer.runtime.benchmarking.result import BenchmarkResult, Phase, Roofs, Spread, Workload
from edgeformer.runtime.benchmarking.startup import measure_loading, measure_memory
from edgeformer.runtime.benchmarking.workloads import Request, Timing, plan, run
from edgeformer.runtime.loading import load
from edgeformer.runtime.session import ProviderChoice, choose_provider, usable_cores

ROUNDS = 5

ROOFS = ("bandwidth", "fp32", "int8")
"""Methods of `Machine`, and fields of `Roofs`."""

PAUSE_SECONDS = 0.1
"""Between sessions: the threads of the last one spin for a while, and would take the next one's cores."""

PACKAGES = ("edgeformer", "numpy", "onnxruntime", "onnxruntime-gpu")

Progress = Callable[[str, float], None]
"""Told what is being done and which part of everything is behind it, 0 to 1."""


def benchmark(
    bundle: str | Path,
    *,
    prompts: Sequence[int] | None = None,
    new_tokens: int | None = None,
    batch_sizes: Sequence[int] = (1,),
    rounds: int = ROUNDS,
    threads: int | None = None,
    provider: ProviderChoice = "auto",
    profile: bool = False,
    progress: Progress = lambda what, part: None,
) -> BenchmarkResult:
    """Measure a bundle: every length at every batch size, what the machine does at best, loading, memory.

    prompts: tokens of the prompts, of an encoder-decoder's sources, of an encoder's texts; by default 128 and 512, as
    far as the model takes them. new_tokens: by default 64, or half of a short context. rounds: each is one turn of
    everything, after one that does not count. threads: None for all usable cores. provider: as for `load`; what
    the machine does at best is only known of the CPU. profile: tell where the time goes, too, on the CPU alone.

    Raises RequestError for what the model cannot do, for a profile that is not of the CPU or of more than onnxruntime
    keeps, and what `load` raises.
    """
    folder = Path(bundle)
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    for name, value in {"rounds": rounds, "threads": threads}.items():
        if value is not None and value < 1:
            raise RequestError(f"{name} is {value}; it must be at least 1.")
    requests = plan(manifest, prompts, new_tokens, batch_sizes)
    chosen, threads = choose_provider(provider, manifest), threads or usable_cores()
    if profile and chosen != "cpu":
        raise RequestError("a profile is of the CPU alone; use provider cpu, or leave the profile out.")
    profiled = requests if profile else []
    steps = _Steps(progress, 1 + rounds + len(profiled) + (rounds + 1) * (len(requests) + len(ROOFS)))

    # Before this process holds the model too: there may be no room for it twice.
    largest = max(requests, key=lambda request: (request.tokens * request.batch_size, request.batch_size))
    steps.begin("memory")
    memory = measure_memory(folder, chosen, threads, largest)
    loadings = []
    for _ in range(rounds):
        steps.begin("loading")
        loadings.append(measure_loading(folder, chosen, threads))

    profiles: dict[str, Profile] = {}
    for request in profiled:
        steps.begin(f"profile, {_name(request)}")
        profiles[_name(request)] = measure_profile(folder, threads, request)

    model = load(folder, chosen, threads)
    turns = {_name(request): partial(run, model, request) for request in requests}
    if chosen == "cpu":
        with closing(Machine(threads, *_largest_product(manifest.model))) as machine:
            timings, rates = _take_turns(turns, {name: getattr(machine, name) for name in ROOFS}, rounds, steps)
        roofs = Roofs(**{name: Spread.of(values) for name, values in rates.items()}, matmul=machine.matmul)
    else:
        (timings, _), roofs = _take_turns(turns, {}, rounds, steps), None
    costs = Costs(manifest)
    return BenchmarkResult(
        name=manifest.name,
        task=manifest.task,
        precision=manifest.precision,
        ops=manifest.ops,
        provider=chosen,
        threads=threads,
        rounds=rounds,
        import_seconds=Spread.of([each.imports for each in loadings]),
        load_seconds=Spread.of([each.load for each in loadings]),
        memory=memory,
        roofs=roofs,
        workloads=tuple(
            _workload(request, timings[_name(request)], profiles.get(_name(request)), costs, roofs)
            for request in requests
        ),
        notes=tuple(_notes(manifest, memory is not None, roofs is not None)),
        versions=_versions(),
    )


class _Steps:
    """Tells the progress bar what begins."""

    def __init__(self, progress: Progress, total: int):
        self._progress, self._total, self._begun = progress, total, 0

    def begin(self, what: str) -> None:
        self._progress(what, self._begun / self._total)
        self._begun += 1


def _take_turns(
    model: Mapping[str, Callable[[], Timing]],
    machine: Mapping[str, Callable[[], float]],
    rounds: int,
    steps: _Steps,
) -> tuple[dict[str, list[Timing]], dict[str, list[float]]]:
    """What every one returned in each round. The order turns from round to round; the first round does not count."""
    timings: dict[str, list[Timing]] = {name: [] for name in model}
    rates: dict[str, list[float]] = {name: [] for name in machine}
    names = [*model, *machine]
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            steps.begin(name)
            time.sleep(PAUSE_SECONDS)
            if name in model:
                timings[name].append(model[name]())
            else:
                rates[name].append(machine[name]())
    return ({name: each[1:] for name, each in timings.items()}, {name: each[1:] for name, each in rates.items()})


def _workload(
    request: Request, timings: Sequence[Timing], profile: Profile | None, costs: Costs, roofs: Roofs | None
) -> Workload:
    read = request.tokens * request.batch_size
    speed = Spread.of([read / each.prefill for each in timings])
    prefill = Phase.of(speed, costs.prefill(request.tokens, request.batch_size), roofs)
    decode = None
    if request.new_tokens:
        # The first new token comes of the prompt, every other one of a step.
        stepped = (request.new_tokens - 1) * request.batch_size
        speed = Spread.of([stepped / (each.total - each.first_token) for each in timings])
        decode = Phase.of(speed, costs.decode(request.tokens, request.batch_size, request.new_tokens), roofs)
    if profile is not None:
        prefill = replace(prefill, kernels=profile.prefill)
        decode = decode and replace(decode, kernels=profile.decode)
    return Workload(
        tokens=request.tokens,
        batch_size=request.batch_size,
        new_tokens=request.new_tokens,
        first_token_seconds=Spread.of([each.first_token for each in timings]) if request.new_tokens else None,
        seconds=Spread.of([each.total for each in timings]),
        prefill=prefill,
        decode=decode,
    )


def _name(request: Request) -> str:
    return f"{request.batch_size} × {request.tokens} tokens"


def _largest_product(config: ModelConfig | None) -> tuple[int, int]:
    """Inputs and outputs of a feed-forward's first product; of a module that is not ours, a common shape."""
    if config is None:
        return 1024, 4096
    stack = config.output_stack
    return stack.hidden_size, stack.blocks[0].feed_forward.intermediate_size


def _notes(manifest: Manifest, has_memory: bool, has_roofs: bool) -> Iterator[str]:
    """Why figures are missing."""
    if manifest.model is None:
        yield "the bundle holds a module that is not ours: what a token costs is not known"
    if not has_memory:
        yield "this system does not tell the memory of a process"
    if not has_roofs:
        yield "the model ran on CUDA, and what a machine does at best is measured of CPUs alone"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
