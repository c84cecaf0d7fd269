"""Compare a graph with PyTorch: our own bundles, and graphs that somebody else made."""

import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeformer import __version__
from edgeformer.config import EncoderConfig, PoolingHead, Seq2SeqConfig
from edgeformer.errors import BundleError, ConfigError
from edgeformer.export.adapters.foreign_graph import open_foreign
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.bundle.writer import Progress
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.float_products import open_unrounded
from edgeformer.export.parity.rebuild import model_spec_of_bundle
from edgeformer.export.parity.report import REPORT_VERSION, Check, Report
from edgeformer.export.parity.trials.decoder import EXTENTS, Mode, Trial
from edgeformer.export.parity.trials.encoder import EncoderTrial
from edgeformer.export.parity.trials.encoder_decoder import Seq2SeqTrial
from edgeformer.export.parity.trials.int8_cache import judge_int8_cache, judge_scales
from edgeformer.export.parity.trials.prefill_graph import judge_prefill
from edgeformer.export.parity.trials.quantized_weights import judge_weights
from edgeformer.export.parity.trials.smoothing import judge_smoothing, smoothed_as_stored
from edgeformer.export.reference.reference import Rounded
from edgeformer.manifest import FILE_NAME, Manifest, Provider, sha256
from edgeformer.model_spec import ModelSpec, model_spec_of
from edgeformer.quantization import WeightFormat
from edgeformer.runtime.session import choose_provider, onnxruntime, onnxruntime_errors, open_session, usable_cores
from edgeformer.source import find_model, open_source
from edgeformer.weights import Weights

ORDERS = 8
"""In which eager PyTorch runs once more, where its own run may have been lucky."""
LUCK = 100.0
"""How far beyond its limit luck can take a figure; divergences and squares grow with the square of an error."""


@dataclass(frozen=True)
class Subject:
    """A graph that is to be compared with PyTorch: where it is, what it is, what it should compute, with which weights,
    and whose they are.
    """

    folder: Path
    manifest: Manifest
    model_spec: ModelSpec
    weights: Weights
    reference: str


def open_subject(
    bundle: str | Path, against: str | Path | None = None, progress: Progress = lambda what, part: None
) -> Subject:
    """Open a bundle, whose files must have their hashes, or a folder or ONNX file that somebody else made.

    against: the model that it was exported from (preset, folder or hub id); by default the weights stored in the bundle
    itself. Raises BundleError for files that are not what the manifest says.
    """
    folder = Path(bundle)
    if folder.exists() and not (folder / FILE_NAME).is_file():
        if against is None:
            raise BundleError(
                f"{folder} is no bundle of edgeformer. To verify what somebody else exported, name the model that it "
                "was made from: --against MODEL."
            )
        source = open_source(against)
        folder, manifest = open_foreign(folder, source)
        return Subject(folder, manifest, model_spec_of(source.config), source.weights(), source.origin)
    manifest = open_bundle(folder, progress)
    model_spec = model_spec_of_bundle(folder, manifest)
    if against is None:
        stored = StoredWeights(folder, manifest, model_spec)
        return Subject(folder, manifest, model_spec, stored, "the bundle's own weights")
    if manifest.backend is not None:
        from edgeformer.export.adapters.transformers_backend import open_checkpoint

        found = find_model(against)
        return Subject(folder, manifest, model_spec, open_checkpoint(found, folder, manifest), found.origin)
    head = getattr(manifest.model, "head", None)
    pooled = (head.pooling, head.normalize) if isinstance(head, PoolingHead) else ()
    source = open_source(against, manifest.context_length, *pooled)
    if source.config != manifest.model:
        raise ConfigError(
            f"{against} is another model than the one that {folder} was exported from: their configs differ."
        )
    return Subject(folder, manifest, model_spec, source.weights(), source.origin)


def open_bundle(folder: Path, progress: Progress = lambda what, part: None) -> Manifest:
    """Read the manifest of a bundle. Raises BundleError unless every file has the size and hash that it gives."""
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    for index, (name, entry) in enumerate(manifest.files.items()):
        progress(f"hashing {name}", index / len(manifest.files))
        if sha256(folder / name) != entry.sha256:
            raise BundleError(f"{folder / name} was changed after the export: its SHA-256 is not the manifest's.")
    return manifest


def verify(
    bundle: str | Path,
    against: str | Path | None = None,
    *,
    mode: Mode = "full",
    progress: Progress = lambda what, part: None,
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


def verify_graph(
    folder: Path,
    manifest: Manifest,
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    *,
    mode: Mode = "quick",
    reference: str = "the checkpoint",
    progress: Progress = lambda what, part: None,
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
    mode: Mode,
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
    mode: Mode,
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
