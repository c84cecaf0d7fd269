"""Config of one transformer block: norms, self-attention, cross-attention, feed-forward."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.config.altup import AltUpConfig
from edgeformer.config.bottleneck import BottleneckConfig
from edgeformer.config.experts import ExpertsConfig
from edgeformer.config.feed_forward import FeedForwardConfig
from edgeformer.config.latent import LatentConfig
from edgeformer.config.layer_input import LayerInputConfig
from edgeformer.config.norm import NormConfig
from edgeformer.config.position import (
    AlibiConfig,
    DisentangledConfig,
    RelativePosition,
    RotaryConfig,
    ShawConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from edgeformer.config.recurrent import RecurrentConfig
from edgeformer.contract.tensors import KeyValueState, State
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class QKNormConfig:
    """Normalization of queries and keys before their dot products.

    Attributes:
        over: the vectors that are normalized. `head`: every head by itself, with one weight [D] for all heads;
            `each_head`: every head by itself, with a weight per head [H, D]; `projection`: all heads together [H·D].
        after_rotary: normalize after the rotary embedding instead of before.
    """

    norm: NormConfig
    over: Literal["head", "each_head", "projection"]
    after_rotary: bool = False

    def __post_init__(self) -> None:
        check(self.norm.kind != "batch_norm", self, "norm", "an rms_norm or a layer_norm")


@dataclass(frozen=True, kw_only=True)
class RandomBlocks:
    """BigBird's random attention: each block of `size` tokens sees `count` earlier blocks, which `seed` selects.

    Source: arXiv 2007.14062.
    """

    size: int
    count: int
    seed: int

    def __post_init__(self) -> None:
        check(self.size > 0, self, "size", "positive")
        check(self.count > 0, self, "count", "positive")


@dataclass(frozen=True, kw_only=True)
class QueryTemperature:
    """Scaling of the query at position p by 1 + scale · log(1 + floor((p + first) / floor_scale)).

    Source: `attn_temperature_tuning` of Llama 4, transformers' modeling_llama4.py.

    Attributes:
        first: the number of the first position: 1 in Llama 4, 0 in Ministral 3.
    """

    floor_scale: float
    scale: float
    first: int = 1

    def __post_init__(self) -> None:
        check(self.floor_scale > 0, self, "floor_scale", "positive")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Self-attention: MHA where num_kv_heads = num_heads, MQA where it is 1, else GQA (arXiv 2305.13245).

    Causal attention at position i sees the keys j ≤ i, limited by `window` or `chunk`. Bidirectional attention
    (causal False) sees all keys, limited to |i − j| < window.

    Attributes:
        scale: factor of the scores, often 1 / sqrt(head_dim).
        key_bias: whether qkv_bias applies to keys, too. A bias of keys cancels out in the softmax.
        value_norm: normalizes the values of every head by themselves, with one weight [D] for all heads.
        value_from_key: values are the projected keys, before these are normalized and rotated.
        qkv_clip: queries, keys and values are clamped to ± qkv_clip.
        softcap: scores s become softcap · tanh(s / softcap).
        sinks: a learned score per head takes part in the softmax without a value (arXiv 2309.17453).
        output_gate: what the heads return is multiplied by sigmoid of a linear layer of x, element by element
            (arXiv 2505.06708); its bias is that of queries.
        latent: queries, keys and values are projected by way of short vectors; head_dim is that of queries and keys.
        shares: index of the earlier layer whose keys and values this layer reads; it has no projections of its own for
            them, and no cache. None for layers with their own.
        window: keys with i − j < window are visible; None for all.
        chunk: only keys of the query's own chunk are visible, j // chunk = i // chunk.
        global_tokens: the first tokens, visible in addition to the window. In bidirectional attention they see all.
        global_projections: global tokens have query, key and value projections of their own (arXiv 2004.05150).
        random_blocks: blocks that are visible in addition to the window.
        input_scale, output_scale: factors of the input and of the output (Falcon-H1).
        clamped: True where all that a projection reads and returns is kept within learned bounds of it (`ClampedLinear`
            of `edgeformer.layers`); None where it is not.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool
    output_bias: bool
    rotary: RotaryConfig | None
    causal: bool = True
    key_bias: bool = True
    relative: RelativePosition | None = None
    qk_norm: QKNormConfig | None = None
    value_norm: NormConfig | None = None
    value_from_key: bool = False
    qkv_clip: float | None = None
    query_temperature: QueryTemperature | None = None
    softcap: float | None = None
    sinks: bool = False
    output_gate: bool = False
    latent: LatentConfig | None = None
    shares: int | None = None
    window: int | None = None
    chunk: int | None = None
    global_tokens: int = 0
    global_projections: bool = False
    random_blocks: RandomBlocks | None = None
    input_scale: float = 1.0
    output_scale: float = 1.0
    clamped: bool | None = None

    def __post_init__(self) -> None:
        check(self.num_heads > 0, self, "num_heads", "positive")
        check(self.head_dim > 0, self, "head_dim", "positive")
        divides = self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads == 0
        check(divides, self, "num_kv_heads", f"a divisor of num_heads ({self.num_heads})")
        if self.rotary is not None:
            check(self.rotary.rotary_dim <= self.head_dim, self, "rotary", f"no wider than head_dim ({self.head_dim})")
            check(self.relative is None, self, "relative", "None where rotary positions are used; choose one")
        if isinstance(self.relative, AlibiConfig):
            fits = len(self.relative.slopes) == self.num_heads
            check(fits, self, "relative", f"given {self.num_heads} slopes, one for each head")
        if self.latent is not None:
            self._check_latent(self.latent)
        for field in ("window", "chunk", "softcap", "qkv_clip"):
            check(getattr(self, field) is None or getattr(self, field) > 0, self, field, "positive, or None")
        check(self.global_tokens >= 0, self, "global_tokens", "zero or positive")
        sparse = self.global_tokens > 0 or self.random_blocks is not None
        check(
            not sparse or self.window is not None, self, "window", "set where global tokens or random blocks add to it"
        )
        check(self.chunk is None or self.window is None, self, "chunk", "None where there is a window; choose one")
        if self.clamped:
            plain = self.latent is None and not self.output_gate and not self.global_projections
            check(plain, self, "clamped", "None beside other projections than those of query, key, value and output")
        if self.shares is not None or self.latent is not None:
            plain = self.value_norm is None and not self.value_from_key
            check(
                plain, self, "value_norm", "None, and value_from_key False, in a layer without a projection of values"
            )
        if self.shares is not None:
            own = isinstance(self.relative, ShawConfig | TransformerXLConfig)
            check(
                self.causal and not own, self, "shares", "None for Shaw's and Transformer-XL's relations, and encoders"
            )
        if isinstance(self.relative, T5BiasConfig):
            fits = self.relative.bidirectional != self.causal
            check(fits, self, "relative", "bidirectional where the attention is not causal, and only there")
        if isinstance(self.relative, DisentangledConfig):
            fits = not self.causal and self.num_kv_heads == self.num_heads
            check(
                fits,
                self,
                "relative",
                "disentangled only where every head has its own key and none is causal",
            )
        if not self.causal:
            one_way = isinstance(self.relative, ShawConfig | TransformerXLConfig) or self.random_blocks is not None
            check(not one_way, self, "causal", "True for Shaw's and Transformer-XL's relations and for random blocks")
        if self.global_projections:
            fits = self.global_tokens > 0 and not self.causal
            check(fits, self, "global_projections", "False without global tokens, and where the attention is causal")

    def _check_latent(self, latent: LatentConfig) -> None:
        heads, head_dim = self.num_heads, self.head_dim
        check(self.num_kv_heads == heads, self, "num_kv_heads", f"num_heads ({heads}) in latent attention")
        check(latent.shared_dim < head_dim, self, "latent", f"given a shared_dim below head_dim ({head_dim})")
        check(latent.value_dim <= head_dim, self, "latent", f"given a value_dim of at most head_dim ({head_dim})")
        plain = not self.qkv_bias and self.qkv_clip is None and self.shares is None and not self.global_projections
        check(
            plain,
            self,
            "latent",
            "None where projections have biases or clamps, are shared, or are those of global tokens",
        )

    @property
    def output_size(self) -> int:
        """Return the number of elements that the output projection reads."""
        return self.num_heads * (self.head_dim if self.latent is None else self.latent.value_dim)

    @property
    def sliding(self) -> bool:
        """Whether only the last `window` keys are ever read, so that a cache may drop older ones."""
        if not self.causal:
            return False
        return self.window is not None and not self.global_tokens and self.random_blocks is None


@dataclass(frozen=True, kw_only=True)
class CrossAttentionConfig:
    """Attention of a decoder to the last states of an encoder: every head sees all source tokens but padding.

    Attributes:
        num_kv_heads: heads of keys and values, which are repeated once they are projected; None for num_heads.
        softcap: scores s become softcap · tanh(s / softcap).
    """

    num_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool
    output_bias: bool
    key_bias: bool = True
    num_kv_heads: int | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        check(self.num_heads > 0, self, "num_heads", "positive")
        check(self.head_dim > 0, self, "head_dim", "positive")
        divides = self.kv_heads > 0 and self.num_heads % self.kv_heads == 0
        check(divides, self, "num_kv_heads", f"a divisor of num_heads ({self.num_heads}), or None")
        check(self.softcap is None or self.softcap > 0, self, "softcap", "positive, or None")

    @property
    def kv_heads(self) -> int:
        """Return the number of heads that keys and values are projected to."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One block: self-attention, a recurrent layer or both; cross-attention if there is any; feed-forward.

    Each of them is a branch f that is added to the residual stream x. Where a block has self-attention and a recurrent
    layer, both read the same normed x, and their sum is one branch.

    Attributes:
        attention, recurrent: None where the block has none.
        feed_forward: None where the block ends with its first branch (Mamba-2).
        attention_norm: False where self-attention has no norm (ModernBERT's first block).
        norm_placement: `pre` is x + c·f(norm(x)), `post` is norm(x + c·f(x)), `output` is x + c·norm(f(x)), with
            c = residual_scale; `sandwich` has the norms of both pre and output.
        residual: `serial` is attention, then feed-forward; `parallel` computes both from the same x, each with its
            own norm; `parallel_one_norm` computes both from one norm of x (GPT-J).
        residual_scale: c above.
        laurel_rank: a layer of this rank reads what attention reads, and is added with it; their sum with x is divided
            by √2 (LAuReL, arXiv 2411.07501).
        layer_input: how the block uses its part of the decoder's `per_layer_embedding`, behind the branches.
        output_scale: the output is multiplied by a learned number.
        layer_scale: True where each branch is multiplied by a learned factor of every feature (LayerScale, arXiv
            2103.17239); None where none is.
        altup: the block is one step of these residual streams.
        bottleneck: the block is thinner than the states; its norms are behind the sums (`post`).
    """

    attention: AttentionConfig | None
    feed_forward: FeedForwardConfig | ExpertsConfig | None
    norm: NormConfig
    recurrent: RecurrentConfig | None = None
    cross_attention: CrossAttentionConfig | None = None
    attention_norm: bool = True
    norm_placement: Literal["pre", "post", "output", "sandwich"] = "pre"
    residual: Literal["serial", "parallel", "parallel_one_norm"] = "serial"
    residual_scale: float = 1.0
    laurel_rank: int | None = None
    layer_input: LayerInputConfig | None = None
    output_scale: bool = False
    layer_scale: bool | None = None
    altup: AltUpConfig | None = None
    bottleneck: BottleneckConfig | None = None

    def __post_init__(self) -> None:
        mixes = self.attention is not None or self.recurrent is not None
        check(mixes, self, "attention", "set where the block has no recurrent layer")
        if self.feed_forward is None:
            check(self.residual == "serial", self, "residual", "'serial' where there is no feed_forward")
        if self.residual != "serial":
            check(self.norm_placement != "post", self, "norm_placement", "pre, output or sandwich in a parallel block")
            check(self.cross_attention is None, self, "residual", "serial where there is cross-attention")
        if self.residual == "parallel_one_norm":
            check(self.norm_placement == "pre", self, "norm_placement", "'pre' where one norm serves both branches")
        if self.layer_scale:
            plain = self.residual == "serial" and self.norm_placement != "post" and self.cross_attention is None
            check(plain and self.altup is None, self, "layer_scale", "None but in serial blocks with norms before")
        if self.laurel_rank is not None:
            serial = self.residual == "serial" and self.norm_placement != "post"
            check(serial and self.laurel_rank > 0, self, "laurel_rank", "positive in a serial block, else None")
        if self.altup is not None:
            alone = self.layer_input is not None and not self.output_scale and self.cross_attention is None
            check(alone, self, "altup", "None without layer_input, and with output_scale or cross-attention")
        if self.bottleneck is not None:
            plain = self.norm_placement == "post" and isinstance(self.feed_forward, FeedForwardConfig)
            plain = plain and self.attention is not None and self.recurrent is None and self.cross_attention is None
            check(plain and self.residual_scale == 1, self, "bottleneck", "None but in a plain block with post norms")
        if self.branch_norms:
            serial = self.residual == "serial" and self.norm_placement in ("pre", "sandwich")
            check(serial, self, "feed_forward", "without a branch_norm in a parallel or post-norm block")

    @property
    def branch_norms(self) -> bool:
        """Whether the feed-forward network normalizes its own input; the block has no norm in front of it then."""
        return isinstance(self.feed_forward, ExpertsConfig) and self.feed_forward.branch_norm is not None

    @property
    def states(self) -> tuple[State, ...]:
        """Return what the block keeps between runs."""
        attention, recurrent = self.attention, self.recurrent
        kept: tuple[State, ...] = ()
        if attention is not None and attention.shares is None:
            kept = (KeyValueState(num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim),)
        return kept if recurrent is None else (*kept, *recurrent.states)
