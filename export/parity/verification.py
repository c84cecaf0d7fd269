"""One verification of a subject: its stages, their checks, and the report that they make."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from edgeformer.errors import BundleError
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.importers.opened_bundle import Subject
from edgeformer.export.parity.block_products import BlockProducts
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.float_products import open_unrounded
from edgeformer.export.parity.placement import judge_placement
from edgeformer.export.parity.report import KERNELS, REPORT_VERSION, Check, Report, environment_of
from edgeformer.export.parity.trials.graph_forms import FORM_TRIALS, FormSetup
from edgeformer.export.parity.trials.half_cache import judge_half_cache, open_float_products, with_wide_cache
from edgeformer.export.parity.trials.kinds import TRIALS
from edgeformer.export.parity.trials.protocol import Setup, Trial
from edgeformer.export.parity.trials.quantized_cache import judge_quantized_cache, judge_scales
from edgeformer.export.parity.trials.quantized_weights import judge_weights
from edgeformer.export.parity.trials.references import Known, Original
from edgeformer.export.parity.trials.smoothing import judge_smoothing, smoothed_as_stored
from edgeformer.export.progress import Progress
from edgeformer.export.reference.reference import CastWeights
from edgeformer.manifest.graph_forms import FORMS
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import sha256
from edgeformer.options.export import VerifyMode
from edgeformer.runtime.sessions.graphs.int8_cache import open_over, with_int8_cache
from edgeformer.runtime.sessions.kernel_report import KernelReport, report_files
from edgeformer.runtime.sessions.kernels import KernelChoice, choose_kernels
from edgeformer.runtime.sessions.session import (
    choose_provider,
    onnxruntime_errors,
    open_session,
)

PLACEMENT = "placement"
"""The stage that checks which nodes the provider runs."""
PLAIN = "plain"
"""The level of kernels without SIMD."""


@dataclass(frozen=True)
class Earlier:
    """The outcome of a verification whose failures are checked again.

    stages: the checks of each stage, by the beginning of their names. exact: what float64 computed. by_position: as of
    `Setup`, for the stages that are run again.
    """

    report: Report
    stages: Mapping[str, Sequence[Check]]
    exact: Known
    by_position: bool = False


class Verification:
    """One comparison of the graphs of a subject with its model; `run` makes the report.

    earlier: a verification of the same subject. Only its stages that failed are run again.
    """

    def __init__(
        self,
        subject: Subject,
        mode: VerifyMode,
        progress: Progress,
        summation_orders: int = 1,
        earlier: Earlier | None = None,
    ):
        folder, manifest, model_spec = subject.folder, subject.manifest, subject.model_spec
        self.subject = subject
        self.summation_orders = summation_orders
        self.checks: list[Check] = []
        self.stages: dict[str, Sequence[Check]] = {}
        self.exact: Known = {} if earlier is None else earlier.exact
        self._earlier = earlier
        self._start, self._ran = time.perf_counter(), True
        self._weights = smoothed_as_stored(folder, manifest, model_spec, subject.weights)
        # The dequantized integers of a quantized bundle; the graph and the reference both read them.
        self._quantized = (
            StoredWeights(folder, manifest, model_spec) if manifest.plan.quantization is not None else None
        )
        stored = self._weights if self._quantized is None else self._quantized
        self._setup = Setup(
            folder=folder,
            manifest=manifest,
            provider=choose_provider(subject.provider or manifest.plan.provider, manifest),
            model_spec=model_spec,
            weights=CastWeights(self._weights, torch.bfloat16) if manifest.plan.precision == "bf16" else stored,
            mode=mode,
            progress=progress,
            summation_orders=summation_orders,
            by_position=earlier is not None and earlier.by_position,
        )
        self._kernel_choice, asked = choose_kernels(self._setup.provider), subject.cache_precision
        self._caches = {"": manifest}  # that kernels run over
        if asked is not None:
            self._caches[f"{asked} cache, "] = with_int8_cache(folder, manifest, asked, self._kernel_choice)
        tried = [name for name in manifest.graphs if FORMS[name].steps or FORMS[name].beside]
        self._graphs = [folder / manifest.graphs[name].file for name in tried]

    def run(self) -> Report:
        """Run all stages; a graph that onnxruntime refuses to run gives a failed check."""
        self._keeps(PLACEMENT, settled=True)
        stored = self._run_trial("", lambda: self._widened, self._open_judged)
        self._judge_smoothing()
        used = self._judge_quantized() or (None if self.subject.manifest.cache_scales is None else stored)
        self._judge_quantized_cache(stored)
        self._judge_half_cache(stored)
        self._judge_other_graphs()
        report = self._report(stored, used)
        del stored, used  # onnxruntime's copies of the weights, and soon those of the kernels
        return self._judge_kernels(report)

    def _open_judged(self) -> list[Any]:
        """Open the graphs as they are stored, and check where their nodes run."""
        sessions = self._open_stored()
        if PLACEMENT not in self.stages:
            self._keep(PLACEMENT, judge_placement(self._graphs, sessions, self._setup.provider))
        return sessions

    def _open_stored(self) -> list[Any]:
        """Open the graphs without the rounding of activations, so that their products read what the integers mean."""
        if self._setup.manifest.plan.half_cache:
            products = BlockProducts()
            return [self._open_with_half_cache(path, products, widened=True) for path in self._graphs]
        formats = {} if self._quantized is None else self._quantized.formats
        return open_unrounded(self._graphs, self._setup.provider, formats.values())

    def _open_with_half_cache(self, path: Path, products: BlockProducts, *, widened: bool) -> Any:
        return open_float_products(path, self._setup.manifest, self._setup.provider, products, widened=widened)

    @cached_property
    def _widened(self) -> Setup:
        """The setup of graphs without the rounding of activations, nor of a float16 cache."""
        setup = self._setup
        if setup.manifest.plan.half_cache:
            setup = replace(setup, manifest=with_wide_cache(setup.manifest))
        # The logits of a full verification, all positions of many texts, are not kept.
        exact = self.exact if setup.mode == "quick" else None
        return replace(setup, references=setup.make_references(exact=exact, remember=self._runs_as_stored))

    @property
    def _runs_as_stored(self) -> bool:
        """Whether kernels run the texts of the graph as it is stored, without any rounding more."""
        rounds = self._quantized is not None or self._setup.manifest.plan.half_cache
        return self._setup.mode == "quick" and not rounds and bool(self._kernels.kernels)

    def _judge_half_cache(self, stored: Trial | None) -> None:
        """Check a float16 cache by the graph that was judged over a float32 one."""
        if not self.subject.manifest.plan.half_cache or self._keeps("fp16 cache, ", settled=True):
            return
        assert stored is not None, "a first verification runs every trial"
        setup, checks, widened = self._setup, list[Check](), stored.graphs[0]
        setup.progress("running the fp16 cache", 0.93)

        def judge() -> None:
            session = self._open_with_half_cache(self._graphs[0], BlockProducts(), widened=False)
            checks.extend(judge_half_cache(Graph(session, setup.manifest, setup.provider), widened))

        self._stage(judge, checks, "fp16 cache, ")

    def _judge_smoothing(self) -> None:
        """Check that smoothing leaves the model what it is."""
        if self._weights is not self.subject.weights and not self._keeps("smoothing", settled=True):
            check = judge_smoothing(self.subject.model_spec, self.subject.weights, self._weights)
            self._keep("smoothing", [check])

    def _judge_quantized(self) -> Trial | None:
        """Check quantized weights; run the graphs as clients do, against eager PyTorch that rounds activations, too."""
        if self._quantized is None:
            return None
        if not self._keeps("weights", settled=True):
            self._keep("weights", judge_weights(self._weights, self._quantized))
        return self._run_trial("int8 activations, ", lambda: self._as_used, self._open_used)

    def _open_used(self) -> list[Any]:
        """Open the graphs as clients do."""
        return [open_session(path, self._setup.provider) for path in self._graphs]

    @cached_property
    def _as_used(self) -> Setup:
        """The setup of graphs as clients use them, with all of their rounding."""
        if self._runs_as_stored:
            return self._widened
        setup = replace(self._setup, mode="quick")
        if self._quantized is not None:
            setup = replace(setup, weights=self._quantized, activations=self._quantized.formats)
        return replace(setup, references=setup.make_references(exact=self.exact, remember=bool(self._kernels.kernels)))

    @cached_property
    def _kernels(self) -> KernelReport:
        """The report of what runs the graphs' functions where edgeformer's own kernels are used."""
        return report_files(self._graphs, self._kernel_choice)

    def _judge_kernels(self, report: Report) -> Report:
        """Run the graphs with edgeformer's own kernels, at each SIMD level of this machine, with the same limits.

        Returns the report with these checks, and with a sentence about the kernels if the graphs have functions.
        """
        found, library = self._kernels, self._kernel_choice.library
        if library is None or not found.kernels:
            said = {"kernels": f"none were run: {found.reason}"} if found.bodies else {}
            return replace(report, environment=report.environment | said)
        # Plain C++ is slow, and nothing that has SIMD runs it; a full verification does.
        simd = () if self._setup.mode == "full" else tuple(level for level in library.levels if level != PLAIN)
        levels = simd or library.levels
        for done, level in enumerate(levels):
            self._setup.progress(f"running kernels, {level}", 0.96 + 0.03 * done / len(levels))
            kernels = replace(self._kernel_choice, level=level)
            for cache, manifest in self._caches.items():
                stage, checks = f"{KERNELS}{level}, {cache}", list[Check]()
                if not self._keeps(stage):
                    self._stage(partial(self._run_with, kernels, manifest, checks), checks, stage)
        return replace(
            report,
            checks=tuple(self.checks),
            seconds=self._seconds(),
            environment=report.environment | {"kernels": f"{found.describe()}; run at {', '.join(levels)}"},
        )

    def _run_with(self, kernels: KernelChoice, manifest: Manifest, checks: list[Check]) -> None:
        """Run all graphs with kernels over the cache of a manifest. Raises BundleError where a kernel refuses one."""
        setup = self._as_used
        if manifest is not setup.manifest:
            setup = replace(setup, manifest=manifest)
            setup = replace(setup, references=setup.make_references())
        trial = _trial(setup, [open_over(path, manifest, setup.provider, kernels=kernels) for path in self._graphs])
        trial.run()
        checks += trial.judge.checks

    def _judge_quantized_cache(self, stored: Trial | None) -> None:
        """Check a quantized cache over the numbers that the graph stored, which leaves nothing to round."""
        scales = self.subject.manifest.cache_scales
        if scales is None or self._keeps(f"{scales.precision} cache, ", settled=True):
            return
        assert stored is not None, "a first verification runs every trial"
        graph = stored.graphs[0]
        setup, checks = self._setup, judge_scales(self.subject.folder, self.subject.manifest)
        setup.progress(f"running the {scales.precision} cache", 0.93)
        stage = partial(judge_quantized_cache, graph, setup.model_spec, setup.weights, setup.provider.on_device)
        self._stage(lambda: checks.extend(stage()), checks, f"{scales.precision} cache, ")

    def _judge_other_graphs(self) -> None:
        """Check the graphs that have trials of their own."""
        given = FormSetup(
            setup=self._setup, adapters=self.subject.adapters,
            formats={} if self._quantized is None else self._quantized.formats, kernels=self._kernel_choice,
        )  # fmt: skip
        for form in (form for form in self.subject.manifest.graphs if form in FORM_TRIALS):
            for name, judge in FORM_TRIALS[form](given):
                self._setup.progress(f"running {name.partition(',')[0]}", 0.95)
                checks: list[Check] = []
                if not self._keeps(name):
                    self._stage(partial(_extend, checks, judge), checks, name)

    def _run_trial(self, prefix: str, setup: Callable[[], Setup], open_graphs: Callable[[], list[Any]]) -> Trial | None:
        """Run a trial, and keep its checks under `prefix`; return None where those of an earlier one are kept."""
        if self._keeps(prefix):
            return None
        trial = _trial(setup(), open_graphs())
        self._stage(trial.run, trial.judge.checks, prefix)
        return trial

    def _keeps(self, stage: str, *, settled: bool = False) -> bool:
        """Keep the checks of an earlier verification, if there was one and they passed; return whether they are kept.

        settled: checks in which no run of eager PyTorch takes part are kept if they failed, too.
        """
        if self._earlier is None:
            return False
        checks = self._earlier.stages.get(stage, ())
        if not settled and not all(check.passed for check in checks):
            return False
        self._keep(stage, checks)
        return True

    def _keep(self, stage: str, checks: Sequence[Check]) -> None:
        self.stages[stage] = checks
        self.checks += checks

    def _stage(self, run: Callable[[], None], checks: list[Check], prefix: str) -> None:
        """Run a stage that fills `checks`, and keep them under `prefix`."""
        kinds: tuple[type[Exception], ...] = (*onnxruntime_errors(), BundleError)
        try:
            run()
        except kinds as error:  # a kernel that refuses its inputs
            reason, nan = "a graph that onnxruntime cannot run computes nothing", float("nan")
            checks.append(Check(name="run", what=str(error), value=nan, limit=0.0, eager=None, reason=reason))
            self._ran = False
        self._keep(prefix, [replace(check, name=prefix + check.name) for check in checks])

    def _report(self, stored: Trial | None, used: Trial | None) -> Report:
        """Make the report. used: the trial with all of the graph's rounding, where there is another than `stored`."""
        if self._earlier is not None:
            report = self._earlier.report
            if stored is not None:
                states, curves = tuple(stored.judge.states), tuple(stored.judge.curves)
                report = replace(report, greedy=stored.greedy, states=states, curves=curves)
            return replace(report, checks=(*self.checks,), seconds=self._seconds(), orders=self.summation_orders)
        assert stored is not None, "a first verification runs every trial"
        manifest, mode = self.subject.manifest, self._setup.mode
        # Where the original weights are not known, what storing them changed cannot be measured.
        known = self._ran and not isinstance(self._weights, StoredWeights)
        measured = known and (self._quantized is not None or mode == "full")
        original = Original(self.subject.model_spec, self._weights)
        return Report(
            version=REPORT_VERSION,
            mode=mode,
            reference=f"float64 PyTorch, {self.subject.reference}",
            precision=manifest.plan.precision,
            environment=environment_of(self._setup.provider),
            hashes=manifest.graph_hashes() or {manifest.graph: sha256(self.subject.folder / manifest.graph)},
            seconds=self._seconds(),
            checks=tuple(self.checks),
            greedy=stored.greedy,
            states=tuple(stored.judge.states),
            curves=tuple(stored.judge.curves),
            rounding=stored.rounding(original) if measured else None,
            quantization=used.rounding(original, by_graph=True) if known and used is not None else None,
            orders=self.summation_orders,
        )

    def _seconds(self) -> float:
        """Return the seconds since the start."""
        return round(time.perf_counter() - self._start, 2)


def _extend(checks: list[Check], judge: Callable[[], list[Check]]) -> None:
    checks += judge()


def _trial(setup: Setup, sessions: Sequence[Any]) -> Trial:
    """Return the trial of a kind of model over open graphs."""
    return TRIALS[setup.model_spec.task](setup, sessions)
