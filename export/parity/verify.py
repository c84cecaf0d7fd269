"""Compare a graph with PyTorch: the graphs of our own bundles, and graphs that another exporter made."""

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import torch
from torch import Tensor, nn

from edgeformer import __version__
from edgeformer.errors import BundleError, ExportError, shown
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.importers.module_contract import check_contract
from edgeformer.export.importers.opened_bundle import Subject, open_bundle, open_subject
from edgeformer.export.importers.own_module import ModuleWeights, module_spec
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.float_products import open_with_float_products
from edgeformer.export.parity.placement import judge_placement
from edgeformer.export.parity.report import KERNELS, REPORT_VERSION, Check, Report
from edgeformer.export.parity.trials.adapters import Updates
from edgeformer.export.parity.trials.graph_forms import FORM_TRIALS, FormSetup
from edgeformer.export.parity.trials.kinds import TRIALS
from edgeformer.export.parity.trials.protocol import Setup, Trial
from edgeformer.export.parity.trials.quantized_cache import judge_quantized_cache, judge_scales
from edgeformer.export.parity.trials.quantized_weights import judge_weights
from edgeformer.export.parity.trials.smoothing import judge_smoothing, smoothed_as_stored
from edgeformer.export.parity.twin import lacks_gpu, verify_twin
from edgeformer.export.progress import Progress, no_progress
from edgeformer.export.reference.reference import CastWeights
from edgeformer.manifest.graph_forms import FORMS
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import sha256
from edgeformer.manifest.providers import Provider
from edgeformer.models.model_spec import ModelSpec
from edgeformer.options.export import VerifyMode
from edgeformer.runtime.sessions.kernel_report import KernelReport, report_files
from edgeformer.runtime.sessions.kernels import KernelChoice, choose_kernels
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import (
    choose_provider,
    onnxruntime,
    onnxruntime_errors,
    open_session,
    usable_cores,
)

RECHECK_ORDERS = 8
"""Summation orders of eager PyTorch when a borderline failure is checked again. Measured: at the worst position of a
correct graph that failed, eager erred 1.0e-5 in its own order and 0.7e-5 to 2.5e-5 in eight others."""
PLAIN = "plain"
"""The level of kernels without SIMD."""
BORDERLINE = 100.0
"""Ratio of a figure to its limit up to which a failure is borderline: chance in eager PyTorch's own errors may explain
it. A few positions amplify rounding about 10 times as much as most (docs/explanation/parity.md), so eager's error at
one of them may be 10 times too small, and squared errors and KL divergences grow with its square, 100."""

NO_UPDATES: Updates = MappingProxyType({})


def verify(
    bundle: str | Path,
    against: str | Path | None = None,
    *,
    merge_adapter: str | Path | None = None,
    mode: VerifyMode = "full",
    progress: Progress = no_progress,
) -> Report:
    """Verify a graph against PyTorch; `open_subject` says what may be given and which errors it raises.

    merge_adapter: folder of the LoRA adapter that was merged into the model `against`, where one was. A graph that
    computes something else gives a report that has not passed.
    """
    _check_mode(mode)
    return _verify(open_subject(bundle, against, progress, adapter=merge_adapter), mode, progress)


def verify_module(
    bundle: str | Path,
    module: nn.Module,
    *,
    mode: VerifyMode = "full",
    progress: Progress = no_progress,
) -> Report:
    """Verify the graph of a bundle against the module that it was exported from, with the module's weights.

    A graph that computes something else gives a report that has not passed. Raises BundleError for files that are not
    what the manifest says, and ExportError for a module that does not keep the forward contract with the bundle's
    sizes.
    """
    _check_mode(mode)
    folder = Path(bundle)
    manifest = open_bundle(folder, progress)
    model_spec, weights = module_spec(module, manifest), ModuleWeights(module)
    check_contract(model_spec, weights, TORCH_PRECISIONS[manifest.plan.arithmetic])
    subject = Subject(folder, manifest, model_spec, weights, f"module {type(module).__qualname__}")
    return _verify(subject, mode, progress)


