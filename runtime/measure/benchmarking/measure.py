"""`benchmark` measures everything in turns, round by round, so that a change of the machine affects all figures."""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from edgeformer.config import ModelConfig
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import Provider, ProviderChoice
from edgeformer.runtime import request_values
from edgeformer.runtime.measure.benchmarking.costs import Costs
from edgeformer.runtime.measure.benchmarking.machine import Machine
from edgeformer.runtime.measure.benchmarking.profile import Profile, measure_profile
from edgeformer.runtime.measure.benchmarking.result import BenchmarkResult, Memory, Phase, Roofs, Spread, Workload
from edgeformer.runtime.measure.benchmarking.startup import Loading, measure_loading, measure_memory
from edgeformer.runtime.measure.benchmarking.workloads import Request, Source, Timing, plan, run
from edgeformer.runtime.sessions.session import choose_provider, choose_threads
from edgeformer.runtime.steps.decode_graph import returns_last_logits
from edgeformer.runtime.tasks.model import Model

ROUNDS = 5
"""Rounds that count, unless the call says otherwise."""

ROOFS = ("bandwidth", "fp32", "int8")
"""Methods of `Machine`, and fields of `Roofs`."""

PAUSE_SECONDS = 0.1
"""Seconds between measurements: threads of the last session spin for a while, on cores that the next one needs."""

PACKAGES = ("edgeformer", "edgeformer-kernels", "numpy", "onnxruntime", "onnxruntime-gpu")
"""Packages whose versions are reported."""

Progress = Callable[[str, float], None]
"""Called with the name of the current step and the fraction that is done, 0 to 1."""


def benchmark(
    bundle: str | Path,
    *,
    prompts: Sequence[int] | None = None,
    new_tokens: int | None = None,
    batch_sizes: Sequence[int] = (1,),
    rounds: int = ROUNDS,
    threads: int | None = None,
    provider: ProviderChoice = "auto",
    cache_precision: Literal["int8"] | None = None,
    profile: bool = False,
    progress: Progress = lambda what, fraction: None,
) -> BenchmarkResult:
    """Measure a bundle: prefill and decode at every length and batch size, peak rates of the machine, loading, memory.

    Args:
        prompts: tokens of the prompts (of an encoder-decoder's sources, of an encoder's texts); by default 128 and 512,
            as far as the model takes them.
        new_tokens: per row, by default 64, or half of a short context.
        rounds: each measures everything once, after a warm-up round.
        threads: None for all usable cores.
        provider: as for `load`; peak rates are measured of the CPU only.
        cache_precision: as for `load`.
        profile: also measure the time per op, on the CPU only.
        progress: called at every step.

    Raises RequestError for a workload that the model cannot run, for a profile of a device or of more events than
    onnxruntime keeps; and BundleError as `load` does.
    """
    folder = request_values.path("bundle", bundle)
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    request_values.count("rounds", rounds)
    request_values.flag("profile", profile)
    requests = plan(manifest, prompts, new_tokens, batch_sizes)
    chosen, threads = choose_provider(provider, manifest), choose_threads(threads)
    if profile and chosen.on_device:
        raise RequestError("a profile is measured on the CPU only; use provider cpu, or leave the profile out.")
    profiled = requests if profile else []
    steps = _Steps(progress, 1 + rounds + len(profiled) + (rounds + 1) * (len(requests) + len(ROOFS)))

    # First, while this process does not hold the model: memory may not suffice for two.
    source = Source(str(folder), chosen.name, threads, cache_precision)
    memory, loadings = _measure_startup(source, requests, rounds, steps)
    profiles: dict[str, Profile] = {}
    for request in profiled:
        steps.begin(f"profile, {_name(request)}")
        profiles[_name(request)] = measure_profile(source, request)

    model = source.load()
    timings, roofs = _measure_requests(model, requests, threads, rounds, steps)
    costs = Costs(model.manifest, returns_last_logits(model.session))
    return BenchmarkResult(
        name=manifest.name,
        task=manifest.task,
        precision=manifest.plan.precision,
        ops=manifest.plan.ops,
        provider=chosen.name,
        threads=threads,
        kernels=model.kernels,
        rounds=rounds,
        import_seconds=Spread.of([each.imports for each in loadings]),
        load_seconds=Spread.of([each.load for each in loadings]),
        memory=memory,
        roofs=roofs,
        workloads=tuple(
            _workload(request, timings[_name(request)], profiles.get(_name(request)), costs, roofs)
            for request in requests
        ),
        notes=tuple(_notes(manifest, chosen, memory is not None, roofs is not None)),
        versions=_versions(),
    )


class _Steps:
    """Reports steps to the progress callback."""

    def __init__(self, progress: Progress, total: int):
        self._progress, self._total, self._begun = progress, total, 0

    def begin(self, what: str) -> None:
        self._progress(what, self._begun / self._total)
        self._begun += 1


def _measure_startup(
    source: Source, requests: Sequence[Request], rounds: int, steps: _Steps
) -> tuple[Memory | None, list[Loading]]:
    """Measure the memory of the largest request, and loading once per round, in fresh processes."""
    largest = max(requests, key=lambda request: (request.tokens * request.batch_size, request.batch_size))
    steps.begin("memory")
    memory = measure_memory(source, largest)
    loadings = []
    for _ in range(rounds):
        steps.begin("loading")
        loadings.append(measure_loading(source))
    return memory, loadings


def _measure_requests(
    model: Model, requests: Sequence[Request], threads: int, rounds: int, steps: _Steps
) -> tuple[dict[str, list[Timing]], Roofs | None]:
    """Time all requests, and on the CPU the machine's peak rates, in turns."""
    turns = {_name(request): partial(run, model, request) for request in requests}
    if model.provider.on_device:
        return _take_turns(turns, {}, rounds, steps)[0], None
    with closing(Machine(threads, *_largest_product(model.manifest.model))) as machine:
        timings, rates = _take_turns(turns, {name: getattr(machine, name) for name in ROOFS}, rounds, steps)
    return timings, Roofs(**{name: Spread.of(values) for name, values in rates.items()}, matmul=machine.matmul)


def _take_turns(
    model: Mapping[str, Callable[[], Timing]],
    machine: Mapping[str, Callable[[], float]],
    rounds: int,
    steps: _Steps,
) -> tuple[dict[str, list[Timing]], dict[str, list[float]]]:
    """Return the results of each callable, one per round; the order rotates, and the first round is a warm-up."""
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
    tokens = request.tokens * request.batch_size
    speed = Spread.of([tokens / each.prefill for each in timings])
    prefill = Phase.of(speed, costs.prefill(request.tokens, request.batch_size), roofs)
    decode = None
    if request.new_tokens:
        # The first new token comes from the prompt, every other one from a step.
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
    """Return inputs and outputs of the first feed-forward product; a common shape for a user's own module."""
    if config is None:
        return 1024, 4096
    stack = config.output_stack
    widths = [block.feed_forward.intermediate_size for block in stack.blocks if block.feed_forward is not None]
    return stack.hidden_size, max(widths, default=stack.hidden_size)


def _notes(manifest: Manifest, provider: Provider, has_memory: bool, has_roofs: bool) -> Iterator[str]:
    """Yield the reasons for missing figures."""
    if manifest.model is None:
        yield "the bundle holds a module of yours: FLOPs and bytes per token are not known"
    if not has_memory:
        yield "this system does not tell the memory of a process"
    if not has_roofs:
        yield f"the model ran on {provider.title}, and peak rates are measured of CPUs only"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
