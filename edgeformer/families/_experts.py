"""Functions that families with experts share: the fields of config.json, layers with experts, and names of tensors."""

from collections.abc import Iterable
from dataclasses import replace

from edgeformer.config import DecoderConfig, ExpertsConfig, FeedForwardConfig, RouterConfig
from edgeformer.errors import ConfigError
from edgeformer.families._family import Fields, Packed

COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts; transformers itself takes any of the first three for each other."""

TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "router_z_loss_coef")
"""Fields of config.json that matter in training only."""

DEEPSEEK_TRAINING = (
    "aux_loss_alpha", "ep_size", "pretraining_tp", "seq_aux", "num_nextn_predict_layers", "num_mtp_layers",
)  # fmt: skip
"""Fields of DeepSeek's models that matter in training only, and numbers of layers that transformers drops because they
predict further tokens."""

Tables = dict[str, str | Packed | tuple[str | Packed, ...]]


def read_experts(
    fields: Fields,
    dense: FeedForwardConfig | ExpertsConfig | None,
    router: RouterConfig,
    *,
    num_experts: int,
    intermediate_size: int | None = None,
    used_name: str = "num_experts_per_tok",
    shared: FeedForwardConfig | None = None,
    shared_gate: bool = False,
    weighted_input: bool = False,
) -> ExpertsConfig:
    """Read the number of experts and of those that a token uses.

    Args:
        fields: config.json.
        dense: the network that an expert is like.
        router: how experts are chosen.
        num_experts: the number of experts where config.json has none.
        intermediate_size: of an expert; None for that of `dense`.
        used_name: the field with the number of experts that a token uses.
        shared, shared_gate, weighted_input: see `ExpertsConfig`.
    """
    assert isinstance(dense, FeedForwardConfig)
    fields.ignore(*TRAINING)
    counts = [count for name in COUNTS if (count := fields.take(name, None)) is not None]
    if len(set(counts)) > 1:
        several = ", ".join(map(str, counts))
        raise ConfigError(f"config.json has several numbers of experts ({several}). Keep the right one.")
    return ExpertsConfig(
        num_experts=counts[0] if counts else num_experts,
        experts_per_token=fields.take(used_name),
        expert=dense if intermediate_size is None else replace(dense, intermediate_size=intermediate_size),
        router=router,
        shared=shared,
        shared_gate=shared_gate,
        weighted_input=weighted_input,
    )


def read_with_shared(fields: Fields, config: DecoderConfig, router: RouterConfig, *, num_experts: int) -> ExpertsConfig:
    """Read the experts and the shared network of DeepSeek's models, which are like the dense network of `config`."""
    dense, width = config.blocks[0].feed_forward, fields.take("moe_intermediate_size")
    assert isinstance(dense, FeedForwardConfig)
    shared = replace(dense, intermediate_size=width * fields.take("n_shared_experts"))
    expert = replace(dense, intermediate_size=width, bias=False)
    return read_experts(fields, expert, router, num_experts=num_experts, shared=shared)


def read_biased_router(fields: Fields) -> RouterConfig:
    """Read the router of DeepSeek-V3, whose choice learned biases change."""
    fields.choice("scoring_func", {"sigmoid": None}, "sigmoid")
    fields.choice("topk_method", {"noaux_tc": None}, "noaux_tc")
    normalized = fields.take("norm_topk_prob")
    return RouterConfig(
        scoring="sigmoid",
        normalized=normalized,
        choice_bias=True,
        groups=fields.take("n_group"),
        groups_per_token=fields.take("topk_group"),
        group_score="top2_sum",
        sum_epsilon=1e-20 if normalized else 0.0,
        scale=fields.take("routed_scaling_factor"),
    )


def after_dense(fields: Fields, config: DecoderConfig) -> list[bool]:
    """Read which layers have experts: those after the first `first_k_dense_replace`."""
    fields.choice("moe_layer_freq", {1: None}, 1)
    dense = fields.take("first_k_dense_replace")
    return [layer >= dense for layer in range(len(config.blocks))]


def with_experts(config: DecoderConfig, experts: ExpertsConfig, layers: Iterable[bool] | None = None) -> DecoderConfig:
    """Return a decoder with experts in the blocks of `layers` (None: in all) instead of their dense networks."""
    chosen = [True] * len(config.blocks) if layers is None else list(layers)
    blocks = (
        replace(block, feed_forward=experts) if sparse else block
        for block, sparse in zip(config.blocks, chosen, strict=True)
    )
    return replace(config, blocks=tuple(blocks))


def expert_tensors(
    module: str, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"), router: str = ""
) -> Tables:
    """Return the tensor names of a router and of experts, each with tensors of its own or all in fused ones.

    Args:
        module: the checkpoint's module that holds `experts`, such as model.layers.*.mlp.
        names: of gate, up and down of one expert.
        router: the checkpoint's module of the router; by default `gate` in that module.
    """
    experts = "blocks.*.feed_forward.experts"
    own = {part: f"{module}.experts.#.{name}.weight" for part, name in zip(("gate", "up", "down"), names, strict=True)}
    fused = f"{module}.experts.gate_up_proj"
    return {
        "blocks.*.feed_forward.router.projection": router or f"{module}.gate",
        f"{experts}.gate.weight": (own["gate"], Packed(fused, 0, "experts")),
        f"{experts}.up.weight": (own["up"], Packed(fused, 1, "experts")),
        f"{experts}.down.weight": (own["down"], f"{module}.experts.down_proj"),
    }


def shared_tensors(module: str) -> Tables:
    """Return the tensor names of the shared network, which is `module` of the checkpoint."""
    return {f"blocks.*.feed_forward.shared.{part}": f"{module}.{part}_proj" for part in ("gate", "up", "down")}


def deepseek_tensors(module: str = "model.layers.*.mlp") -> Tables:
    """Return the tensor names of experts with a biased router and a shared network."""
    bias = {"blocks.*.feed_forward.router.choice_bias": f"{module}.gate.e_score_correction_bias"}
    return expert_tensors(module) | shared_tensors(f"{module}.shared_experts") | bias
