"""Multi-head latent attention in the checkpoints of DeepSeek-V2 and of its relatives.

Source: transformers/models/deepseek_v2/modeling_deepseek_v2.py.
"""

from typing import Any

from edgeformer.config import LatentConfig, NormConfig
from edgeformer.families._family import Fields, Packed
from edgeformer.families._rotary import read_context_length, read_rope_fields, read_rotary, yarn_temperature
from edgeformer.families.llama import TENSORS

MODULE = "model.layers.*.self_attn"

LATENT: dict[str, str | Packed] = {
    "query_down": f"{MODULE}.q_a_proj",
    "query_norm": f"{MODULE}.q_a_layernorm",
    "query": Packed(f"{MODULE}.q_b_proj|{MODULE}.q_proj", 0, "shared_last"),
    "down": Packed(f"{MODULE}.kv_a_proj_with_mqa", 0),
    "shared_key": Packed(f"{MODULE}.kv_a_proj_with_mqa", 1),
    "norm": f"{MODULE}.kv_a_layernorm",
    "key": Packed(f"{MODULE}.kv_b_proj", 0, "groups"),
    "value": Packed(f"{MODULE}.kv_b_proj", 1, "groups"),
}
LATENT_TENSORS = {
    **{name: theirs for name, theirs in TENSORS.items() if name.split(".")[-1] not in ("query", "key", "value")},
    **{f"blocks.*.attention.latent.{name}": theirs for name, theirs in LATENT.items()},
}
"""Tensor names of a Llama with latent attention."""


def read_latent(
    fields: Fields, context_length: int | None, *, interleaved: bool, eps: float = 1e-6, known: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the fields of AttentionConfig that make latent attention.

    Args:
        fields: config.json.
        context_length: requested context length; None for all positions.
        interleaved: whether neighbours are rotated together.
        eps: of the norms of latent vectors, which config.json does not give.
        known: names of further rope parameters, which the caller reads.
    """
    rotated, bias = fields.take("qk_rope_head_dim"), fields.take("attention_bias", False)
    head_dim = fields.take("qk_nope_head_dim") + rotated
    # Sizes that transformers derives and saves with the others. Its head_dim is that of the rotated part.
    fields.choice("head_dim", {rotated: rotated}, rotated)
    fields.choice("qk_head_dim", {head_dim: head_dim}, head_dim)
    positions = read_context_length(fields, context_length)
    latent = LatentConfig(
        rank=fields.take("kv_lora_rank"),
        shared_dim=rotated,
        value_dim=fields.take("v_head_dim", fields.take("hidden_size") // fields.take("num_attention_heads")),
        norm=NormConfig(eps=eps),
        query_rank=fields.take("q_lora_rank", None),
        bias=bias,
    )
    return {
        "head_dim": head_dim,
        "scale": head_dim**-0.5 * _read_temperature(fields) ** 2,
        "rotary": read_rotary(fields, rotated, positions, interleaved=interleaved, known=known),
        "output_bias": bias,
        "latent": latent,
    }


def _read_temperature(fields: Fields) -> float:
    """Return the factor of queries and of keys that `mscale_all_dim` of a scaled rotation means."""
    parameters = read_rope_fields(fields)
    multiplier, factor = parameters.get("mscale_all_dim") or 0.0, parameters.get("factor")
    return 1.0 if factor is None else yarn_temperature(factor, multiplier)
