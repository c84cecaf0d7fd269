"""A decoder of recurrent layers and attention is at parity in every op set; a little wrong, it is not."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from slow_rows import slow_after, slow_unless

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from verification import false_positive_rate
from verification.false_positive_rate import export_random

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    DeltaNetConfig,
    FeedForwardConfig,
    NormConfig,
    RotaryConfig,
    ShortConvConfig,
    StateSpaceConfig,
)
from edgeformer.export.parity import verify_graph
from edgeformer.export.parity.judge import Judge
from edgeformer.export.parity.locate.locator import locate
from edgeformer.export.plan import make_plan
from edgeformer.models.model_spec import model_spec_of

RMS_NORM = NormConfig(eps=1e-5)
ATTENTION = AttentionConfig(
    num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, qkv_bias=False, output_bias=False,
    rotary=RotaryConfig(rotary_dim=16, base=1e4, interleaved=False, scaling=None),
)  # fmt: skip
SHORT_CONV = ShortConvConfig(channels=32, kernel_size=3, bias=False)
DELTA_NET = DeltaNetConfig(num_key_heads=2, num_value_heads=4, key_dim=8, value_dim=16, kernel_size=4, norm_eps=1e-5)
STATE_SPACE = StateSpaceConfig(
    num_heads=4, head_dim=16, state_size=16, num_groups=2, kernel_size=4, input_bias=True, conv_bias=True,
    output_bias=False, norm_eps=1e-5, norm_groups=2, part_scales=(0.5, 0.8, 1.25, 0.6, 1.5),
)  # fmt: skip


def hybrid(delta_net=DELTA_NET, state_space=STATE_SPACE):
    """Every recurrent layer, each kind of state in another layer, and one layer with attention beside it."""
    mixers = [(None, delta_net), (ATTENTION, None), (None, SHORT_CONV), (ATTENTION, state_space), (None, state_space)]
    feed_forward = FeedForwardConfig(intermediate_size=24, activation="silu", bias=False)
    blocks = tuple(
        BlockConfig(attention=attention, recurrent=recurrent, feed_forward=feed_forward, norm=RMS_NORM)
        for attention, recurrent in mixers
    )
    sizes = {"vocab_size": 31, "hidden_size": 32, "context_length": 96}
    return DecoderConfig(**sizes, blocks=blocks, final_norm=RMS_NORM, tied_head=False)


CONFIG = hybrid()
SPEC, WEIGHTS = model_spec_of(CONFIG), RandomWeights(CONFIG, 3)
FORMS = [
    ("ort", None), ("standard", "dynamic"), ("standard", "static"), ("portable", "dynamic"), ("portable", "static"),
]  # fmt: skip


@pytest.fixture
def export(monkeypatch, tmp_path):
    """Return a function that exports a random model in an op set and a form of cache."""

    def exported(spec=SPEC, weights=WEIGHTS, precision="fp32", ops="ort", cache=None):
        monkeypatch.setattr(
            false_positive_rate,
            "make_plan",
            lambda options, config: make_plan(replace(options, ops=ops, cache=cache), config),
        )
        return export_random(spec, weights, precision, tmp_path)

    return exported


@pytest.mark.parametrize(("ops", "cache"), slow_unless([FORMS[0], ("portable", "dynamic")], FORMS))
def test_recurrent_layers_are_at_parity(export, ops, cache):
    bundle = export(ops=ops, cache=cache)
    report = verify_graph(bundle.path, bundle.manifest, SPEC, WEIGHTS, mode="quick")
    assert report.passed, report.describe()
    assert locate(bundle.path, bundle.manifest, SPEC, WEIGHTS).suspects == ()


@pytest.mark.slow
def test_float16_is_at_parity(export):
    bundle = export(precision="fp16")
    report = verify_graph(bundle.path, bundle.manifest, SPEC, WEIGHTS, mode="quick")
    assert report.passed, report.describe()


class Changed(RandomWeights):
    """Random weights with one parameter changed."""

    def __init__(self, name, change):
        super().__init__(CONFIG, 3)
        self.name, self.change = name, change

    def __getitem__(self, name):
        tensor = super().__getitem__(name)
        return self.change(tensor) if name == self.name else tensor


WRONG_WEIGHTS = {
    "a convolution off by one": ("blocks.2.recurrent.conv_weight", lambda weight: weight.roll(1, 1)),
    "a slower decay": ("blocks.0.recurrent.decay_rate_log", lambda rate: rate - 0.05),
    "a larger step": ("blocks.3.recurrent.step_bias", lambda bias: bias + 0.05),
    "no skip": ("blocks.4.recurrent.skip", lambda skip: 0 * skip),
}
WRONG_CONFIGS = {
    "norm before the gate": hybrid(state_space=replace(STATE_SPACE, norm_before_gate=True)),
    "one group of the norm": hybrid(state_space=replace(STATE_SPACE, norm_groups=1)),
    "clipped steps": hybrid(state_space=replace(STATE_SPACE, max_step=0.9)),
    "another scale": hybrid(state_space=replace(STATE_SPACE, part_scales=(0.5, 0.8, 1.2, 0.6, 1.5))),
    "lengths of keys": hybrid(delta_net=replace(DELTA_NET, length_eps=1e-2)),
}


FAST = {"a convolution off by one", "no skip", "norm before the gate", "lengths of keys"}
"""Two faults of each kind of recurrent layer; the others are slow."""


@pytest.mark.parametrize(
    "name",
    slow_unless(FAST, (*WRONG_WEIGHTS, *WRONG_CONFIGS)),
)
def test_wrong_recurrent_layers_are_not(export, name):
    weights = Changed(*WRONG_WEIGHTS[name]) if name in WRONG_WEIGHTS else WEIGHTS
    bundle = export(model_spec_of(WRONG_CONFIGS.get(name, CONFIG)), weights)
    assert not verify_graph(bundle.path, bundle.manifest, SPEC, WEIGHTS, mode="quick").passed


@pytest.mark.parametrize("precision", slow_after(1, ["fp32", "fp16"]))
def test_logits_that_are_all_zero_fail_in_plain_words(export, precision):
    weights = Changed("head.weight", lambda weight: 0 * weight)
    bundle = export(weights=weights, precision=precision)
    report = verify_graph(bundle.path, bundle.manifest, SPEC, weights, mode="full")
    failed = {check.name for check in report.failures()}
    assert {"prefill: zeros", "steps: zeros", "steps against prefill: zeros", "decode: zeros"} <= failed
    assert "FAIL prefill: zeros" in report.describe() and "all numbers are 0 in float64 PyTorch" in report.describe()
    assert {check.name.rpartition(" ")[2] for check in report.checks} == {"zeros", "ratio", "values"}


def test_values_that_are_all_zero_are_compared(export):
    """A layer may add nothing; a graph in which it adds something fails."""
    zeros = Changed("blocks.1.attention.value.weight", lambda weight: 0 * weight)
    bundle = export(weights=zeros)
    report = verify_graph(bundle.path, bundle.manifest, SPEC, zeros, mode="quick")
    assert report.passed, report.describe()
    other = Changed("blocks.1.attention.value.weight", lambda weight: 0 * weight + 1e-3)
    report = verify_graph(bundle.path, bundle.manifest, SPEC, other, mode="quick")
    assert "prefill: cache ratio" in {check.name for check in report.failures()}
    path = bundle.path / "onnx" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    (node,) = (each for each in model.graph.node if "present.1.value" in each.output)
    node.output[list(node.output).index("present.1.value")] = "kept"
    model.graph.node.append(onnx.helper.make_node("Add", ["kept", "tiny"], ["present.1.value"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1e-6), "tiny"))
    onnx.save(model, path)
    report = verify_graph(bundle.path, bundle.manifest, SPEC, zeros, mode="quick")
    assert "prefill: cache ratio" in {check.name for check in report.failures()}


def scaled_errors(factors, longest_sum=0):
    """Return the failed checks of caches whose tensors err `factors[name]` times as much as eager PyTorch's."""
    random, geometry = np.random.default_rng(1), SPEC.cache
    tensors = geometry.tensors()
    expected = [random.standard_normal(tensor.shape(1, 5)[1:]) for tensor in tensors]
    errors = [1e-3 * random.standard_normal(each.shape) for each in expected]
    eager = [each + error for each, error in zip(expected, errors, strict=True)]
    graph = [
        each + factors.get(tensor.name, 1.0) * error
        for tensor, each, error in zip(tensors, expected, errors, strict=True)
    ]
    judge = Judge("fp32", longest_sum=longest_sum)
    judge.caches("prefill", geometry, *map(geometry.by_layer, (graph, eager, expected)))
    return [check.name for check in judge.checks if not check.passed]


