"""The mixture of experts of a block: a router, experts, and what all tokens share."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.config import ExpertsConfig, FeedForwardConfig, RouterConfig
from edgeformer.layers.feed_forward import FeedForward
from edgeformer.layers.norm import make_norm
from edgeformer.ops.mixture_of_experts import compute_experts


class Router(nn.Module):
    """The router that `RouterConfig` describes."""

    def __init__(self, config: RouterConfig, experts: tuple[int, int], hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        num_experts, self.experts_per_token = experts
        self.norm = make_norm(config.norm, hidden_size, dtype=dtype)
        self.projection = nn.Linear(hidden_size, num_experts, bias=config.bias, dtype=dtype)
        self.choice_bias = nn.Parameter(torch.zeros(num_experts, dtype=dtype)) if config.choice_bias else None
        self.expert_scale = nn.Parameter(torch.ones(num_experts, dtype=dtype)) if config.expert_scale else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen experts, int64 [N, K], and their weights [N, K], for x [N, E]."""
        config = self.config
        logits = self.projection(self.norm(x))  # [N, X]
        experts, weights = ops.expert_router(
            logits if config.logit_scale == 1 else logits * config.logit_scale,
            self.choice_bias,
            self.expert_scale,
            self.experts_per_token,
            config.scoring,
            config.normalized,
            config.sum_epsilon,
            config.sum_floor,
            config.scale,
            config.groups,
            config.groups_per_token,
            config.group_score,
            config.jitter,
        )
        return experts, weights


class StackedLinear(nn.Module):
    """The linear layers of all experts at one place: weight [X, outputs, inputs] and bias [X, outputs]."""

    def __init__(self, num_experts: int, inputs: int, outputs: int, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, outputs, inputs, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_experts, outputs, dtype=dtype)) if bias else None


class StackedFeedForward(nn.Module):
    """The networks of all experts, each as `FeedForwardConfig` describes it; see `ops.mixture_of_experts`.

    rounded: a function of the inputs of every layer of an expert, for a reference that rounds them as a kernel does.
    """

    rounded: Callable[[Tensor], Tensor] | None = None

    def __init__(
        self, config: FeedForwardConfig, num_experts: int, hidden_size: int, weighted_input: bool, dtype: torch.dtype
    ):
        super().__init__()
        self.config, self.weighted_input = config, weighted_input
        inner, bias = config.intermediate_size, config.bias
        self.gate = StackedLinear(num_experts, hidden_size, inner, bias, dtype) if config.gated else None
        self.up = StackedLinear(num_experts, hidden_size, inner, bias, dtype)
        self.down = StackedLinear(num_experts, inner, hidden_size, bias, dtype)

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the experts [N, E] of x [N, E], with experts int64 [N, K] and weights [N, K]."""
        config = self.config
        compute: Callable[..., Tensor] = ops.mixture_of_experts
        if self.rounded is not None:
            compute = partial(compute_experts, rounded=self.rounded)
        result: Tensor = compute(
            x,
            experts,
            weights,
            None if self.gate is None else self.gate.weight,
            None if self.gate is None else self.gate.bias,
            self.up.weight,
            self.up.bias,
            self.down.weight,
            self.down.bias,
            config.activation,
            config.up_activation,
            config.beta,
            config.limit or 0.0,
            config.up_offset,
            self.weighted_input,
        )
        return result


class Experts(nn.Module):
    """The mixture of experts that `ExpertsConfig` describes.

    x ──┬── router ── experts and weights ──┐
        ├── experts_norm ──────────── experts ── experts_output_norm ──(+)──
        └── shared_norm ── shared (· sigmoid(shared_gate)) ── shared_output_norm ──┘
    Norms are the identity where there is no `branch_norm`; the shared network is absent where there is none.
    """

    def __init__(self, config: ExpertsConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        norm, shared = config.branch_norm, config.shared
        self.router = Router(config.router, (config.num_experts, config.experts_per_token), hidden_size, dtype)
        self.experts_norm = make_norm(norm, hidden_size, dtype=dtype)
        self.experts = StackedFeedForward(config.expert, config.num_experts, hidden_size, config.weighted_input, dtype)
        self.experts_output_norm = make_norm(norm, hidden_size, dtype=dtype)
        self.shared = None if shared is None else FeedForward(shared, hidden_size, dtype)
        if shared is not None:
            self.shared_norm = make_norm(norm, hidden_size, dtype=dtype)
            self.shared_output_norm = make_norm(norm, hidden_size, dtype=dtype)
        self.shared_gate = nn.Linear(hidden_size, 1, bias=False, dtype=dtype) if config.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [B, S, E] for x [B, S, E]."""
        tokens = x.flatten(0, 1)  # [B · S, E]
        experts, weights = self.router(tokens)
        result = self.experts(self.experts_norm(tokens), experts, weights).view(x.shape)
        result = self.experts_output_norm(result)
        if self.shared is None:
            return result
        shared = self.shared(self.shared_norm(x))
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        return result + self.shared_output_norm(shared)