def verify_graph(
    folder: Path,
    manifest: Manifest,
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    *,
    mode: VerifyMode = "quick",
    reference: str = "the checkpoint",
    adapters: Updates = NO_UPDATES,
    progress: Progress = no_progress,
) -> Report:
    """Compare the graphs in a folder with their model over `weights`, cast to the precision of the graphs, in float64.

    reference: whose weights they are, for people. adapters: what each adapter that is kept apart adds to the weights;
    by default what the bundle's files say. Raises BundleError where the norms of a smoothed bundle cannot come
    from these weights.
    """
    return _verify(Subject(folder, manifest, model_spec, weights, reference, adapters), mode, progress)


def _check_mode(mode: VerifyMode) -> None:
    """Raise ExportError for a mode that does not exist."""
    if mode not in get_args(VerifyMode):
        raise ExportError(f"mode is {shown(mode)}; it must be one of {', '.join(get_args(VerifyMode))}.")


def _verify(subject: Subject, mode: VerifyMode, progress: Progress) -> Report:
    """Verify a subject; check borderline failures again beside eager PyTorch in several summation orders.

    Limits grow with eager PyTorch's own errors, which may be small by chance at the few positions that amplify rounding
    most (`reference/summation_orders.py`). Without a device, graphs for it are verified by their twins (`twin.py`).
    """
    if lacks_gpu(subject.manifest):
        return verify_twin(subject, progress, lambda twin: _verify(twin, mode, progress))
    report = Verification(subject, mode, progress).run()
    failures = report.failures()
    if not failures or any(not check.at_least and not check.share(check.value) <= BORDERLINE for check in failures):
        return report
    again = Verification(subject, mode, progress, RECHECK_ORDERS).run()
    return replace(again, seconds=round(report.seconds + again.seconds, 2))


