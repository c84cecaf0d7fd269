"""Compare a graph with PyTorch: our own bundles, and graphs that somebody else made."""

import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
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
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.float_products import open_unrounded
from edgeformer.export.parity.report import REPORT_VERSION, Check, Report
from edgeformer.export.parity.trials.decoder import EXTENTS, Trial
from edgeformer.export.parity.trials.encoder import EncoderTrial
from edgeformer.export.parity.trials.encoder_decoder import Seq2SeqTrial
from edgeformer.export.parity.trials.int8_cache import judge_int8_cache, judge_scales
from edgeformer.export.parity.trials.prefill_graph import judge_prefill
from edgeformer.export.parity.trials.quantized_weights import judge_weights
from edgeformer.export.parity.trials.smoothing import judge_smoothing, smoothed_as_stored
from edgeformer.export.progress import Progress, no_progress
from edgeformer.export.reference.reference import Rounded
from edgeformer.manifest import Manifest, Provider, sha256
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import WeightFormat
from edgeformer.runtime.session import choose_provider, onnxruntime, onnxruntime_errors, open_session, usable_cores

ORDERS = 8
"""In which eager PyTorch runs once more, where its own run may have been lucky."""
LUCK = 100.0
"""How far beyond its limit luck can take a figure; divergences and squares grow with the square of an error."""


