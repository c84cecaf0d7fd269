"""Self-attention, and cross-attention to the states of an encoder."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.config import (
    AttentionConfig,
    Bidirectional,
    CrossAttentionConfig,
    DisentangledConfig,
    QKNormConfig,
    ShawConfig,
    TransformerXLConfig,
)
from edgeformer.layers.attention.latent import LatentProjections
from edgeformer.layers.attention.patch_windows import PatchBlocks
from edgeformer.layers.attention.relation import Relations
from edgeformer.layers.linear import make_linear
from edgeformer.layers.norm import make_norm
from edgeformer.layers.position import RotaryTable, TokenAngles
from edgeformer.ops.activation import scaled

Cache = tuple[Tensor, Tensor]
"""Key and value of one layer, each [B, K, tokens, D]."""
LayerCache = tuple[Tensor, ...]
"""Tensors that one layer keeps between runs, in the order of `BlockConfig.states`; () for nothing."""


@dataclass(frozen=True)
class Context:
    """Inputs of attention beside x: the positions of tokens, and the tables that blocks share.

    Attributes:
        attention_mask: int64 [B, T].
        positions: positions of the queries, int64 [B or 1, S].
        key_positions: positions of the keys, int64 [B or 1, T].
        token_mask: bool [B, S], which new tokens are tokens and not padding; None where no layer is recurrent.
        rotary: the cosines and sines of the rotary embedding, which are those of positions or those of tokens.
        patch_blocks: those of patches that attend within windows; None where they attend to all.
        bias: added to scores, [B or 1, H or 1, S, T].
        distances: sinusoids of the distances 0, 1, 2… in tokens, [C, E].
        relations: vectors of the distances, for disentangled attention.
        temperature: a factor per query, [B, S, 1].
        source_mask: int64 [B, source] with 0 for padding of the encoder's input.
        layer_input: the block's own part of the per-layer embedding, [B, S, size].
        bidirectional: how the new tokens of a causal model attend to each other; None for causally.
    """

    attention_mask: Tensor
    positions: Tensor
    key_positions: Tensor
    token_mask: Tensor | None = None
    rotary: RotaryTable | TokenAngles | None = None
    patch_blocks: PatchBlocks | None = None
    bias: Tensor | None = None
    distances: Tensor | None = None
    relations: Relations | None = None
    temperature: Tensor | None = None
    source_mask: Tensor | None = None
    layer_input: Tensor | None = None
    bidirectional: Bidirectional | None = None


class Attention(nn.Module):
    """Self-attention: projections around `ops.group_query_attention`; see `AttentionConfig`.

    A layer that shares the keys and values of an earlier one has only a query, around `ops.shared_attention`.
    """

    def __init__(self, config: AttentionConfig, hidden_size: int, dtype: torch.dtype, value_size: int | None = None):
        """value_size: width of what values are projected from, where it is not x; see `forward`."""
        super().__init__()
        self.config = config
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        linear = make_linear(config.clamped, dtype)
        if config.latent is not None:
            self.latent = LatentProjections(config, config.latent, hidden_size, dtype)
        else:
            self.query = linear(hidden_size, heads * head_dim, bias=config.qkv_bias)
        if config.latent is None and config.shares is None:
            self.key = linear(hidden_size, kv_heads * head_dim, bias=config.qkv_bias and config.key_bias)
            if not config.value_from_key:
                self.value = linear(value_size or hidden_size, kv_heads * head_dim, bias=config.qkv_bias)
        if config.value_norm is not None:
            self.value_norm = make_norm(config.value_norm, head_dim, dtype=dtype)
        self.output = linear(config.output_size, hidden_size, bias=config.output_bias)
        if config.qk_norm is not None:
            self.query_norm = _head_norm(config.qk_norm, heads, head_dim, dtype)
            if config.shares is None:
                self.key_norm = _head_norm(config.qk_norm, kv_heads, head_dim, dtype)
        if config.output_gate:
            self.gate = nn.Linear(hidden_size, config.output_size, bias=config.qkv_bias, dtype=dtype)
        if config.sinks:
            self.sinks = nn.Parameter(torch.zeros(heads, dtype=dtype))
        if isinstance(config.relative, ShawConfig):
            relations = 2 * config.relative.max_distance + 1
            self.key_relations = nn.Parameter(torch.zeros(relations, head_dim, dtype=dtype))
            if config.relative.values:
                self.value_relations = nn.Parameter(torch.zeros(relations, head_dim, dtype=dtype))
        if isinstance(config.relative, TransformerXLConfig):
            self.relative_key = nn.Linear(hidden_size, heads * head_dim, bias=False, dtype=dtype)
            self.content_bias = nn.Parameter(torch.zeros(heads * head_dim, dtype=dtype))
            self.position_bias = nn.Parameter(torch.zeros(heads * head_dim, dtype=dtype))
        if isinstance(config.relative, DisentangledConfig) and not config.relative.shared_projections:
            width, bias = heads * head_dim, config.relative.key_bias
            if config.relative.content_to_position:
                self.relation_key = nn.Linear(hidden_size, width, bias=bias, dtype=dtype)
            if config.relative.position_to_content:
                self.relation_query = nn.Linear(hidden_size, width, dtype=dtype)
        if config.global_projections:
            self.global_query = nn.Linear(hidden_size, heads * head_dim, bias=config.qkv_bias, dtype=dtype)
            self.global_key = nn.Linear(hidden_size, heads * head_dim, bias=config.qkv_bias, dtype=dtype)
            self.global_value = nn.Linear(hidden_size, heads * head_dim, bias=config.qkv_bias, dtype=dtype)

    def forward(
        self, x: Tensor, past: LayerCache, context: Context, values: Tensor | None = None
    ) -> tuple[Tensor, LayerCache]:
        """Return the output [B, S, E] and the present key and value, each [B, K, T, D], or () where it shares them.

        x is [B, S, E]; past is key and value, each [B, K, P, D], or () where nothing precedes x. Of a layer that shares
        them they are the present key and value of the earlier layer. values: [B, S, value_size], what values are
        projected from; None for x.
        """
        config = self.config
        x = scaled(x, config.input_scale)
        (query, key, value), bias = self._project(x, values), context.bias
        query = self._placed(query, "query_norm", config.num_heads, context)
        if context.temperature is not None:
            query = query * context.temperature
        if key is None or value is None:
            output = ops.shared_attention(
                query, *past, context.attention_mask, config.num_heads, config.num_kv_heads, config.scale,
                attention_bias=bias,
                sinks=getattr(self, "sinks", None),
                window=(config.window or 0) if config.sliding else 0,
                softcap=config.softcap or 0.0,
            )  # fmt: skip
            return self._output(output, x), ()
        key = self._placed(key, "key_norm", config.num_kv_heads, context)
        if context.patch_blocks is not None:
            return self._output(context.patch_blocks.attend(query, key, value, config.num_heads, config.scale), x), ()
        if isinstance(config.relative, ShawConfig):
            bias = _add(bias, self._shaw_bias(query, context, config.relative.max_distance))
        elif isinstance(config.relative, TransformerXLConfig):
            bias = _add(bias, self._transformer_xl_bias(query + self.position_bias, context))
            query = query + self.content_bias
        elif isinstance(config.relative, DisentangledConfig):
            bias = _add(bias, self._disentangled_bias(query, key, config.relative, context))
        windowed = config.sliding and context.bidirectional != "prompt"
        output, present_key, present_value = ops.group_query_attention(
            query, key, value, *(past or (None, None)), context.attention_mask,
            config.num_heads, config.num_kv_heads, config.scale,
            attention_bias=bias,
            sinks=getattr(self, "sinks", None),
            value_relations=getattr(self, "value_relations", None),
            window=(config.window or 0) if windowed else 0,
            softcap=config.softcap or 0.0,
            causal=config.causal and not self._looks_ahead(context.bidirectional),
        )  # fmt: skip
        if config.global_projections:
            # Selected by index, not split and concatenated: a graph must not depend on the number of other tokens.
            places = torch.arange(x.shape[1], device=x.device)
            overall = self._global(x, context).index_select(1, places.clamp(max=config.global_tokens - 1))
            output = torch.where((places < config.global_tokens).unsqueeze(-1), overall, output)
        if config.latent is not None:
            output = self.latent.without_zeros(output)
        return self._output(output, x), (present_key, present_value)

    def _looks_ahead(self, bidirectional: Bidirectional | None) -> bool:
        """Return whether new tokens attend to those behind them."""
        return bidirectional is not None and (bidirectional != "windows" or self.config.sliding)

    def _output(self, attended: Tensor, x: Tensor) -> Tensor:
        """Return the projection [B, S, E] of what the heads return, behind the gate if there is one."""
        gated = attended * torch.sigmoid(self.gate(x)) if self.config.output_gate else attended
        return scaled(self.output(gated), self.config.output_scale)

    def _project(self, x: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the projections of x [B, S, E]: query [B, S, H·D], and key and value [B, S, K·D] if it has them."""
        if self.config.latent is not None:
            projected: tuple[Tensor, Tensor, Tensor] = self.latent(x)
            return projected
        query = self._clipped(self.query(x))
        if self.config.shares is not None:
            return query, None, None
        key = self._clipped(self.key(x))
        value = key if self.config.value_from_key else self._clipped(self.value(x if values is None else values))
        if self.config.value_norm is not None:
            value = self.value_norm(self._heads(value)).view(value.shape)
        return query, key, value

    def _clipped(self, projected: Tensor) -> Tensor:
        clip = self.config.qkv_clip
        return projected if clip is None else projected.clamp(-clip, clip)

    def _placed(self, projected: Tensor, norm: str, num_heads: int, context: Context) -> Tensor:
        """Return queries or keys [B, S, num_heads·D], normalized and rotated as far as the config has it."""
        qk_norm, rotary = self.config.qk_norm, self.config.rotary
        if qk_norm is not None and not qk_norm.after_rotary:
            projected = self._normed(projected, norm, qk_norm)
        if context.rotary is not None and rotary is not None:
            tables = context.rotary.cos, context.rotary.sin
            rows = context.rotary.rows if isinstance(context.rotary, TokenAngles) else context.positions
            if rotary.halves:  # the halves of all heads of a token are two tokens
                half, shape = self.config.head_dim // 2, projected.shape
                halves = projected.view(-1, num_heads, 2, half).transpose(1, 2).reshape(1, -1, num_heads * half)
                turned = ops.rotary_embedding(halves, rows, *tables, num_heads, rotary.interleaved)
                projected = turned.view(-1, 2, num_heads, half).transpose(1, 2).reshape(shape)
            else:
                projected = ops.rotary_embedding(projected, rows, *tables, num_heads, rotary.interleaved)
        if qk_norm is not None and qk_norm.after_rotary:
            projected = self._normed(projected, norm, qk_norm)
        return projected

    def _normed(self, projected: Tensor, norm: str, config: QKNormConfig) -> Tensor:
        layer: nn.Module = getattr(self, norm)
        if config.over == "projection":
            return layer(projected)
        # Views, not `flatten`: ops that torch.export has to decompose make capturing a graph slow.
        return layer(self._heads(projected)).view(projected.shape)

    def _global(self, x: Tensor, context: Context) -> Tensor:
        """Return the attention output of the global tokens, by their own projections: [B, global_tokens, H·D]."""
        first = torch.arange(self.config.global_tokens, device=x.device).clamp(max=x.shape[1] - 1)
        query = self.global_query(x.index_select(1, first))
        key, value = (self._heads(part(x)).transpose(1, 2) for part in (self.global_key, self.global_value))
        return ops.cross_attention(query, key, value, context.attention_mask, self.config.scale)

    def _heads(self, x: Tensor) -> Tensor:
        """Return x [..., H·D] as [..., H, D]; also for keys, [..., K·D]."""
        return x.view(*x.shape[:-1], -1, self.config.head_dim)

    def _shaw_bias(self, query: Tensor, context: Context, reach: int) -> Tensor:
        """Return q_i · relation(clip(j − i, −k, k)) · scale with k = `reach`: [B, H, S, T]. See `ShawConfig`."""
        products = self._heads(query) @ self.key_relations.t()  # [B, S, H, 2k + 1]
        relation = (-_distances(context)).clamp(-reach, reach) + reach  # [B, S, T]
        return _pick(products.transpose(1, 2), relation) * self.config.scale

    def _transformer_xl_bias(self, query: Tensor, context: Context) -> Tensor:
        """Return (q_i + v) · r(i − j) · scale: [B, H, S, T]. `query` is q + v; see `TransformerXLConfig`."""
        assert context.distances is not None
        # Project the whole table, not T rows of it: onnxruntime folds a product of constants when it loads the graph.
        relative = self._heads(self.relative_key(context.distances))  # [C, H, D]
        products = torch.einsum("bshd,chd->bhsc", self._heads(query), relative)
        return _pick(products, _distances(context).clamp(min=0)) * self.config.scale

    def _disentangled_bias(self, query: Tensor, key: Tensor, config: DisentangledConfig, context: Context) -> Tensor:
        """Return (q_i · K(i − j) + Q(i − j) · k_j) · scale: [B, H, S, T]. See `DisentangledConfig`."""
        relations = context.relations
        assert relations is not None
        bias = None
        if config.content_to_position:
            project = self.key if config.shared_projections else self.relation_key
            products = self._with_relations(query, project(relations.table))
            bias = _pick(products, relations.rows)
        if config.position_to_content:
            project = self.query if config.shared_projections else self.relation_query
            products = self._with_relations(key, project(relations.table))
            bias = _add(bias, _pick(products, relations.rows.transpose(1, 2)).transpose(2, 3))
        assert bias is not None
        return bias * self.config.scale

    def _with_relations(self, x: Tensor, relations: Tensor) -> Tensor:
        """Return the products of queries or keys [B, S, H·D] with every relation [1, N, H·D]: [B, H, S, N]."""
        return self._heads(x).transpose(1, 2) @ self._heads(relations).permute(0, 2, 3, 1)


