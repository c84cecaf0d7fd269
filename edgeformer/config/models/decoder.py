"""The config of decoders."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from edgeformer.config.block import BlockConfig
from edgeformer.config.layer_input import PerLayerEmbedding
from edgeformer.config.models.mtp import MTPConfig
from edgeformer.config.models.stack import Form, StackConfig, Task
from edgeformer.contract.tensors import CacheGeometry, KeyValueState, State
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(StackConfig):
    """A causal language model, or a decoder with cross-attention to an encoder in every block.

    Logits are softcap(logit_scale · head(x)), with softcap(l) = logit_softcap · tanh(l / logit_softcap).

    Attributes:
        tied_head: the output projection is the embedding table itself, stored once.
        per_layer_embedding: makes an input of its own for every block; see `BlockConfig.layer_input`.
        mtp: the layer that drafts tokens; None where the model is used without one.
    """

    task: ClassVar[Task] = "causal-lm"
    form: ClassVar[Form] = "decoder"
    reads: ClassVar[str] = "prompt"
    steps: ClassVar[bool] = True
    kind: Literal["decoder"] = "decoder"
    tied_head: bool
    head_bias: bool = False
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    per_layer_embedding: PerLayerEmbedding | None = None
    mtp: MTPConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.vocab_size > 0, self, "vocab_size", "positive")
        check(self.logit_softcap is None or self.logit_softcap > 0, self, "logit_softcap", "positive, or None")
        check(all(attention.causal for attention in self.attentions), self, "blocks", "causal in a decoder")
        for index, block in enumerate(self.blocks):
            source = None if block.attention is None else block.attention.shares
            if source is not None:
                fits = 0 <= source < index and self.blocks[source].states[:1] == _key_value(block)
                what = "sharing the keys and values of an earlier block that has its own, of the same shape"
                check(fits, self, "blocks", what)
        sizes = {block.layer_input and block.layer_input.size for block in self.blocks}
        wanted = self.per_layer_embedding and self.per_layer_embedding.size
        check(sizes == {wanted}, self, "per_layer_embedding", "of the size of every block's layer_input, else None")
        check(
            len({block.altup for block in self.blocks}) == 1, self, "blocks", "all with the same altup, or all without"
        )
        if self.mtp is not None:
            attention = self.mtp.block.attention
            known = attention is not None and attention.rotary in {each.rotary for each in self.attentions}
            check(known, self, "mtp", "a layer with the rotary embedding of another block")
        across = {block.cross_attention and _cross_geometry(block) for block in self.blocks}
        check(len(across) == 1, self, "blocks", "all with cross-attention of one geometry, or all without")

    @property
    def reads_request_length(self) -> bool:
        """Return whether it is a model by itself."""
        return self.task == "causal-lm" and self.cross_geometry is None

    @property
    def mtp_stack(self) -> Self:
        """Return the stack of the layer that drafts tokens."""
        assert self.mtp is not None
        return replace(self, blocks=(self.mtp.block,), mtp=None)

    @property
    def cache_geometry(self) -> CacheGeometry:
        """Return what each block keeps between runs."""
        return CacheGeometry(layers=tuple(block.states for block in self.blocks))

    @property
    def cross_geometry(self) -> CacheGeometry | None:
        """Return the shape of the keys and values of the encoder's states; None without cross-attention."""
        if self.blocks[0].cross_attention is None:
            return None
        heads, head_dim = _cross_geometry(self.blocks[0])
        return CacheGeometry.of_attention(len(self.blocks), heads, head_dim)

    @property
    def cache_windows(self) -> tuple[int | None, ...]:
        """Return, per layer, the number of past tokens that a cache need keep; None for the whole context.

        A layer whose keys and values later layers read keeps all, because no kernel reads an evicting cache of another
        layer. None, too, for layers without keys and values of their own.
        """
        read = {attention.shares for attention in self.attentions}
        keep = [
            block.attention and block.attention.shares is None and index not in read
            for index, block in enumerate(self.blocks)
        ]
        return tuple(window if alone else None for window, alone in zip(self.windows, keep, strict=True))


def _key_value(block: BlockConfig) -> tuple[State, ...]:
    """Return the keys and values that the self-attention of a block reads, its own or an earlier block's."""
    attention = block.attention
    if attention is None:
        return ()
    return (KeyValueState(num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim),)


def _cross_geometry(block: BlockConfig) -> tuple[int, int]:
    assert block.cross_attention is not None
    return block.cross_attention.num_heads, block.cross_attention.head_dim
