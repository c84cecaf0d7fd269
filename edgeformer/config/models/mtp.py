"""The config of multi-token prediction: a layer behind a decoder, which drafts the token after the next one."""

from dataclasses import dataclass

from edgeformer.config.block import BlockConfig
from edgeformer.config.norm import NormConfig
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class MTPConfig:
    """A layer for multi-token prediction, with the decoder's embedding and head.

        x_i = W [norm_e(embedding(t_{i+1})); norm_h(h_i)]      h_i: the decoder's state of token i behind its final norm
        g_i = norm(block(x_0 … x_i))
        logits of t_{i+2} = head(g_i)

    A further token is drafted with g_i in the place of h_{i+1}. Source: DeepSeek-V3 (arXiv 2412.19437, section 2.2);
    the states that it reads and the norms around them are those of vllm/model_executor/models/qwen3_5_mtp.py and
    mimo_mtp.py. `edgeformer.families._mtp` names the sources of the other families.

    Attributes:
        block: the block, which attends to the earlier x.
        norm: of the three norms.
        normalized: the states h and g are behind a norm. Where they are not, h_i is what the final norm reads, and
            g_i = block(x_0 … x_i), which is normalized for the head alone.
        hidden_first: the state stands before the embedding in what W multiplies.
    """

    block: BlockConfig
    norm: NormConfig
    hidden_first: bool = False
    normalized: bool = True

    def __post_init__(self) -> None:
        attention = self.block.attention
        plain = attention is not None and self.block.recurrent is None and attention.shares is None
        check(plain, self, "block", "a block of attention, with keys and values of its own")
        plain = self.block.altup is None and self.block.layer_input is None
        check(plain, self, "block", "a block that reads one state a token, and nothing else")

    @property
    def cache_geometry(self) -> CacheGeometry:
        """Return what the block keeps between runs."""
        return CacheGeometry(layers=(self.block.states,))
