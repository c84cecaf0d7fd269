"""Smoothed bundles: what was done to their norms is read off them, and shown to leave the model what it is."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from edgeformer.errors import BundleError
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.calibrate.forward_hooks import let_read
from edgeformer.export.calibrate.text import sizes_of
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.quantize.smoothed_weights import Smoothed
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest import Manifest
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import SmoothedNorm

TOKENS = 32
SAME = 1e-10
"""Of the largest number. Factors are exact, so only the order in which float64 adds up could make a difference."""


def smoothed_as_stored(
    folder: Path, manifest: Manifest, model_spec: ModelSpec, weights: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """The weights, smoothed as the norms of a bundle are, if they are.

    weights: of the checkpoint; those of the bundle itself are smoothed already. Raises BundleError for norms that no
    smoothing makes of the checkpoint's.
    """
    if manifest.smoothing is None or isinstance(weights, StoredWeights):
        return weights
    stored, norms = StoredWeights(folder, manifest, model_spec), manifest.smoothing.norms
    unknown = {name for norm in norms for name in (*norm.parameters, *norm.readers)} - stored.keys()
    if unknown:
        raise BundleError(f"the manifest of {folder} says that {min(unknown)} was smoothed, which the model lacks.")
    return Smoothed(weights, {norm: _factors(norm, weights, stored) for norm in norms})


def _factors(norm: SmoothedNorm, weights: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> Tensor:
    """What the channels of a norm were divided by, float32 [K]: powers of two, and one where there is nothing."""
    original, divided = (each[norm.parameters[0]].float() for each in (weights, stored))
    factors = torch.where((original == 0) & (divided == 0), 1, original / divided)
    # A power of two has a mantissa of one half.
    wrong = torch.frexp(factors).mantissa != 0.5
    for name in norm.parameters:
        wrong |= weights[name].float() / factors != stored[name].float()
    if wrong.any():
        channel = int(wrong.nonzero()[0])
        raise BundleError(
            f"{norm.parameters[0]} was smoothed, so that each channel may differ from the checkpoint's by a power of "
            f"two alone, and channel {channel} is {divided[channel]:.6g} where the checkpoint has "
            f"{original[channel]:.6g} (or its bias is another). The bundle is damaged or of another model: export it "
            "again."
        )
    return factors


def judge_smoothing(model_spec: ModelSpec, weights: Mapping[str, Tensor], smoothed: Mapping[str, Tensor]) -> Check:
    """Whether the model with smoothed weights says what it says with its own, in float64."""
    ids = torch.from_numpy(random_tokens(min(TOKENS, sizes_of(model_spec)[1]), sizes_of(model_spec)[0]))[None]
    said = []
    for each in (weights, smoothed):
        reference = Reference(model_spec, each)
        with reference.loaded():
            said.append(let_read(reference, model_spec, ids, torch.ones_like(ids)))
    differences = [float((a - b).abs().max() / a.abs().max()) for a, b in zip(*said, strict=True)]
    return Check(
        name="smoothing: same model",
        what="largest difference that smoothing makes to what float64 PyTorch says, over the largest number of it",
        value=max(differences), limit=SAME, eager=None,
        reason="channels are divided by powers of two, and all that reads them multiplied, which rounds nothing",
    )  # fmt: skip
