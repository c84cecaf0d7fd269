"""Compare a graph with PyTorch: the graphs of our own bundles, and graphs that another exporter made."""

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer import __version__
from edgeformer.config import EncoderConfig, Seq2SeqConfig
from edgeformer.export.adapters.module_contract import check_contract
from edgeformer.export.adapters.opened_bundle import open_bundle, open_subject
from edgeformer.export.adapters.own_module import ModuleWeights, module_spec
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.options import VerifyMode
from edgeformer.export.parity.float_products import open_with_float_products
from edgeformer.export.parity.report import REPORT_VERSION, Check, Report
from edgeformer.export.parity.trials.decoder import DecoderTrial
from edgeformer.export.parity.trials.encoder import EncoderTrial
from edgeformer.export.parity.trials.encoder_decoder import EncoderDecoderTrial
from edgeformer.export.parity.trials.int8_cache import judge_int8_cache, judge_scales
from edgeformer.export.parity.trials.prefill_graph import judge_prefill_graph
from edgeformer.export.parity.trials.protocol import Setup, Trial
from edgeformer.export.parity.trials.quantized_weights import judge_weights
from edgeformer.export.parity.trials.smoothing import judge_smoothing, smoothed_as_stored
from edgeformer.export.progress import Progress, no_progress
from edgeformer.export.reference.reference import CastWeights
from edgeformer.manifest import Manifest, Provider, sha256
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import WeightFormat
from edgeformer.runtime.session import choose_provider, onnxruntime, onnxruntime_errors, open_session, usable_cores

RECHECK_ORDERS = 8
"""Summation orders of eager PyTorch when a borderline failure is checked again. Measured: at the worst position of a
correct graph that failed, eager erred 1.0e-5 in its own order and 0.7e-5 to 2.5e-5 in eight others."""
BORDERLINE = 100.0
"""Ratio of a figure to its limit up to which a failure is borderline: chance in eager PyTorch's own errors may explain
it. A few positions amplify rounding about 10 times as much as most (docs/explanation/parity.md), so eager's error at
one of them may be 10 times too small, and squared errors and KL divergences grow with its square, 100."""


def verify(
    bundle: str | Path,
    against: str | Path | None = None,
    *,
    mode: VerifyMode = "full",
    progress: Progress = no_progress,
) -> Report:
    """Verify a graph against PyTorch; `open_subject` says what may be given and which errors it raises.

    A graph that computes something else gives a report that has not passed.
    """
    subject = open_subject(bundle, against, progress)
    return verify_graph(
        subject.folder,
        subject.manifest,
        subject.model_spec,
        subject.weights,
        mode=mode,
        reference=subject.reference,
        progress=progress,
    )


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
    folder = Path(bundle)
    manifest = open_bundle(folder, progress)
    model_spec, weights = module_spec(module, manifest), ModuleWeights(module)
    check_contract(model_spec, weights, TORCH_PRECISIONS[manifest.arithmetic])
    reference = f"module {type(module).__qualname__}"
    return verify_graph(folder, manifest, model_spec, weights, mode=mode, reference=reference, progress=progress)


def verify_graph(
    folder: Path,
    manifest: Manifest,
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    *,
    mode: VerifyMode = "quick",
    reference: str = "the checkpoint",
    progress: Progress = no_progress,
) -> Report:
    """Compare the graphs in a folder with their model over `weights`, cast to the precision of the graphs, in float64.

    Borderline failures are checked again: limits grow with eager PyTorch's own errors, and at the few positions that
    amplify rounding most these may be small by chance. The second time, eager PyTorch runs in RECHECK_ORDERS summation
    orders (`reference/summation_orders.py`). Raises BundleError where the norms of a smoothed bundle cannot come from
    these weights.
    """
    verification = Verification(
        folder=folder, manifest=manifest, model_spec=model_spec, original=weights, mode=mode, reference=reference,
        progress=progress,
    )  # fmt: skip
    report = verification.run()
    failures = report.failures()
    borderline = all(check.at_least or check.share(check.value) <= BORDERLINE for check in failures)
    if not failures or not borderline:
        return report
    again = replace(verification, summation_orders=RECHECK_ORDERS).run()
    return replace(again, seconds=round(report.seconds + again.seconds, 2))


