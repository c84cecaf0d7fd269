"""Compare a graph with PyTorch: the graphs of our own bundles, and graphs that another exporter made."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from torch import Tensor, nn

from edgeformer.errors import ExportError, shown
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.heap import reusing_freed_memory
from edgeformer.export.importers.module_contract import check_contract
from edgeformer.export.importers.opened_bundle import Subject, open_bundle, open_subject
from edgeformer.export.importers.own_module import ModuleWeights, module_spec
from edgeformer.export.parity.report import Report
from edgeformer.export.parity.trials.adapters import Updates
from edgeformer.export.parity.twin import lacks_gpu, verify_twin
from edgeformer.export.parity.verification import Earlier, Verification
from edgeformer.export.progress import Progress, no_progress
from edgeformer.export.reference.summation_orders import chooses_experts
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.model_spec import ModelSpec
from edgeformer.options.export import VerifyMode
from edgeformer.runtime.sessions.providers.unproven import UnprovenProviderWarning

RECHECK_ORDERS = 8
"""Summation orders of eager PyTorch when a borderline failure is checked again. Measured: at the worst position of a
correct graph that failed, eager erred 1.0e-5 in its own order and 0.7e-5 to 2.5e-5 in eight others."""
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
    provider: str | None = None,
    cache_precision: str | None = None,
    progress: Progress = no_progress,
) -> Report:
    """Verify a graph against PyTorch; `open_subject` says what may be given and which errors it raises.

    merge_adapter: folder of the LoRA adapter that was merged into the model `against`, where one was. provider: what
    runs the graphs, by a name that `load` takes; None for the one that the bundle is for. cache_precision: `int8` to
    run them also over the cache that `load` has by it. A graph that computes something else gives a report that has not
    passed. Raises RequestError for a provider that does not run here, and for a cache that no kernel keeps.
    """
    _check_mode(mode)
    subject = open_subject(bundle, against, progress, adapter=merge_adapter)
    subject = replace(subject, provider=provider, cache_precision=cache_precision)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnprovenProviderWarning)  # this is the proof that the warning asks for
        return _verify(subject, mode, progress)


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


@reusing_freed_memory()
def _verify(subject: Subject, mode: VerifyMode, progress: Progress) -> Report:
    """Verify a subject; check borderline failures again beside eager PyTorch in several summation orders.

    Limits grow with eager PyTorch's own errors, which may be small by chance at the few positions that amplify rounding
    most (`reference/summation_orders.py`). Where experts are chosen, one choice between nearly equal ones may change a
    position by any amount, so larger failures are checked again, too, and each position beside eager's error there.
    Without a device, graphs for it are verified by their twins (`twin.py`).
    """
    if subject.provider is None and lacks_gpu(subject.manifest):
        return verify_twin(subject, progress, lambda twin: _verify(twin, mode, progress))
    first = Verification(subject, mode, progress)
    report = first.run()
    failures = report.failures()
    shares = [check.share(check.value) for check in failures if not check.at_least]
    large = not all(share <= BORDERLINE for share in shares)  # NaN is large
    if not failures or (large and not (all(map(math.isfinite, shares)) and chooses_experts(subject.model_spec))):
        return report
    earlier = Earlier(report, first.stages, first.exact, by_position=large)
    again = Verification(subject, mode, progress, RECHECK_ORDERS, earlier).run()
    return replace(again, seconds=round(report.seconds + again.seconds, 2))
