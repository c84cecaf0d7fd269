"""Open a model of transformers as a model spec, weights and provenance: all that an export or a verification needs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.checkpoints.found_model import FoundModel
from edgeformer.client_files.transformers_js import without_transformers_js_config
from edgeformer.errors import BundleError, ConfigError
from edgeformer.export.importers.checkpoint_warnings import checkpoint_warnings
from edgeformer.export.importers.opened_model import Comparison, OpenedModel, Origin
from edgeformer.export.importers.tokenizer_files import TokenizerFiles
from edgeformer.export.importers.transformers_proof import prove
from edgeformer.export.progress import Progress
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provenance
from edgeformer.models.model_spec import ModelSpec
from edgeformer.transformers_backend.hf_module import INSTALLED, build, context_length, read_config
from edgeformer.transformers_backend.patch_plan import PatchPlan
from edgeformer.transformers_backend.patched_model import PatchedModel, build_patched
from edgeformer.transformers_backend.planning import make_plan
from edgeformer.transformers_backend.tensors.weights import checkpoint_tensors, patched_tensors

LIMIT = "max_position_embeddings"
"""The field of config.json that tells clients how many positions a model has."""

KEPT = "edgeformer"
"""The field of a bundle's config.json that keeps the model's own values of fields that an export changed."""


@dataclass(frozen=True)
class PatchedCheckpoint:
    """A model that can be patched, still without weights. config: transformers' config object."""

    config: Any
    plan: PatchPlan
    model_spec: ModelSpec

    def open_weights(self, folder: Path, allow_pickle: bool = False) -> tuple[Mapping[str, Tensor], Comparison]:
        """Open the checkpoint in a folder by the names of the patched module, and prove that module with it.

        Raises WeightsError for tensors that do not fit, and ExportError where the patched module computes something
        else than transformers' own.
        """
        weights = checkpoint_tensors(folder, build(self.config, torch.float32, "eager"), allow_pickle)
        difference = prove(self.config, self.plan, weights, folder, allow_pickle)
        return patched_tensors(weights, self.plan), Comparison(library=INSTALLED, difference=difference)


def plan_patches(hf_config: Mapping[str, Any], asked_context_length: int | None = None) -> PatchedCheckpoint:
    """Plan how to patch the causal LM that a config.json describes; no weights are read.

    Raises ConfigError and ExportError where the model cannot be patched, saying why.
    """
    config = read_config(hf_config)
    plan = make_plan(config, context_length(config, asked_context_length))
    if asked_context_length is not None and asked_context_length != plan.context_length:
        raise ConfigError(
            f"--context-length {asked_context_length} is more than the {plan.context_length} tokens that the model has "
            "positions for."
        )
    model_spec = ModelSpec(
        build=lambda dtype: _without_values(build_patched(config, plan, dtype)),
        constants=lambda: dict(build_patched(config, plan, torch.float64).named_buffers()),
        cache=plan.geometry,
        vocab_size=plan.vocab_size,
        context_length=plan.context_length,
        streams=True,
    )
    return PatchedCheckpoint(config, plan, model_spec)


def open_with_transformers(found: FoundModel, context_length: int | None, progress: Progress) -> OpenedModel:
    """Open the module that transformers has for a checkpoint, patched to our ops and proved with the real weights.

    Raises ConfigError and ExportError where the module cannot be patched, and WeightsError for tensors that do not fit.
    """
    if found.random_weights is not None:
        raise ConfigError(
            f"{found.origin} has no checkpoint, and --backend transformers exports one. Export it without --backend."
        )
    if found.quantization is not None:
        raise ConfigError(
            "its weights are quantized (quantization_config in config.json); --backend transformers reads plain "
            "weights. Export it without --backend, or give the model that it was quantized from."
        )
    progress("planning", 0)
    patched = plan_patches(found.hf_config, context_length)
    found.fetch_weights()
    progress("comparing with transformers", 0)
    weights, comparison = patched.open_weights(found.folder, found.allow_pickle)
    tokens, tokenizer = found.special_tokens(), TokenizerFiles(found.folder)
    origin = Origin(
        name=found.name,
        provenance=Provenance(source=found.origin, backend="transformers", pickled_weights=found.pickled_weights()),
        tokens=tokens,
        folder=tokenizer.folder,
        tokenizer=tokenizer,
        hf_config=_limited(found.hf_config, patched.model_spec.context_length),
    )
    notes = tuple(patched.plan.notes)
    return OpenedModel(
        model_spec=patched.model_spec, weights=weights, origin=origin, notes=notes, comparison=comparison,
        warnings=checkpoint_warnings(
            found, tokenizer, "causal-lm", tokens, patched.model_spec.vocab_size, compared=True
        ),
    )  # fmt: skip


def reopen(folder: Path, manifest: Manifest) -> PatchedCheckpoint:
    """Plan the patches of a bundle's model again, from the bundle's config.json.

    Raises BundleError where the file is missing, or where the installed transformers makes another module of it.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise BundleError(f"{folder} was exported via transformers, and its config.json is missing. Export it again.")
    stored = without_transformers_js_config(json.loads(path.read_text(encoding="utf-8")))
    patched = plan_patches(_unlimited(stored), manifest.context_length)
    if patched.model_spec.cache != manifest.cache:
        raise BundleError(
            f"{folder} was exported via transformers {manifest.versions.get('transformers')}, and the one installed "
            "makes another module of its config.json. Install that version, or export the model again."
        )
    return patched


def open_checkpoint(found: FoundModel, folder: Path, manifest: Manifest) -> tuple[ModelSpec, Mapping[str, Tensor]]:
    """Open the model spec and the weights that a bundle was exported from.

    Raises ConfigError where the checkpoint is another model.
    """
    patched = reopen(folder, manifest)
    if read_config(without_transformers_js_config(found.hf_config)).to_dict() != patched.config.to_dict():
        raise ConfigError(
            f"{found.origin} is another model than the one that {folder} was exported from: their configs differ."
        )
    found.fetch_weights()
    return patched.model_spec, patched.open_weights(found.folder, found.allow_pickle)[0]


def _limited(hf_config: dict[str, Any], context_length: int) -> dict[str, Any]:
    """Return a config.json that tells clients of no more positions than the graph has."""
    if hf_config.get(LIMIT) == context_length:
        return hf_config
    return hf_config | {LIMIT: context_length, KEPT: {LIMIT: hf_config.get(LIMIT)}}


def _unlimited(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json that `_limited` was given."""
    kept = hf_config.get(KEPT, {})
    restored = {name: value for name, value in (hf_config | kept).items() if name != KEPT}
    return {name: value for name, value in restored.items() if value is not None or name not in kept}


def _without_values(module: PatchedModel) -> PatchedModel:
    """Move parameters and buffers to the default device, without values: fake tensors where tensors are faked."""
    empty: dict[Tensor, Tensor] = {}
    for owner in (module.causal_lm, *module.modules()):
        for tensors in (owner._parameters, owner._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = empty.setdefault(tensor, _empty(tensor))
    return module


def _empty(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty
