"""Layers that call `edgeformer.ops`. Each is built from its config, the hidden size and a dtype."""

from edgeformer.layers.attention.attention import Attention, Cache, Context, CrossAttention, LayerCache
from edgeformer.layers.block import Block
from edgeformer.layers.feed_forward import FeedForward
from edgeformer.layers.norm import make_norm
from edgeformer.layers.position import RotaryTable, rotary_table

__all__ = [
    "Attention",
    "Block",
    "Cache",
    "Context",
    "CrossAttention",
    "FeedForward",
    "LayerCache",
    "RotaryTable",
    "make_norm",
    "rotary_table",
]
