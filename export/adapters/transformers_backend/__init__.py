"""Adapter for transformers' own modules, for architectures that have no family file.

The module's code stays as it is; its norms, rotations and attention are patched to our ops from outside. Nothing is
recognized by a model's name: what a module computes is found by running it, and the patched module must compute the
same as the original on the real weights before anything is exported. What cannot be patched is refused with the reason.

    transformers_shim   all patches of transformers, gated by its version
    hf_module           config.json → transformers' module without weights
    planning            module → PatchPlan; norms and rotary recognize its parts by running them
    patched_model       PatchPlan → PatchedModel; attention holds the context of a forward pass
    weights, proof      the checkpoint by name; both modules in float64
    adapter             model spec, weights and provenance, which is all that an export needs
"""

from edgeformer.export.adapters.transformers_backend.adapter import open_checkpoint, open_with_transformers, reopen

__all__ = ["open_checkpoint", "open_with_transformers", "reopen"]
