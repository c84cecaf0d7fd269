"""Config of a mixture of experts: a router, and feed-forward networks of which each token uses a few."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.config.feed_forward import FeedForwardConfig
from edgeformer.config.norm import NormConfig
from edgeformer.documents.schema import check

Scoring = Literal["softmax", "sigmoid", "sparse_mixer"]
GroupScore = Literal["max", "top2_sum"]


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """A router: a linear layer to one logit per expert, the choice of experts, and the weights of the chosen ones.

    The experts with the largest scores are chosen, in groups if there are several, and their weights are their scores.
    A softmax over the chosen logits alone (Mixtral, gpt-oss) is `softmax` with `normalized`, which is the same number.

    Attributes:
        scoring: scores of logits. `softmax`: over all experts; `sigmoid`; `sparse_mixer`: each next expert has the
            largest logit left, and its score is a softmax over the logits left that are near it (arXiv 2409.12136).
        bias: the linear layer has a bias.
        norm: normalizes the router's input. None where it reads what the experts read.
        logit_scale: factor of the logits.
        choice_bias: a learned number per expert is added to its score for the choice, not for its weight
            (`e_score_correction_bias` of DeepSeek-V3, arXiv 2408.15664).
        groups: experts are divided into this many groups, and only those of the best groups_per_token are chosen from.
        group_score: score of a group: the largest score in it, or the sum of the two largest.
        normalized: weights are divided by max(their sum + sum_epsilon, sum_floor).
        scale: factor of the weights.
        expert_scale: a learned factor per expert multiplies its weight.
        jitter: sparse_mixer only; logits l are near the largest logit m if (m − l) / max(|l|, m) ≤ 2 · jitter.
    """

    scoring: Scoring
    normalized: bool
    bias: bool = False
    norm: NormConfig | None = None
    logit_scale: float = 1.0
    choice_bias: bool = False
    groups: int = 1
    groups_per_token: int = 1
    group_score: GroupScore = "max"
    sum_epsilon: float = 0.0
    sum_floor: float = 0.0
    scale: float = 1.0
    expert_scale: bool = False
    jitter: float = 0.0

    def __post_init__(self) -> None:
        check(self.groups > 0, self, "groups", "positive")
        check(0 < self.groups_per_token <= self.groups, self, "groups_per_token", f"from 1 to groups ({self.groups})")
        for field in ("sum_epsilon", "sum_floor", "jitter"):
            check(getattr(self, field) >= 0, self, field, "zero or positive")
        if not self.normalized:
            check(self.sum_epsilon == self.sum_floor == 0, self, "normalized", "True where sums have a floor")
        check(self.norm is None or self.norm.kind != "batch_norm", self, "norm", "an rms_norm or a layer_norm")
        if self.scoring == "sparse_mixer":
            plain = not self.choice_bias and not self.normalized and self.groups == 1
            check(plain, self, "scoring", "softmax or sigmoid where choice_bias, normalized or groups are used")
        else:
            check(self.jitter == 0, self, "jitter", "0 where scoring is not sparse_mixer")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Mixture of experts: Σ weight_e · expert_e(x) over the chosen experts e, plus the shared network if there is one.

    Source: arXiv 2101.03961 (a router to few experts), arXiv 2401.06066 (shared experts).

    Attributes:
        num_experts: the number of experts.
        experts_per_token: how many of them each token uses.
        expert: the network of one expert; all have the same shape.
        router: the choice of experts and their weights.
        weighted_input: expert_e(weight_e · x) is added instead of weight_e · expert_e(x) (Llama 4).
        shared: a network that every token uses; several shared experts are one network as wide as all of them.
        shared_gate: the output of the shared network is multiplied by sigmoid of a linear layer to one number.
        branch_norm: the experts and the shared network each read x through a norm of their own and have a norm behind
            them, and x itself comes without a norm (Gemma 4). None where neither has such norms.
    """

    num_experts: int
    experts_per_token: int
    expert: FeedForwardConfig
    router: RouterConfig
    weighted_input: bool = False
    shared: FeedForwardConfig | None = None
    shared_gate: bool = False
    branch_norm: NormConfig | None = None
    kind: Literal["experts"] = "experts"

    def __post_init__(self) -> None:
        check(self.num_experts > 0, self, "num_experts", "positive")
        used = 0 < self.experts_per_token <= self.num_experts
        check(used, self, "experts_per_token", f"from 1 to num_experts ({self.num_experts})")
        check(self.expert.activation != "xielu", self, "expert", "a network whose activation has no parameters")
        check(self.expert.sparsity == 0, self, "expert", "a network without sparsity")
        groups = self.router.groups
        check(self.num_experts % groups == 0, self, "num_experts", f"a multiple of the router's groups ({groups})")
        size = self.num_experts // groups
        enough = self.experts_per_token <= self.router.groups_per_token * size
        check(enough, self, "experts_per_token", f"at most the experts in the chosen groups, of {size} each")
        if self.router.group_score == "top2_sum" and groups > 1:
            check(size > 1, self, "num_experts", "at least two experts for each group, whose two best are added")
        if self.shared is None:
            check(not self.shared_gate, self, "shared_gate", "False where there is no shared network")
        check(
            self.branch_norm is None or self.shared is not None,
            self,
            "branch_norm",
            "None where there is no shared network",
        )

    @property
    def intermediate_size(self) -> int:
        """Return the intermediate size of one expert."""
        return self.expert.intermediate_size