def test_only_states_of_fixed_size_have_the_wider_limit():
    """Keys and values of a model with recurrent layers are held to the limit of any other model's."""
    assert scaled_errors({}) == []
    assert scaled_errors({"conv": 4.5, "recurrent": 4.5, "ssm": 4.5}) == []
    for name in ("key", "value"):
        assert scaled_errors({name: 3.5}) == ["prefill: cache ratio"]
        assert scaled_errors({name: 3.5}, longest_sum=4096) == [], "sums of many products"
        assert scaled_errors({name: 5.5}, longest_sum=4096) == ["prefill: cache ratio"]
    for name in ("conv", "recurrent", "ssm"):
        assert scaled_errors({name: 5.5}) == ["prefill: state ratio"]


def test_a_state_that_is_not_carried_is_found(export):
    """The gate is red and `locate` names the node."""
    bundle = export()
    path = bundle.path / "onnx" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    (node,) = (each for each in model.graph.node if "past_recurrent.0" in each.input)
    zeros = onnx.helper.make_node("Sub", ["past_recurrent.0"] * 2, ["forgotten"], name="forgets")
    node.input[list(node.input).index("past_recurrent.0")] = "forgotten"
    model.graph.node.insert(0, zeros)
    onnx.save(model, path)
    assert not verify_graph(bundle.path, bundle.manifest, SPEC, WEIGHTS, mode="quick").passed
    suspects = locate(bundle.path, bundle.manifest, SPEC, WEIGHTS).suspects
    assert any("LinearAttention" in str(each) or "forgets" in str(each) for each in suspects)
