"""Check smoothed bundles: their norms give the factors, which must leave the outputs of the model unchanged."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from edgeformer.errors import BundleError
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.calibrate.smoothing import Smoothed
from edgeformer.export.calibrate.text import sizes_of
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import SmoothedNorm
from edgeformer.models.model_spec import ModelSpec

TOKENS = 32
"""Random tokens that both models run."""
SAME = 1e-10
"""Largest difference of an output, relative to the largest output. The factors are powers of two, which round nothing,
so only float64's summation order (unit roundoff 1.1e-16) could make a difference."""


def smoothed_as_stored(
    folder: Path, manifest: Manifest, model_spec: ModelSpec, weights: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Return the weights of the checkpoint, smoothed as those of the bundle are, if they are.

    The bundle's own weights are returned as they are, since they are smoothed already. Raises BundleError for norms
    that smoothing cannot make of the checkpoint's.
    """
    if manifest.smoothing is None or isinstance(weights, StoredWeights):
        return weights
    stored, norms = StoredWeights(folder, manifest, model_spec), manifest.smoothing.norms
    unknown = {name for norm in norms for name in (*norm.parameters, *norm.readers)} - stored.keys()
    if unknown:
        raise BundleError(f"the manifest of {folder} says that {min(unknown)} was smoothed, which the model lacks.")
    return Smoothed(weights, {norm: _factors(norm, weights, stored) for norm in norms})


def _factors(norm: SmoothedNorm, weights: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> Tensor:
    """Return the factors that the channels of a norm were divided by, float32 [K]: powers of two, and 1 for a zero."""
    original, divided = (each[norm.parameters[0]].float() for each in (weights, stored))
    factors = torch.where((original == 0) & (divided == 0), 1, original / divided)
    # frexp gives a power of two the mantissa 1/2.
    wrong = torch.frexp(factors).mantissa != 0.5
    for name in norm.parameters:
        wrong |= weights[name].float() / factors != stored[name].float()
    if wrong.any():
        channel = int(wrong.nonzero()[0])
        raise BundleError(
            f"{norm.parameters[0]} was smoothed, so each channel may differ from the checkpoint's only by a power of "
            f"two, and channel {channel} is {divided[channel]:.6g} where the checkpoint has "
            f"{original[channel]:.6g} (or its bias differs). The bundle is damaged or belongs to another model: "
            "export it again."
        )
    return factors


def judge_smoothing(model_spec: ModelSpec, weights: Mapping[str, Tensor], smoothed: Mapping[str, Tensor]) -> Check:
    """Check that the model computes the same with smoothed weights as with its own, in float64."""
    ids = torch.from_numpy(random_tokens(min(TOKENS, sizes_of(model_spec)[1]), sizes_of(model_spec)[0]))[None]
    outputs = []
    for each in (weights, smoothed):
        reference = Reference(model_spec, each)
        with reference.loaded():
            caches = reference.empty_caches(len(ids))
            outputs.append(model_spec.read(reference.module, ids, torch.ones_like(ids), caches))
    differences = [float((a - b).abs().max() / a.abs().max()) for a, b in zip(*outputs, strict=True)]
    return Check(
        name="smoothing: same model",
        what="largest change of an output of float64 PyTorch by smoothing, relative to the largest output",
        value=max(differences), limit=SAME, eager=None,
        reason="channels are divided by powers of two and their readers multiplied by them, which rounds nothing",
    )  # fmt: skip
