"""Config of AltUp: several residual streams, of which each block computes one."""

from dataclasses import dataclass

from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class AltUpConfig:
    """Alternating updates: a block predicts all residual streams, computes the active one, and corrects the others.

    With streams s_j, the block b, its input p_a and coefficients P and c that a router computes from one stream:
        p_j = s_j + Σ_i P_ji(s_a) · s_i
        s_j ← p_j + (1 + c_j(b(p_a))) · (b(p_a) − p_a)
    The block's `layer_input` reads the corrected active stream and is added to all streams but the first.
    Source: arXiv 2301.13310; transformers' modeling_gemma3n.py.

    Attributes:
        streams: number of residual streams.
        active: index a of the stream that blocks compute.
        output_scale: the layer input reads the active stream times a learned vector [E].
    """

    streams: int
    active: int = 0
    output_scale: bool = True

    def __post_init__(self) -> None:
        check(self.streams > 1, self, "streams", "at least 2")
        check(0 <= self.active < self.streams, self, "active", f"from 0 to {self.streams - 1}")
