"""Command R7B and Command A.

Cohere with windows and rotary embeddings in three of four layers, and none of both in the others. Source:
transformers/models/cohere2/modeling_cohere2.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families import cohere
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import every_nth_full, read_layer_types, with_windows, without_rotary_where_full
from edgeformer.families.llama import TENSORS

# Fields of checkpoints that transformers ignores, with the only value that it computes.
FIXED = {
    "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj", "rotary_pct": 1.0,
    "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True, "use_qk_norm": False,
}  # fmt: skip


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Cohere 2 config.json."""
    # For generate(), for training in parallel, and what older versions wrote beside layer_types.
    fields.ignore("cache_implementation", "use_parallel_embedding", "_sliding_window_pattern")
    for name, value in FIXED.items():
        fields.choice(name, {value: None}, value)
    config = cohere.read_config(fields, context_length)
    pattern = fields.take("sliding_window_pattern", 4)
    fields.choice("layer_switch", {pattern: None}, pattern)
    types = read_layer_types(fields, every_nth_full(pattern, len(config.blocks)))
    config = without_rotary_where_full(config, types)
    return with_windows(config, types, fields.take("sliding_window", None))


FAMILY = Family(
    summary="Command R7B, Command A: windows with rotary embeddings, full layers without positions",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"logit_scale": 0.0625, "tie_word_embeddings": True, "sliding_window": 4096},
)