class CrossAttention(nn.Module):
    """Cross-attention: projections around `ops.cross_attention`.

    Keys and values depend only on the encoder's states, so that `project` computes them once per source.
    """

    def __init__(self, config: CrossAttentionConfig, hidden_size: int, source_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        width, kv_width = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
        self.query = nn.Linear(hidden_size, width, bias=config.qkv_bias, dtype=dtype)
        self.key = nn.Linear(source_size, kv_width, bias=config.qkv_bias and config.key_bias, dtype=dtype)
        self.value = nn.Linear(source_size, kv_width, bias=config.qkv_bias, dtype=dtype)
        self.output = nn.Linear(width, hidden_size, bias=config.output_bias, dtype=dtype)

    def project(self, states: Tensor) -> Cache:
        """Return key and value, each [B, H, T, D], of the encoder's states [B, T, E].

        The states of padding must be finite.
        """
        return self._heads(self.key(states)), self._heads(self.value(states))

    def forward(self, x: Tensor, encoder_cache: Cache, source_mask: Tensor) -> Tensor:
        """Return the output [B, S, E] for x [B, S, E]; `encoder_cache` is the result of `project`."""
        config = self.config
        softcap = config.softcap or 0.0
        return self.output(ops.cross_attention(self.query(x), *encoder_cache, source_mask, config.scale, softcap))

    def _heads(self, x: Tensor) -> Tensor:
        """Return keys or values [B, T, K·D] as [B, H, T, D]: each of the K heads is repeated H / K times."""
        config = self.config
        heads = x.view(*x.shape[:-1], config.kv_heads, config.head_dim).transpose(1, 2)
        groups = config.num_heads // config.kv_heads
        return heads if groups == 1 else heads.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(1, 2)


def _head_norm(config: QKNormConfig, num_heads: int, head_dim: int, dtype: torch.dtype) -> nn.Module:
    shapes = {"head": (head_dim,), "each_head": (num_heads, head_dim), "projection": (num_heads * head_dim,)}
    return make_norm(config.norm, *shapes[config.over], dtype=dtype)


def _distances(context: Context) -> Tensor:
    """Return query position − key position: int64 [B, S, T]."""
    return context.positions.unsqueeze(-1) - context.key_positions.unsqueeze(1)


def _pick(products: Tensor, index: Tensor) -> Tensor:
    """Gather products [B, H, S, N] at index int64 [B or 1, S, T] along the last axis: [B, H, S, T]."""
    return products.gather(3, index.unsqueeze(1).expand(*products.shape[:2], -1, -1))


def _add(bias: Tensor | None, more: Tensor) -> Tensor:
    return more if bias is None else bias + more