class Verification:
    """One comparison of the graphs of a subject with its model; `run` makes the report."""

    def __init__(self, subject: Subject, mode: VerifyMode, progress: Progress, summation_orders: int = 1):
        folder, manifest, model_spec = subject.folder, subject.manifest, subject.model_spec
        self.subject = subject
        self.summation_orders = summation_orders
        self.checks: list[Check] = []
        self._start = time.perf_counter()
        self._ran = True
        self._weights = smoothed_as_stored(folder, manifest, model_spec, subject.weights)
        # The dequantized integers of a quantized bundle; the graph and the reference both read them.
        self._quantized = (
            StoredWeights(folder, manifest, model_spec) if manifest.plan.quantization is not None else None
        )
        stored = self._weights if self._quantized is None else self._quantized
        self._setup = Setup(
            folder=folder,
            manifest=manifest,
            provider=choose_provider(manifest.plan.provider, manifest),
            model_spec=model_spec,
            weights=CastWeights(self._weights, torch.bfloat16) if manifest.plan.precision == "bf16" else stored,
            mode=mode,
            progress=progress,
            summation_orders=summation_orders,
        )
        self._kernel_choice = choose_kernels(self._setup.provider)
        tried = [name for name in manifest.graphs if FORMS[name].steps or FORMS[name].beside]
        self._graphs = [folder / manifest.graphs[name].file for name in tried]

    def run(self) -> Report:
        """Run all stages; a graph that onnxruntime refuses to run gives a failed check."""
        sessions = self._open_stored()
        self.checks += judge_placement(self._graphs, sessions, self._setup.provider)
        stored = _trial(self._setup, sessions)
        del sessions
        self._stage(stored.run, stored.judge.checks)
        self._judge_smoothing()
        used = self._judge_quantized() or (None if self.subject.manifest.cache_scales is None else stored)
        self._judge_quantized_cache(stored.graphs[0])
        self._judge_other_graphs()
        report = self._report(stored, used)
        del stored, used  # onnxruntime's copies of the weights, and soon those of the kernels
        return self._judge_kernels(report)

    def _open_stored(self) -> list[Any]:
        """Open the graphs without the rounding of activations, so that their products read what the integers mean."""
        formats = {} if self._quantized is None else self._quantized.formats
        if any(form.block is None for form in formats.values()):  # per-token activations
            return [open_with_float_products(path, self._setup.provider) for path in self._graphs]
        # Prepacking would copy every weight, and let onnxruntime multiply quantized weights with rounded activations.
        return [open_session(path, self._setup.provider, prepack=False) for path in self._graphs]

    def _judge_smoothing(self) -> None:
        """Check that smoothing leaves the model what it is."""
        if self._weights is not self.subject.weights:
            self.checks.append(judge_smoothing(self.subject.model_spec, self.subject.weights, self._weights))

    def _judge_quantized(self) -> Trial | None:
        """Check quantized weights; run the graphs as clients do, against eager PyTorch that rounds activations, too."""
        if self._quantized is None:
            return None
        self.checks += judge_weights(self._weights, self._quantized)
        sessions = [open_session(path, self._setup.provider) for path in self._graphs]
        trial = _trial(self._as_used, sessions)
        self._stage(trial.run, trial.judge.checks, "int8 activations, ")
        return trial

    @cached_property
    def _as_used(self) -> Setup:
        """The setup of graphs as clients use them, with all of their rounding."""
        setup = replace(self._setup, mode="quick")
        if self._quantized is not None:
            setup = replace(setup, weights=self._quantized, activations=self._quantized.formats)
        return replace(setup, references=setup.make_references(remember=bool(self._kernels.kernels)))

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
        simd = tuple(level for level in library.levels if level != PLAIN)
        levels = library.levels if self._setup.mode == "full" or not simd else simd
        for done, level in enumerate(levels):
            self._setup.progress(f"running kernels, {level}", 0.96 + 0.03 * done / len(levels))
            kernels = replace(self._kernel_choice, level=level)
            checks: list[Check] = []
            stage = partial(self._run_with, kernels, checks)
            self._stage(stage, checks, f"{KERNELS}{level}, ", (BundleError,))
        return replace(
            report,
            checks=tuple(self.checks),
            seconds=self._seconds(),
            environment=report.environment | {"kernels": f"{found.describe()}; run at {', '.join(levels)}"},
        )

    def _run_with(self, kernels: KernelChoice, checks: list[Check]) -> None:
        """Run all graphs with kernels, and fill `checks`. Raises BundleError where a kernel refuses a graph."""
        provider = self._setup.provider
        trial = _trial(self._as_used, [open_session(path, provider, kernels=kernels) for path in self._graphs])
        trial.run()
        checks += trial.judge.checks

    def _judge_quantized_cache(self, graph: Graph) -> None:
        """Check a quantized cache over the numbers that the graph stored, which leaves nothing to round."""
        if (scales := self.subject.manifest.cache_scales) is None:
            return
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
                self._stage(partial(_extend, checks, judge), checks, name)

    def _stage(
        self,
        run: Callable[[], None],
        checks: list[Check],
        prefix: str = "",
        errors: tuple[type[Exception], ...] = (),
    ) -> None:
        """Run a stage that fills `checks`, and keep them under `prefix`.

        errors: those that are failed checks, besides onnxruntime's.
        """
        kinds: tuple[type[Exception], ...] = (*onnxruntime_errors(), BundleError, *errors)
        try:
            run()
        except kinds as error:  # a kernel that refuses its inputs
            reason, nan = "a graph that onnxruntime cannot run computes nothing", float("nan")
            checks.append(Check(name="run", what=str(error), value=nan, limit=0.0, eager=None, reason=reason))
            self._ran = False
        self.checks += [replace(check, name=prefix + check.name) for check in checks]

    def _report(self, stored: Trial, used: Trial | None) -> Report:
        """Make the report. used: the trial with all of the graph's rounding, where there is another than `stored`."""
        manifest, mode = self.subject.manifest, self._setup.mode
        # Where the original weights are not known, what storing them changed cannot be measured.
        known = self._ran and not isinstance(self._weights, StoredWeights)
        measured = known and (self._quantized is not None or mode == "full")
        return Report(
            version=REPORT_VERSION,
            mode=mode,
            reference=f"float64 PyTorch, {self.subject.reference}",
            precision=manifest.plan.precision,
            environment=_environment(self._setup.provider),
            hashes=manifest.graph_hashes() or {manifest.graph: sha256(self.subject.folder / manifest.graph)},
            seconds=self._seconds(),
            checks=tuple(self.checks),
            greedy=stored.greedy,
            states=tuple(stored.judge.states),
            curves=tuple(stored.judge.curves),
            rounding=stored.rounding(self._weights) if measured else None,
            quantization=used.rounding(self._weights, by_graph=True) if known and used is not None else None,
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


def _environment(provider: Provider) -> dict[str, str]:
    return {
        "edgeformer": __version__,
        "onnxruntime": onnxruntime().__version__,
        "provider": provider.name,
        **sessions_of(provider).environment(onnxruntime()),
        "TF32": "off",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {sys.platform}",
        "threads": str(usable_cores()),
    }
