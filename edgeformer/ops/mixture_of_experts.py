"""Feed-forward networks of which each token uses a few."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from edgeformer.config import Activation
from edgeformer.ops.activation import activate, clamped, up_factor


@torch.library.custom_op("edgeformer::mixture_of_experts", mutates_args=())
def mixture_of_experts(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate: Tensor | None,
    gate_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    up_activation: str,
    beta: float,
    limit: float,
    up_offset: float,
    weighted_input: bool,
) -> Tensor:
    """Return Σ weight · network_e(x) over the experts e of each token, [N, E]; other experts are not computed.

    x           [N, E]
    experts     int64 [N, K], K different ones of X experts for each token
    weights     [N, K]
    gate, up    [X, F, E], the first layers of all experts; gate is None where networks are not gated
    down        [X, E, F], their last layers
    biases      gate_bias and up_bias [X, F], down_bias [X, E]; None for zeros

    network(x) = down(activation(gate(x)) · (up_activation(up(x)) + up_offset)), or down(activation(up(x))).
    activation, up_activation and beta are those of `FeedForwardConfig`; limit is, too, with 0 for none.
    weighted_input: Σ network_e(weight · x).

    Source: arXiv 2101.03961; transformers' modeling_mixtral.py and modeling_gpt_oss.py.
    """
    tensors = gate, gate_bias, up, up_bias, down, down_bias
    attributes = activation, up_activation, beta, limit, up_offset, weighted_input
    return compute_experts(x, experts, weights, *tensors, *attributes)


@mixture_of_experts.register_fake
def _(x: Tensor, *others: object) -> Tensor:
    return torch.empty_like(x)


def compute_experts(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate: Tensor | None,
    gate_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    up_activation: str,
    beta: float,
    limit: float,
    up_offset: float,
    weighted_input: bool,
    rounded: Callable[[Tensor], Tensor] = lambda inputs: inputs,
) -> Tensor:
    """Return what `mixture_of_experts` returns. rounded: is applied to the inputs of every layer of an expert."""
    result, of_gate, of_up = torch.zeros_like(x), cast(Activation, activation), cast(Activation, up_activation)
    for expert in range(up.shape[0]):
        tokens, places = (experts == expert).nonzero(as_tuple=True)  # [n] each
        if not len(tokens):
            continue
        factors = weights[tokens, places, None]  # [n, 1]
        rows = rounded(x[tokens] * factors if weighted_input else x[tokens])  # [n, E]
        raised = F.linear(rows, up[expert], None if up_bias is None else up_bias[expert])  # [n, F]
        if gate is None:
            inner = activate(of_gate, raised, beta)
        else:
            opening = F.linear(rows, gate[expert], None if gate_bias is None else gate_bias[expert])
            opening, raised = clamped(opening, raised, limit or None)
            inner = activate(of_gate, opening, beta) * up_factor(raised, of_up, beta, up_offset)
        output = F.linear(rounded(inner), down[expert], None if down_bias is None else down_bias[expert])
        result.index_add_(0, tokens, output if weighted_input else output * factors)
    return result
