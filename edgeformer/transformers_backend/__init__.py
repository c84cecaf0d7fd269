"""Modules of transformers, patched to our ops from outside, for architectures that have no family file.

The module's code stays as it is; its norms, rotations, attention and experts are patched. Nothing is recognized by a
model's name: what a module computes is found by running it. What cannot be patched is refused with the reason.

    transformers_shim   all patches of transformers, gated by its version
    hf_module           config.json → transformers' module without weights
    planning            module → PatchPlan; norms, rotary and experts recognize its parts by running them
    patched_model       PatchPlan → PatchedModel; attention holds the context of a forward pass
    weights             the checkpoint by the names of the patched module; stored_tensors what each is made of

`edgeformer.export.importers.from_transformers` makes a model spec of it, once `transformers_proof` has shown that the
patched module computes the same as the original on the real weights.
"""
