"""Configs of mixtures of experts: JSON both ways, manifests without them, refusals, costs."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "families"))

from op_set_kinds import GROUPED, RMS_NORM, attention, block, expert, experts, model, routed

from edgeformer.checkpoints.weights import parameter_shapes
from edgeformer.config import DecoderConfig, ExpertsConfig, FeedForwardConfig
from edgeformer.documents import schema
from edgeformer.errors import ConfigError
from edgeformer.manifest.accounting import account

GEMMA = experts(
    {"norm": RMS_NORM, "expert_scale": True}, expert("gelu_tanh"), shared=expert("gelu_tanh"), branch_norm=RMS_NORM
)
MODELS = {
    "plain": routed(experts({})),
    "biases": routed(experts({"bias": True, "choice_bias": True}, expert(bias=True))),
    "groups and a shared network": routed(experts(GROUPED, shared=expert(bias=True), shared_gate=True)),
    "norms of the branches": routed(GEMMA, norm_placement="sandwich"),
    "not gated, beside dense blocks": model(
        block(attention()), block(attention(), feed_forward=experts({}, expert(gated=False)))
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_experts_survive_json(name):
    config = MODELS[name]
    assert schema.from_json(DecoderConfig, json.loads(json.dumps(schema.to_json(config)))) == config


def test_a_dense_network_has_no_kind_as_in_older_manifests():
    data = schema.to_json(model(block(attention())))
    dense = data["blocks"][0]["block"]["feed_forward"]
    assert "kind" not in dense
    del dense["up_offset"]
    read = schema.from_json(DecoderConfig, data)
    assert type(read.blocks[0].feed_forward) is FeedForwardConfig


def test_another_kind_is_named_with_its_place():
    data = schema.to_json(MODELS["plain"])
    data["blocks"][0]["block"]["feed_forward"]["kind"] = "crowd"
    with pytest.raises(
        ConfigError, match=r"^blocks\[0\]\.feed_forward is .*; it must be an object of kind \['experts'\]"
    ):
        schema.from_json(DecoderConfig, data)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_counted(name):
    config = MODELS[name]
    sizes = {key: _product(shape) for key, shape in parameter_shapes(config).items()}
    assert account(config).parameters == sum(sizes.values())


def _product(shape):
    total = 1
    for size in shape:
        total *= size
    return total


def test_only_chosen_experts_cost_operations():
    few, many = (account(routed(experts({}, count=count, used=2))) for count in (4, 64))
    router = 2 * 32 * 60
    assert many.flops_per_token == few.flops_per_token + router
    assert many.parameters > 5 * few.parameters


LARGE_GROUPS = {"groups": 2, "group_score": "top2_sum", "groups_per_token": 2}


def _router(**fields):
    return lambda: experts(fields)


REFUSED = {
    "ExpertsConfig.experts_per_token is 9; it must be from 1 to num_experts (6).": lambda: experts({}, used=9),
    "ExpertsConfig.num_experts is 6; it must be a multiple of the router's groups (4).": _router(groups=4),
    "ExpertsConfig.experts_per_token is 2; it must be at most the experts in the chosen groups, of 1 each.": _router(
        groups=6
    ),
    "ExpertsConfig.num_experts is 2; it must be at least two experts for each group, whose two best are "
    "added.": lambda: experts(LARGE_GROUPS, count=2),
    "ExpertsConfig.shared_gate is True; it must be False where there is no shared network.": lambda: experts(
        {}, shared_gate=True
    ),
    "RouterConfig.groups_per_token is 2; it must be from 1 to groups (1).": _router(groups_per_token=2),
    "RouterConfig.normalized is False; it must be True where sums have a floor.": _router(
        normalized=False, sum_floor=1.0
    ),
    "RouterConfig.jitter is 0.1; it must be 0 where scoring is not sparse_mixer.": _router(jitter=0.1),
    "RouterConfig.scoring is 'sparse_mixer'; it must be softmax or sigmoid where choice_bias, normalized or groups are "
    "used.": _router(scoring="sparse_mixer"),
    "RouterConfig.sum_epsilon is -1.0; it must be zero or positive.": _router(sum_epsilon=-1.0),
    "FeedForwardConfig.limit is 0.0; it must be positive, or None.": lambda: expert(limit=0.0),
    "FeedForwardConfig.limit is 7.0; it must be None where nothing is gated.": lambda: expert(limit=7.0, gated=False),
    "FeedForwardConfig.up_offset is 1.0; it must be 0 where nothing is gated.": lambda: expert(
        up_offset=1.0, gated=False
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_value_out_of_range_is_named_with_what_would_be_right(message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        REFUSED[message]()


def test_norms_of_branches_want_a_shared_serial_block():
    with pytest.raises(ConfigError, match=r"ExpertsConfig\.branch_norm is .*None where there is no shared network"):
        replace(GEMMA, shared=None)
    with pytest.raises(ConfigError, match=r"BlockConfig\.feed_forward is .*without a branch_norm in a parallel"):
        routed(GEMMA, residual="parallel")
    assert isinstance(GEMMA, ExpertsConfig)
