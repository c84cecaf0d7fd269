"""The router's and the experts' ops against their formulas, one token at a time, and their ONNX bodies against them."""

import math

import numpy as np
import pytest
import torch
from test_function_bodies import body_of, check, random

from edgeformer import ops
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import canonical_nodes
from edgeformer.export.lower.dense_experts import emit_dense_experts
from edgeformer.ops.activation import ACTIVATIONS

ROUTER = {
    "experts_per_token": 3, "scoring": "softmax", "normalized": True, "sum_epsilon": 0.0, "sum_floor": 0.0,
    "scale": 1.0, "groups": 1, "groups_per_token": 1, "group_score": "max", "jitter": 0.0,
}  # fmt: skip
ROUTERS = {
    "softmax": {},
    "softmax, not normalized": {"normalized": False},
    "one expert": {"experts_per_token": 1},
    "every expert": {"experts_per_token": 8},
    "sigmoid": {"scoring": "sigmoid", "normalized": False},
    "sigmoid, normalized": {"scoring": "sigmoid", "sum_epsilon": 2**-20, "scale": 2.5},
    "floor of the sum": {"sum_floor": 0.5},
    "best groups by maximum": {"groups": 4, "groups_per_token": 2, "normalized": False},
    "best groups by two": {"scoring": "sigmoid", "groups": 2, "group_score": "top2_sum"},
    "sparse mixer": {"scoring": "sparse_mixer", "experts_per_token": 2, "normalized": False, "jitter": 2**-3},
}


