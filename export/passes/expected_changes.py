"""How often passes must fire for a model, worked out from its config: a lost fusion is an error, not a slow graph."""

from edgeformer.config import BlockConfig, StackConfig

FUSIBLE = ("rms_norm", "layer_norm")


def expected_changes(config: StackConfig) -> dict[str, int]:
    """How many places of the model's canonical graph each pass changes, or says why not."""
    return {
        "fold_rotary": sum(_rotates_last(block) for block in config.blocks),
        "pack_qkv": len(config.blocks),
        "fuse_skip_norm": _norms_of_sums(config),
    }


def _rotates_last(block: BlockConfig) -> bool:
    """Whether the rotation is the last thing that happens to queries and keys before they meet."""
    qk_norm = block.attention.qk_norm
    return block.attention.rotary is not None and not (qk_norm is not None and qk_norm.after_rotary)


def _norms_of_sums(config: StackConfig) -> int:
    """Norms whose input is a residual sum; of two that read the same sum, one is fused with it."""
    count = 0
    sum_before = config.position_embedding is not None and config.embedding_norm is None
    for block in config.blocks:
        fusible, across = block.norm.kind in FUSIBLE, block.cross_attention is not None
        if block.norm_placement == "post":
            count += fusible * (block.attention_norm + across + 1)
            sum_before = False
            continue
        if block.norm_placement in ("pre", "sandwich"):
            second = block.residual == "serial"
            count += fusible * (sum_before * block.attention_norm + across + second)
        sum_before = True
    return count + (config.final_norm is not None and config.final_norm.kind in FUSIBLE and sum_before)
