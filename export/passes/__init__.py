"""Passes: rewrites of the canonical graph, one per file. Each preserves the results and returns a `PassReport`.

A pass is a function of the graph. Its docstring shows the pattern, what it requires, and the result.
"""

from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.passes.canonicalize import canonicalize
from edgeformer.export.passes.expected_changes import expected_changes
from edgeformer.export.passes.fold_rotary import fold_rotary
from edgeformer.export.passes.fuse_skip_norm import fuse_skip_norm
from edgeformer.export.passes.optional_logits import make_optional, optional_logits
from edgeformer.export.passes.pack_qkv import pack_qkv
from edgeformer.export.passes.quantize_weights import quantize_weights
from edgeformer.export.passes.replace_rare_ops import replace_rare_ops
from edgeformer.export.passes.simplify_layout import simplify_layout
from edgeformer.export.passes.storage.bf16_weights import bf16_weights
from edgeformer.export.passes.storage.compute_tables import compute_tables
from edgeformer.export.passes.storage.half_scales import half_scales
from edgeformer.export.passes.storage.packed_integers import pack_integers
from edgeformer.export.passes.transpose_weights import transpose_weights
from edgeformer.export.passes.widen_rotary import widen_rotary

__all__ = [
    "PassReport",
    "bf16_weights",
    "canonicalize",
    "compute_tables",
    "expected_changes",
    "fold_rotary",
    "fuse_skip_norm",
    "half_scales",
    "make_optional",
    "optional_logits",
    "pack_integers",
    "pack_qkv",
    "quantize_weights",
    "replace_rare_ops",
    "simplify_layout",
    "transpose_weights",
    "widen_rotary",
]
