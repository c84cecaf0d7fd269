"""Config of a normalization."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class NormConfig:
    """Normalization of a vector x.

    rms_norm    x / sqrt(mean(x²) + eps) · weight (arXiv 1910.07467)
    layer_norm  (x − mean(x)) / sqrt(var(x) + eps) · weight + bias (arXiv 1607.06450)
    affine      x · weight + bias, which normalizes nothing (arXiv 2004.02984)
    batch_norm  (x − running_mean) / sqrt(running_var + eps) · weight + bias, per feature (arXiv 1502.03167)

    Attributes:
        offset: this number is added to the stored weight. It is 1 for checkpoints that store weight − 1 (Gemma).
    """

    kind: Literal["rms_norm", "layer_norm", "batch_norm", "affine"] = "rms_norm"
    eps: float
    weight: bool = True
    bias: bool = False
    offset: float = 0.0

    def __post_init__(self) -> None:
        check(self.eps >= 0, self, "eps", "zero or positive")
        if self.bias:
            check(self.kind != "rms_norm" and self.weight, self, "bias", "False for rms_norm and where weight is False")
        if not self.weight:
            check(self.offset == 0, self, "offset", "0 where there is no weight")

    def weights(self, size: int) -> int:
        """Return the number of parameters of a norm of vectors of `size` numbers."""
        return size * (self.weight + self.bias + 2 * (self.kind == "batch_norm"))
