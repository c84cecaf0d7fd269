"""How far a graph may be from float64: one row a precision, each with its reason.

The figure is max |Δlogit| / max |logit| over all positions of a check.
"""

from edgeformer.manifest import Precision

RELATIVE_ERROR: dict[Precision, float] = {
    # Eager PyTorch in float32 is at 5e-7 to 3e-6 on the same models; a wrong epsilon or position is beyond 1e-4.
    "fp32": 1e-5,
    # Half precision resolves 5e-4; eager PyTorch on float16 is at 5e-4 to 3e-3 on the same models.
    "fp16": 5e-3,
}
