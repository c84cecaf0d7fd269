"""Worked examples of activations, gated linear units and the feed-forward network."""

import pytest
import torch
from study_notes import as_printed, attention_config, block_config, given, model_config, seeded, tensor

from edgeformer.config import FeedForwardConfig
from edgeformer.layers import FeedForward
from edgeformer.manifest.accounting import account
from edgeformer.ops.activation import activate

X = tensor(-2.0, -0.5, 0.0, 0.5, 2.0)
EYE, NONE = torch.eye(5, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64)
ZERO = torch.zeros(5, dtype=torch.float64)

TABLES = {
    "relu": [0.0, 0.0, 0.0, 0.5, 2.0],
    "gelu": [-0.046, -0.154, 0.0, 0.346, 1.954],
    "silu": [-0.238, -0.189, 0.0, 0.311, 1.762],
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_activations(name):
    """Values at −2.0, −0.5, 0.0, 0.5 and 2.0."""
    assert as_printed(activate(name, X)) == TABLES[name]
    assert activate(name, tensor(-40.0, 40.0)).tolist() == pytest.approx([0, 40])


def test_gelu_of_minus_a_half():
    """The notes have −0.155, rounded twice: Φ(−0.5) to 0.309, and half of that, 0.1545, again. It is −0.154."""
    exact = activate("gelu", tensor(-0.5))
    assert as_printed(exact, 5) == [-0.15427]
    assert as_printed(exact) == [-0.154] != [-0.155]


def test_tables_tell_the_activations_apart():
    """The tanh approximation of GELU prints 1.955 at 2.0, not the 1.954 of the notes' x·Φ(x)."""
    assert as_printed(activate("gelu_tanh", X))[-1] == 1.955
    assert len({tuple(as_printed(activate(name, X))) for name in (*TABLES, "gelu_tanh")}) == 4


def test_factors_of_the_activations():
    """Φ(x) and sigmoid(x), by which x is multiplied; at zero both are a half."""
    away = X[X != 0]
    assert as_printed(activate("gelu", away) / away) == [0.023, 0.309, 0.691, 0.977]
    assert as_printed(activate("silu", away) / away) == [0.119, 0.378, 0.622, 0.881]
    assert as_printed(activate("sigmoid", X)) == [0.119, 0.378, 0.5, 0.622, 0.881]


def test_swish_is_smooth_and_not_monotonic():
    """It has "a smooth dip in the negative range", back to 0 far out; ReLU has none."""
    dip = activate("silu", tensor(-20.0, -1.278, 0.0))
    assert as_printed(dip) == [0.0, -0.278, 0.0]
    around = activate("silu", tensor(-1.278 - 0.01, -1.278, -1.278 + 0.01))
    assert around[1] < around[0] and around[1] < around[2]
    assert activate("relu", tensor(-20.0, -1.278)).tolist() == [0, 0]


def test_swish_with_beta():
    """x · sigmoid(beta · x): beta 1 is SiLU, 0 half of x, and a large one ReLU."""
    assert as_printed(activate("silu", X, 1.0)) == TABLES["silu"]
    assert torch.equal(activate("silu", X, 0.0), X / 2)
    assert as_printed(activate("silu", X, 100.0)) == TABLES["relu"]


def gated(activation, up_activation="identity", beta=1.0, bias=True, **weights):
    """A gated network of identity matrices and no biases, but for the given ones."""
    config = FeedForwardConfig(
        intermediate_size=5, activation=activation, up_activation=up_activation, beta=beta, bias=bias
    )
    matrices = {"gate.weight": EYE, "up.weight": EYE, "down.weight": EYE}
    biases = {"gate.bias": ZERO, "up.bias": ZERO, "down.bias": ZERO} if bias else {}
    return given(FeedForward(config, 5, torch.float64), matrices | biases | weights)


@pytest.mark.parametrize(
    ("variant", "activation", "table"),
    [
        ("GLU", "sigmoid", [0.119, 0.378, 0.5, 0.622, 0.881]),
        ("Bilinear", "identity", X.tolist()),
        ("ReGLU", "relu", TABLES["relu"]),
        ("GEGLU", "gelu", TABLES["gelu"]),
        ("SwiGLU", "silu", TABLES["silu"]),
    ],
)
def test_gated_linear_units(variant, activation, table):
    """activation(x·W + b) ⊗ (x·V + c), with W one and V zero, so that c multiplies the table of the activation."""
    ones, gates = torch.ones(5, dtype=torch.float64), tensor(1, 0, 1, 10, -1)
    open_wide = {"up.weight": NONE, "up.bias": ones}
    assert as_printed(gated(activation, **open_wide)(X)) == as_printed(tensor(*table)), variant
    # "Where x·V is near 0 it blocks what came through."
    some = gated(activation, **open_wide | {"up.bias": gates})(X)
    assert torch.allclose(some, gated(activation, **open_wide)(X) * gates)
    assert some[1] == 0


def test_gated_tanh_unit():
    """GTU: tanh(x·W + b) ⊗ sigmoid(x·V + c), sigmoid being our gate."""
    product = activate("tanh", X) * tensor(0.119, 0.378, 0.5, 0.622, 0.881)
    assert gated("sigmoid", "tanh")(X).tolist() == pytest.approx(product.tolist(), abs=5e-4)
    other_way = activate("tanh", 2 * X) * activate("sigmoid", X)
    assert torch.allclose(gated("sigmoid", "tanh", **{"up.weight": 2 * EYE})(X), other_way)


def test_swiglu_is_a_product():
    """A note has SwiGLU(x) = x·s + (1 − s)·(W·x + b) with s = sigmoid(beta·x), a blend; it is a product of both."""
    beta = 2.0
    swiglu = gated("silu", beta=beta, **{"up.weight": 3 * EYE, "up.bias": ZERO + 1})(X)
    s = activate("sigmoid", beta * X)
    assert torch.allclose(swiglu, X * s * (3 * X + 1))
    assert not torch.allclose(swiglu, X * s + (1 - s) * (3 * X + 1))


def test_swiglu_of_a_split_vector():
    """As code: "out, gate = split(x); out · swish(gate)", here 3 · Swish(2.0) and 5 · Swish(−2.0)."""
    half = torch.eye(2, dtype=torch.float64)
    left, right = torch.cat((half, half * 0), 1), torch.cat((half * 0, half), 1)
    config = FeedForwardConfig(intermediate_size=2, activation="silu", bias=False)
    weights = {"up.weight": left, "gate.weight": right, "down.weight": left.t()}
    network = given(FeedForward(config, 4, torch.float64), weights)
    assert as_printed(network(tensor(3, 5, 2.0, -2.0)), 2) == [5.28, -1.19, 0, 0]


def test_feed_forward_of_the_first_transformer():
    """max(0, x·W1 + b1)·W2 + b2: one word vector goes from 512 elements to 2048 and back, each word by itself."""
    config = FeedForwardConfig(intermediate_size=2048, activation="relu", bias=True, gated=False)
    network = seeded(FeedForward(config, 512, torch.float64))
    shapes = {name: tuple(value.shape[::-1]) for name, value in network.named_parameters()}  # torch stores W transposed
    assert shapes == {"up.weight": (512, 2048), "up.bias": (2048,), "down.weight": (2048, 512), "down.bias": (512,)}
    words = torch.randn(6, 512, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert network(words[:1]).shape == (1, 512)
    assert torch.allclose(network(words)[3], network(words[3]))


def test_relu_makes_negative_values_zero():
    config = FeedForwardConfig(intermediate_size=5, activation="relu", bias=True, gated=False)
    weights = {"up.weight": EYE, "up.bias": ZERO + 0.5, "down.weight": 2 * EYE, "down.bias": ZERO - 1}
    assert given(FeedForward(config, 5, torch.float64), weights)(X).tolist() == [-1, -1, 0, 1, 4]


def test_gated_networks_are_two_thirds_as_wide():
    """d_ff = 2/3 · 4 · d_model, about 2.67 · d_model: as many parameters as with 4 · d_model and no gate."""

    def parameters(inner, **kind):
        network = FeedForwardConfig(intermediate_size=inner, bias=False, **kind)
        block = block_config(attention_config(), feed_forward=network)
        return account(model_config(block, hidden_size=768)).bytes["feed_forward"] // 4

    plain = parameters(4 * 768, activation="relu", gated=False)
    narrower = 2 * 4 * 768 // 3
    assert (narrower, round(narrower / 768, 2)) == (2048, 2.67)
    assert parameters(narrower, activation="silu") == plain == 8 * 768**2
    assert parameters(4 * 768, activation="silu") == 12 * 768**2
