"""The number of changes that passes must make to a model's graph, from its config: a lost fusion is an error."""

from edgeformer.config import BlockConfig, StackConfig

FUSIBLE = ("rms_norm", "layer_norm")


def expected_changes(config: StackConfig) -> dict[str, int]:
    """Return, for each pass, how many nodes of the model's canonical graph it must change or report as missed."""
    blocks = _with_attention_op(config)
    attentions = [block.attention for block in blocks if block.attention is not None]
    return {
        "fold_rotary": sum(_rotates_last(block) for block in blocks),
        "pack_qkv": sum(attention.shares is None for attention in attentions),
        "fuse_skip_norm": _norms_of_sums(config),
    }


def _with_attention_op(config: StackConfig) -> list[BlockConfig]:
    """Return the blocks whose attention is one op: those that attend within windows of a picture multiply blocks."""
    windows = config.picture_windows
    return [block for index, block in enumerate(config.blocks) if windows is None or index in windows.everywhere]


def _rotates_last(block: BlockConfig) -> bool:
    """Whether nothing stands between the rotation of queries and keys, by their positions, and their product."""
    if block.attention is None or block.attention.rotary is None or block.attention.rotary.long is not None:
        return False
    qk_norm = block.attention.qk_norm
    return not block.attention.rotary.halves and not (qk_norm is not None and qk_norm.after_rotary)


def _norms_of_sums(config: StackConfig) -> int:
    """Number of norms that read a residual sum; of two norms that read the same sum, one is fused with it."""
    count = 0
    sum_before = config.position_embedding is not None and config.embedding_norm is None
    for block in config.blocks:
        fusible, across = block.norm.kind in FUSIBLE, block.cross_attention is not None
        if block.norm_placement == "post":
            count += fusible * (block.attention_norm + across + (block.feed_forward is not None))
            sum_before = False
            continue
        if block.norm_placement in ("pre", "sandwich"):
            second = block.residual == "serial" and block.feed_forward is not None and block.laurel_rank is None
            count += fusible * (sum_before * block.attention_norm + across + second)
        routed = block.altup is not None and block.feed_forward is not None  # AltUp's router reads the block's output
        count += fusible * routed
        sum_before = block.altup is None and not block.output_scale
    sum_before = sum_before and config.pool is None
    return count + (config.final_norm is not None and config.final_norm.kind in FUSIBLE and sum_before)
