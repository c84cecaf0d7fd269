"""Linear attention: a matrix per head that every token decays, corrects and reads."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::linear_attention", mutates_args=())
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Tensor,
    token_mask: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the output [B, S, H·Dv] of every token and the present state [B, H, Dk, Dv].

    query, key  [B, S, G·Dk]; head h of the state reads their head h // (H / G)
    value       [B, S, H·Dv]
    past        [B, H, Dk, Dv]; zeros where nothing precedes. Its type may be wider than that of the others; then
                everything is computed in it
    token_mask  bool [B, S]; padding may hold anything: it leaves the state as it is, and its own output means nothing
    decay       [B, S, H], g ≤ 0; None is 0
    beta        [B, S, H]; None: the state is not corrected, only added to

    For each token in turn, and each head, with M the state:
        M ← exp(g) · M
        M ← M + key ⊗ value                     without beta (decay: the rule `gated`, otherwise `linear`)
        M ← M + key ⊗ β · (value − Mᵀ · key)    with beta (decay: the rule `gated_delta`, otherwise `delta`)
        output = scale · Mᵀ · query

    A Mamba-2 state space is the rule `gated` with query C, key B, value Δ·x and decay Δ·A (arXiv 2405.21060).
    Source: `LinearAttention` of ONNX, opset 27; arXiv 2412.06464 for the gated delta rule.
    """
    heads, key_dim = past.shape[1], past.shape[2]
    group = heads * key_dim // query.shape[-1]
    q, k, v = (each.to(past.dtype) for each in (query, key, value))
    q, k = (each.unflatten(-1, (-1, key_dim)).repeat_interleave(group, 2) for each in (q, k))  # [B, S, H, Dk]
    v = v.unflatten(-1, (heads, -1))  # [B, S, H, Dv]
    state, outputs = past, []
    for token in range(query.shape[1]):
        updated = state if decay is None else state * decay[:, token, :, None, None].to(past.dtype).exp()
        change = v[:, token]
        if beta is not None:
            change = (change - (updated * k[:, token, :, :, None]).sum(2)) * beta[:, token, :, None]
        updated = updated + k[:, token, :, :, None] * change[:, :, None]
        state = torch.where(token_mask[:, token, None, None, None], updated, state)
        outputs.append((state * q[:, token, :, :, None]).sum(2) * scale)
    return torch.stack(outputs, 1).flatten(-2).to(value.dtype), state.clone()


@linear_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, past: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), torch.empty_like(past)
