"""The choice of experts for each token, and their weights."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::expert_router", mutates_args=())
def expert_router(
    logits: Tensor,
    choice_bias: Tensor | None,
    expert_scale: Tensor | None,
    experts_per_token: int,
    scoring: str,
    normalized: bool,
    sum_epsilon: float,
    sum_floor: float,
    scale: float,
    groups: int,
    groups_per_token: int,
    group_score: str,
    jitter: float,
) -> tuple[Tensor, Tensor]:
    """Return the chosen experts, int64 [N, K], and their weights [N, K], for N tokens and K = experts_per_token.

    logits        [N, X], one for each of X experts
    choice_bias   [X], added to the scores for the choice alone; None for zeros
    expert_scale  [X], factors of the weights; None for ones

    score = softmax(logits) or sigmoid(logits); chosen = the K largest of score + choice_bias, within the best
    groups_per_token groups; weight = score of the chosen one, normalized or not, · scale · expert_scale.
    `RouterConfig` describes each attribute, and the scoring `sparse_mixer`.

    Both scores rise with the logit. So where neither bias nor groups take part, logits are compared: where scores are
    rounded to equal numbers, logits may still differ.

    Sources: transformers' modeling_mixtral.py, modeling_deepseek_v2.py, modeling_deepseek_v3.py, modeling_phimoe.py.
    """
    if scoring == "sparse_mixer":
        indices, weights = _sparse_mixer(logits, experts_per_token, jitter)
    else:
        scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
        compared = logits if choice_bias is None and groups == 1 else scores
        if choice_bias is not None:
            compared = compared + choice_bias
        if groups > 1:
            compared = _within_groups(compared, groups, groups_per_token, group_score)
        indices = compared.topk(experts_per_token, -1).indices
        weights = scores.gather(-1, indices)
        if normalized and scoring == "softmax" and not sum_epsilon and not sum_floor:
            weights = logits.gather(-1, indices).softmax(-1)  # the same, and never 0 / 0
        elif normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + sum_epsilon).clamp(min=sum_floor)
    if scale != 1:
        weights = weights * scale
    return indices, weights if expert_scale is None else weights * expert_scale[indices]


def _within_groups(compared: Tensor, groups: int, groups_per_token: int, group_score: str) -> Tensor:
    """Replace the scores [N, X] of experts by −∞ in all groups but the best ones."""
    grouped = compared.unflatten(-1, (groups, -1))  # [N, groups, X / groups]
    scores = grouped.amax(-1) if group_score == "max" else grouped.topk(2, -1).values.sum(-1)
    best = scores.topk(groups_per_token, -1).indices
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
    return grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)


def _sparse_mixer(logits: Tensor, experts_per_token: int, jitter: float) -> tuple[Tensor, Tensor]:
    left, chosen, weights = logits, [], []
    for _ in range(experts_per_token):
        largest, expert = left.max(-1, keepdim=True)
        far = (largest - left) / torch.maximum(logits.abs(), largest) > 2 * jitter
        weights.append(left.masked_fill(far, float("-inf")).softmax(-1).gather(-1, expert))
        chosen.append(expert)
        left = left.scatter(-1, expert, float("-inf"))
    return torch.cat(chosen, -1), torch.cat(weights, -1)


@expert_router.register_fake
def _(
    logits: Tensor,
    choice_bias: Tensor | None,
    expert_scale: Tensor | None,
    experts_per_token: int,
    *attributes: object,
    **named: object,
) -> tuple[Tensor, Tensor]:
    shape = (*logits.shape[:-1], experts_per_token)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape)
