"""xIELU, an activation with trained slopes, against transformers' own module in float64."""

import pytest
import torch
from transformers.activations import ACT2CLS

from edgeformer.config import FeedForwardConfig
from edgeformer.documents.schema import from_json
from edgeformer.errors import ConfigError
from edgeformer.layers import FeedForward
from edgeformer.layers.feed_forward import XIELU

X = torch.linspace(-6, 6, 4001, dtype=torch.float64)  # 0 is among them, and a step is larger than eps


def loaded(**changes):
    """Return the values of our module and of transformers', which get equal parameters but for `changes`."""
    theirs, ours = ACT2CLS["xielu"](dtype=torch.float64), XIELU(torch.float64)
    stored = {"alpha_p": torch.tensor([0.7]), "alpha_n": torch.tensor([-1.3]), "beta": torch.tensor(0.4)}
    stored["eps"] = torch.tensor(-1e-6)
    stored = {name: value.double() for name, value in stored.items()}
    theirs.load_state_dict(stored)
    ours.load_state_dict({name: (stored | changes)[name].reshape(1) for name in stored})
    with torch.no_grad():
        return ours(X), theirs(X)


def test_it_is_transformers_activation():
    ours, theirs = loaded()
    assert (ours - theirs).abs().max() < 1e-14


@pytest.mark.parametrize("name", ["alpha_p", "alpha_n", "beta"])
def test_the_comparison_sees_every_parameter(name):
    ours, theirs = loaded(**{name: torch.tensor([0.5], dtype=torch.float64)})
    assert (ours - theirs).abs().max() > 0.01


def test_the_comparison_sees_eps():
    ours, theirs = loaded(eps=torch.tensor([-0.1], dtype=torch.float64))
    assert (ours - theirs).abs().max() > 1e-3


def test_large_parameters_do_not_overflow_in_half_precision():
    module = XIELU(torch.float16)
    torch.nn.init.constant_(module.alpha_p, 30)
    assert module(torch.ones(1, dtype=torch.float16)).tolist() == [30]


def test_it_may_be_the_activation_of_a_gate():
    config = FeedForwardConfig(intermediate_size=8, activation="xielu", bias=False)
    assert FeedForward(config, 4, torch.float32)(torch.ones(1, 2, 4)).shape == (1, 2, 4)
    names = {name for name, _ in FeedForward(config, 4, torch.float32).named_parameters()}
    assert {"activation.alpha_p", "activation.alpha_n", "activation.beta", "activation.eps"} < names


def test_parameters_belong_to_xielu_alone():
    fields = {"intermediate_size": 8, "activation": "xielu", "bias": False}
    assert from_json(FeedForwardConfig, fields).activation == "xielu"
    with pytest.raises(ConfigError, match="up_activation is 'xielu'; it must be one of 'identity'"):
        from_json(FeedForwardConfig, fields | {"up_activation": "xielu"})