def verify(
    bundle: str | Path,
    against: str | Path | None = None,
    *,
    mode: VerifyMode = "full",
    progress: Progress = no_progress,
) -> Report:
    """Verify a graph against PyTorch; `open_subject` says what may be given.

    A graph that computes something else is a report that has not passed.
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
    """Compare the graph in a folder with its model over `weights`, rounded as they are stored, in float64.

    A quantized graph is run twice, both times against the weights that its integers mean: with products in float32, as
    onnxruntime computes them of weights that are not prepacked, to which everything is held as to any graph; and as it
    is used, with activations rounded to 8 bits, which it is compared for with eager PyTorch that rounds them, too. A
    graph with an int8 cache is compared with eager PyTorch that rounds keys and values as it does, and once more over
    the integers that it cached, with nothing left to round. Of a smoothed bundle, the weights are smoothed as it says,
    and must make the model that they make as they are. Raises BundleError where its norms can't be made of them.

    Limits grow with eager's own errors, and at the few positions that amplify rounding most, chance may have made those
    small (orders.py). A graph that fails by what chance can do is verified once more, beside an eager PyTorch that adds
    in several orders.
    """
    verified = partial(_verified, folder, manifest, model_spec, weights, mode, reference, progress)
    report = verified()
    once_more = not report.passed and all(
        check.at_least or check.share(check.value) <= LUCK for check in report.failures()
    )
    if not once_more:
        return report
    again = verified(ORDERS)
    return replace(again, seconds=round(report.seconds + again.seconds, 2))


def _verified(
    folder: Path,
    manifest: Manifest,
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    mode: VerifyMode,
    reference: str,
    progress: Progress,
    orders: int = 1,
) -> Report:
    start = time.perf_counter()
    original, weights = weights, smoothed_as_stored(folder, manifest, model_spec, weights)
    provider = choose_provider("cuda" if manifest.provider == "cuda" else "cpu", manifest)
    quantized = StoredWeights(folder, manifest, model_spec) if manifest.quantization is not None else None
    held = Rounded(weights, torch.bfloat16) if manifest.precision == "bf16" else quantized or weights
    # Prepacking would copy every weight, for a few tokens.
    per_token = quantized is not None and any(form.block is None for form in quantized.formats.values())
    opened = open_unrounded if per_token else partial(open_session, prepack=False)
    names = manifest.graphs if manifest.merged_graph is None else (*manifest.graphs, manifest.merged_graph)
    sessions = [opened(folder / name, provider) for name in names]
    trial = _trial(sessions, folder, manifest, provider, model_spec, held, mode, progress, orders=orders)
    ran = _run(trial.run, trial.judge.checks)
    checks, used, whole = list(trial.judge.checks), None if manifest.cache_scales is None else trial, sessions[0]
    if weights is not original:
        checks.append(judge_smoothing(model_spec, original, weights))
    if quantized is not None:
        checks += judge_weights(weights, quantized)
        sessions = [open_session(folder / name, provider) for name in names]
        used = _trial(
            sessions, folder, manifest, provider, model_spec, quantized, "quick", progress, quantized.formats, orders
        )
        ran = _run(used.run, used.judge.checks) and ran
        checks += [replace(check, name=f"int8 activations, {check.name}") for check in used.judge.checks]
    if manifest.cache_scales is not None:
        progress("running the int8 cache", 0.93)
        cached = [judge_scales(folder, manifest)]
        _run(lambda: cached.extend(judge_int8_cache(Graph(whole, manifest, provider), model_spec, held)), cached)
        checks += [replace(check, name=f"int8 cache, {check.name}") for check in cached]
    if manifest.prefill is not None:
        progress("running the view for prompts", 0.95)
        viewed: list[Check] = []
        _run(lambda: viewed.extend(judge_prefill(folder, manifest, model_spec, weights, provider, orders)), viewed)
        checks += [replace(check, name=f"view for prompts, {check.name}") for check in viewed]
    known = not isinstance(weights, StoredWeights)  # or what storing them changed cannot be told
    measured = known and ran and isinstance(trial, Trial) and (quantized is not None or mode == "full")
    return Report(
        version=REPORT_VERSION,
        mode=mode,
        reference=f"float64 PyTorch, {reference}",
        precision=manifest.precision,
        environment=_environment(provider),
        hashes=manifest.graph_hashes() or {manifest.graph: sha256(folder / manifest.graph)},
        seconds=round(time.perf_counter() - start, 2),
        checks=tuple(checks),
        greedy=trial.greedy,
        layers=tuple(trial.judge.layers),
        curves=tuple(trial.judge.curves),
        rounding=trial.rounding(weights) if measured else None,  # type: ignore[union-attr]
        quantization=used.rounding(weights, by_graph=True) if known and ran and isinstance(used, Trial) else None,
        orders=orders,
    )


def _run(run: Callable[[], None], checks: list[Check]) -> bool:
    """Run a graph; that onnxruntime refuses to is a check that fails. Returns whether it ran."""
    try:
        run()
        return True
    except onnxruntime_errors() as stopped:  # a kernel that refuses its inputs
        reason = "a graph that onnxruntime cannot run computes nothing"
        failed = Check(name="run", what=str(stopped), value=float("nan"), limit=0.0, eager=None, reason=reason)
        checks.append(failed)
        return False


def _trial(
    sessions: list[Any],
    folder: Path,
    manifest: Manifest,
    provider: Provider,
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    mode: VerifyMode,
    progress: Progress,
    activations: Mapping[str, WeightFormat] | None = None,
    orders: int = 1,
) -> Trial | Seq2SeqTrial | EncoderTrial:
    """The trial of a kind of model; sessions are those of its graphs, in their order, and of a merged decoder."""
    extent, config = EXTENTS[mode].within(manifest.context_length), model_spec.config
    graphs = [Graph(session, manifest, provider) for session in sessions]
    match config:
        case Seq2SeqConfig():
            merged = sessions[2] if len(sessions) > 2 else None
            return Seq2SeqTrial(
                sessions[0], graphs[1], merged, config, model_spec, weights, extent, progress, activations, orders
            )
        case EncoderConfig():
            return EncoderTrial(graphs[0], config, model_spec, weights, extent, progress, activations, orders)
        case _:
            windowed = graphs[1] if len(graphs) > 1 else None
            return Trial(graphs[0], windowed, model_spec, weights, extent, folder, progress, activations, orders)


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