def routed(logits, bias, factors, attributes):
    """Experts and weights of one token, in plain Python: logits, bias and factors are lists of numbers."""
    a, count = {**ROUTER, **attributes}, len(logits)
    if a["scoring"] == "sparse_mixer":
        chosen, weights = [], []
        for _ in range(a["experts_per_token"]):
            left = {e: logits[e] for e in range(count) if e not in chosen}
            best = max(left, key=left.get)
            top = left[best]
            near = [each for each in left.values() if (top - each) / max(abs(each), top) <= 2 * a["jitter"]]
            weights.append(1 / sum(math.exp(each - top) for each in near))
            chosen.append(best)
    else:
        exponentials = [math.exp(each) for each in logits]
        softmax = a["scoring"] == "softmax"
        scores = [x / sum(exponentials) if softmax else x / (1 + x) for x in exponentials]
        ranked = [score + b for score, b in zip(scores, bias, strict=True)]
        size = count // a["groups"]
        groups = [sorted(ranked[g * size : g * size + size], reverse=True) for g in range(a["groups"])]
        value = [sum(group[: 2 if a["group_score"] == "top2_sum" else 1]) for group in groups]
        best = sorted(range(a["groups"]), key=lambda g: -value[g])[: a["groups_per_token"]]
        open_ = [e for e in range(count) if e // size in best]
        chosen = sorted(open_, key=lambda e: -ranked[e])[: a["experts_per_token"]]
        weights = [scores[e] for e in chosen]
        if a["normalized"]:
            total = max(sum(weights) + a["sum_epsilon"], a["sum_floor"])
            weights = [weight / total for weight in weights]
    return chosen, [a["scale"] * factors[e] * weight for e, weight in zip(chosen, weights, strict=True)]


@pytest.mark.parametrize("learned", [False, True], ids=["plain", "bias and factors"])
@pytest.mark.parametrize("name", ROUTERS)
def test_router(name, learned):
    attributes = ROUTER | ROUTERS[name]
    logits, biased = 2 * random(7, 8), learned and attributes["scoring"] != "sparse_mixer"
    bias, factors = random(8, seed=1) if biased else None, random(8, seed=2) if learned else None
    tensors = {"logits": logits, "choice_bias": bias, "expert_scale": factors}
    experts, weights = check(ops.expert_router, tensors, attributes)
    for row in range(7):
        expected = routed(
            logits[row].tolist(),
            [0.0] * 8 if bias is None else bias.tolist(),
            [1.0] * 8 if factors is None else factors.tolist(),
            ROUTERS[name],
        )
        assert experts[row].tolist() == expected[0]
        assert weights[row].tolist() == pytest.approx(expected[1], abs=1e-12)


def test_a_router_that_does_not_normalize_is_another_one():
    tensors = {"logits": random(7, 8), "choice_bias": None, "expert_scale": None}
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        _, weights = body_of(ops.expert_router, tensors, ROUTER | {"normalized": False})(logits=tensors["logits"])
        np.testing.assert_allclose(weights, ops.expert_router(**tensors, **ROUTER)[1], rtol=0, atol=1e-12)


def test_a_choice_bias_changes_the_choice_and_not_the_weights():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    bias = torch.tensor([0.0, -9.0, 0.0, 0.0], dtype=torch.float64)
    plain = ROUTER | {"experts_per_token": 2, "scoring": "sigmoid", "normalized": False}
    experts, weights = ops.expert_router(logits, bias, None, **plain)
    assert experts.tolist() == [[0, 2]]
    assert torch.equal(weights, logits[:, [0, 2]].sigmoid())


def test_scores_rounded_to_one_do_not_hide_larger_logits():
    logits = torch.tensor([[50.0, 60.0, 40.0]])
    experts, _ = ops.expert_router(logits, None, None, **ROUTER | {"experts_per_token": 1, "scoring": "sigmoid"})
    assert experts.tolist() == [[1]]


EXPERTS = {
    "activation": "silu", "up_activation": "identity", "beta": 1.0, "limit": 0.0, "up_offset": 0.0,
    "weighted_input": False,
}  # fmt: skip
NETWORKS = {
    "swiglu": {},
    "gpt-oss": {"beta": 1.5, "limit": 0.5, "up_offset": 1.0, "biased": True},
    "weighted input": {"weighted_input": True},
    "two activations": {"activation": "sigmoid", "up_activation": "tanh"},
    **{
        f"not gated, {name}": {"activation": name, "gated": False, "biased": True}
        for name in ACTIVATIONS
        if name != "gelu"  # onnxruntime has no Erf in float64
    },
}


def expert_tensors(tokens=5, gated=True, biased=False):
    hidden, inner, experts, used = 8, 6, 4, 2
    x, logits = random(tokens, hidden), random(tokens, experts, seed=1)
    tensors = {"x": x, "experts": logits.topk(used).indices, "weights": random(tokens, used, seed=2)}
    sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    for seed, (name, (outputs, inputs)) in enumerate(sizes.items()):
        absent = name == "gate" and not gated
        tensors[name] = None if absent else random(experts, outputs, inputs, seed=3 + seed)
        tensors[f"{name}_bias"] = random(experts, outputs, seed=6 + seed) if biased and not absent else None
    return tensors


def network(rows, tensors, expert, a):
    def linear(name, x):
        bias = tensors[f"{name}_bias"]
        return tensors[name][expert] @ x + (0 if bias is None else bias[expert])

    def act(name, x):
        return x * torch.sigmoid(a["beta"] * x) if name == "silu" else ACTIVATIONS[name](x)

    up = linear("up", rows)
    if tensors["gate"] is None:
        return linear("down", act(a["activation"], up))
    gate, limit = linear("gate", rows), a["limit"] or math.inf
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return linear("down", act(a["activation"], gate) * (act(a["up_activation"], up) + a["up_offset"]))


def by_products_over_all(model, form):
    """Write mixtures of experts out as providers without loops have them."""
    for node in canonical_nodes(model, "MixtureOfExperts"):
        emit = NodeBuilder.replacing(node, "emitted by a test")
        replace_node(node, emit, [emit_dense_experts(emit, model, node, None)])


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("name", NETWORKS)
def test_experts(name, tokens):
    given = dict(NETWORKS[name])
    tensors = expert_tensors(tokens, given.pop("gated", True), given.pop("biased", False))
    attributes = EXPERTS | given
    (actual,) = check(ops.mixture_of_experts, tensors, attributes)
    check(ops.mixture_of_experts, tensors, attributes, decompose=by_products_over_all)
    for row in range(tokens):
        expected = torch.zeros(8, dtype=torch.float64)
        for expert, weight in zip(tensors["experts"][row], tensors["weights"][row], strict=True):
            x = tensors["x"][row]
            if attributes["weighted_input"]:
                expected += network(weight * x, tensors, expert, attributes)
            else:
                expected += weight * network(x, tensors, expert, attributes)
        np.testing.assert_allclose(actual[row], expected, rtol=0, atol=1e-12)


def test_experts_with_gelu():
    tensors = {
        name: tensor.float() if tensor is not None and tensor.is_floating_point() else tensor
        for name, tensor in expert_tensors().items()
    }
    check(ops.mixture_of_experts, tensors, EXPERTS | {"activation": "gelu"}, tolerance=1e-5)
    wrong = ops.mixture_of_experts(**tensors, **EXPERTS | {"activation": "gelu_tanh"})
    assert float((wrong - ops.mixture_of_experts(**tensors, **EXPERTS | {"activation": "gelu"})).abs().max()) > 1e-4


def test_the_wrong_order_of_experts_is_noticed():
    tensors = expert_tensors()
    right = ops.mixture_of_experts(**tensors, **EXPERTS)
    wrong = ops.mixture_of_experts(**tensors | {"down": tensors["down"].flip(0)}, **EXPERTS)
    assert float((right - wrong).abs().max()) > 0.1


def test_only_chosen_experts_are_computed():
    """Weights of an expert that no token chose may be anything, and padding that is not finite harms nobody."""
    tensors = expert_tensors()
    tensors["experts"] = tensors["experts"] % 2
    tensors["experts"][:, 1] = 1 - tensors["experts"][:, 0]
    spoiled = {**tensors, "x": tensors["x"].clone()}
    spoiled["x"][4] = torch.nan
    for name in ("gate", "up", "down"):
        spoiled[name] = tensors[name].clone()
        spoiled[name][2:] = torch.nan
    expected = ops.mixture_of_experts(**tensors, **EXPERTS)[:4]
    feeds = {name: tensor for name, tensor in spoiled.items() if tensor is not None}
    (body,) = body_of(ops.mixture_of_experts, spoiled, EXPERTS)(**feeds)
    for actual in (body, ops.mixture_of_experts(**spoiled, **EXPERTS)):
        np.testing.assert_allclose(actual[:4], expected, rtol=0, atol=1e-12)