@dataclass(frozen=True, kw_only=True)
class Verification:
    """One comparison of the graphs in a folder with a model; `run` makes the report.

    original: the weights of the model as it was given. reference: whose weights they are, for people.
    """

    folder: Path
    manifest: Manifest
    model_spec: ModelSpec
    original: Mapping[str, Tensor]
    mode: VerifyMode
    reference: str
    progress: Progress
    summation_orders: int = 1

    def run(self) -> Report:
        """Run all stages; a graph that onnxruntime refuses to run gives a failed check."""
        start = time.perf_counter()
        result = _Result(self._trial(self._stored_sessions(), self._held, self.mode))
        result.run(result.stored.run, result.stored.judge.checks)
        self._judge_smoothing(result)
        self._judge_quantized(result)
        self._judge_int8_cache(result)
        self._judge_prefill_graph(result)
        stored = result.stored
        used = result.used or (None if self.manifest.cache_scales is None else stored)
        # Where only the stored weights are known, what storing them changed cannot be measured.
        original = None if isinstance(self.weights, StoredWeights) or not result.ran else self.weights
        measured = original is not None and (self._quantized is not None or self.mode == "full")
        return Report(
            version=REPORT_VERSION,
            mode=self.mode,
            reference=f"float64 PyTorch, {self.reference}",
            precision=self.manifest.precision,
            environment=_environment(self.provider),
            hashes=self.manifest.graph_hashes() or {self.manifest.graph: sha256(self.folder / self.manifest.graph)},
            seconds=round(time.perf_counter() - start, 2),
            checks=tuple(result.checks),
            greedy=stored.greedy,
            layers=tuple(stored.judge.layers),
            curves=tuple(stored.judge.curves),
            rounding=stored.rounding(self.weights) if measured else None,
            quantization=used.rounding(original, by_graph=True) if used is not None and original is not None else None,
            orders=self.summation_orders,
        )

    @cached_property
    def provider(self) -> Provider:
        """The execution provider that runs the graphs."""
        return choose_provider("cuda" if self.manifest.provider == "cuda" else "cpu", self.manifest)

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The original weights, smoothed as the bundle says."""
        return smoothed_as_stored(self.folder, self.manifest, self.model_spec, self.original)

    @cached_property
    def _quantized(self) -> StoredWeights | None:
        """The weights that the integers of a quantized bundle mean."""
        if self.manifest.quantization is None:
            return None
        return StoredWeights(self.folder, self.manifest, self.model_spec)

    @cached_property
    def _held(self) -> Mapping[str, Tensor]:
        """The weights that the graphs hold, as far as casting them to the graph's precision does not give them."""
        if self.manifest.precision == "bf16":
            return CastWeights(self.weights, torch.bfloat16)
        return self.weights if self._quantized is None else self._quantized

    def _stored_sessions(self) -> list[Any]:
        """Open the graphs without the rounding of activations, so that their products read what the integers mean."""
        formats = {} if self._quantized is None else self._quantized.formats
        if any(form.block is None for form in formats.values()):  # per-token activations
            return [open_with_float_products(path, self.provider) for path in self._graphs]
        # Prepacking would copy every weight, and let onnxruntime multiply quantized weights with rounded activations.
        return [open_session(path, self.provider, prepack=False) for path in self._graphs]

    def _judge_smoothing(self, result: "_Result") -> None:
        """Check that smoothing leaves the model what it is."""
        if self.weights is not self.original:
            result.checks.append(judge_smoothing(self.model_spec, self.original, self.weights))

    def _judge_quantized(self, result: "_Result") -> None:
        """Check quantized weights; run the graphs as clients do, against eager PyTorch that rounds activations, too."""
        if self._quantized is None:
            return
        result.checks += judge_weights(self.weights, self._quantized)
        sessions = [open_session(path, self.provider) for path in self._graphs]
        result.used = self._trial(sessions, self._quantized, "quick", self._quantized.formats)
        result.run(result.used.run, result.used.judge.checks, "int8 activations, ")

    def _judge_int8_cache(self, result: "_Result") -> None:
        """Check an int8 cache over the integers that the graph stored, which leaves nothing to round."""
        if self.manifest.cache_scales is None:
            return
        self.progress("running the int8 cache", 0.93)
        graph, checks = result.stored.graphs[0], [judge_scales(self.folder, self.manifest)]
        result.run(lambda: checks.extend(judge_int8_cache(graph, self.model_spec, self._held)), checks, "int8 cache, ")

    def _judge_prefill_graph(self, result: "_Result") -> None:
        """Check the prefill graph by itself."""
        if self.manifest.prefill is None:
            return
        self.progress("running the prefill graph", 0.95)
        checks: list[Check] = []
        setup = self._setup(self.weights, "quick")
        result.run(lambda: checks.extend(judge_prefill_graph(setup)), checks, "prefill graph, ")

    @property
    def _graphs(self) -> list[Path]:
        """The graphs of the manifest in its order, then a merged decoder."""
        names = [*self.manifest.graphs, *([] if self.manifest.merged_graph is None else [self.manifest.merged_graph])]
        return [self.folder / name for name in names]

    def _trial(
        self,
        sessions: Sequence[Any],
        weights: Mapping[str, Tensor],
        mode: VerifyMode,
        activations: Mapping[str, WeightFormat] | None = None,
    ) -> Trial:
        """Return the trial of this kind of model over open graphs."""
        setup = self._setup(weights, mode, activations)
        match self.model_spec.config:
            case Seq2SeqConfig():
                return EncoderDecoderTrial(setup, sessions)
            case EncoderConfig():
                return EncoderTrial(setup, sessions)
            case _:
                return DecoderTrial(setup, sessions)

    def _setup(
        self, weights: Mapping[str, Tensor], mode: VerifyMode, activations: Mapping[str, WeightFormat] | None = None
    ) -> Setup:
        return Setup(
            folder=self.folder, manifest=self.manifest, provider=self.provider, model_spec=self.model_spec,
            weights=weights, mode=mode, progress=self.progress, activations=activations,
            summation_orders=self.summation_orders,
        )  # fmt: skip


@dataclass
class _Result:
    """What the stages of a verification have found so far.

    stored: the trial without the rounding of activations; used: the one with all rounding, as clients run the graph.
    ran: whether onnxruntime ran every graph.
    """

    stored: Trial
    used: Trial | None = None
    checks: list[Check] = field(default_factory=list)
    ran: bool = True

    def run(self, stage: Callable[[], None], checks: list[Check], prefix: str = "") -> None:
        """Run a stage that fills `checks`, and keep them under `prefix`; an error of onnxruntime is a failed check."""
        try:
            stage()
        except onnxruntime_errors() as error:  # a kernel that refuses its inputs
            reason = "a graph that onnxruntime cannot run computes nothing"
            what = str(error)
            checks.append(Check(name="run", what=what, value=float("nan"), limit=0.0, eager=None, reason=reason))
            self.ran = False
        self.checks += [replace(check, name=prefix + check.name) for check in checks]


def _environment(provider: str) -> dict[str, str]:
    return {
        "edgeformer": __version__,
        "onnxruntime": onnxruntime().__version__,
        "provider": provider,
        "TF32": "off",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {sys.platform}",
        "threads": str(usable_cores()),
    }
