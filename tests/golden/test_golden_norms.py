"""Worked examples of LayerNorm, RMSNorm and BatchNorm.

The notes give formulas; [1, 7, 1, 7] makes them whole numbers: mean 4, standard deviation 3, root mean square 5.
"""

import pytest
import torch
from study_notes import attention_config, block_config, given, model_config, tensor

from edgeformer.config import NormConfig
from edgeformer.errors import ConfigError
from edgeformer.layers import make_norm
from edgeformer.manifest.accounting import account

X = tensor(1, 7, 1, 7)


def norm(kind, eps=0.0, **weights):
    config = NormConfig(kind=kind, eps=eps, weight="weight" in weights, bias="bias" in weights)
    return given(make_norm(config, 4, dtype=torch.float64), weights)


def test_layer_norm_has_mean_zero_and_variance_one():
    """(x − mean) / sqrt(variance + eps), the variance that of all D elements, divided by D."""
    assert norm("layer_norm")(X).tolist() == pytest.approx([-1, 1, -1, 1])
    assert norm("layer_norm", eps=16)(X).tolist() == pytest.approx([-0.6, 0.6, -0.6, 0.6])
    # Divided by D − 1 the variance were 12.
    assert norm("layer_norm")(X).tolist() != pytest.approx([value / 12**0.5 for value in (-3, 3, -3, 3)])


def test_layer_norm_scales_and_shifts():
    """y = gamma · x̂ + beta."""
    layer_norm = norm("layer_norm", weight=tensor(1, 2, 3, 4), bias=tensor(10, 20, 30, 40))
    assert layer_norm(X).tolist() == pytest.approx([9, 22, 27, 44])


def test_rms_norm_divides_by_the_root_mean_square():
    assert norm("rms_norm")(X).tolist() == pytest.approx([0.2, 1.4, 0.2, 1.4])
    assert norm("rms_norm", weight=tensor(1, 2, 3, 4))(X).tolist() == pytest.approx([0.2, 2.8, 0.6, 5.6])


def test_epsilon_stands_inside_the_root():
    """One note has sqrt(mean(x²) + eps), as LLaMA computes it and so do we; two others have sqrt(mean(x²)) + eps."""
    assert norm("rms_norm", eps=24)(X).tolist() == pytest.approx([1 / 7, 1, 1 / 7, 1])
    assert norm("rms_norm", eps=24)(X).tolist() != pytest.approx([1 / 29, 7 / 29, 1 / 29, 7 / 29])


def test_rms_norm_does_not_centre():
    """A note gives RMSNorm's output a mean of 0 and a variance of 1; that is LayerNorm's. Its mean square is 1."""
    y = norm("rms_norm")(X)
    assert y.square().mean().item() == pytest.approx(1)
    assert y.mean().item() == pytest.approx(0.8) and y.var(correction=0).item() == pytest.approx(0.36)
    # Only where the mean is zero already are both norms one.
    centred = X - X.mean()
    assert torch.allclose(norm("rms_norm")(centred), norm("layer_norm")(centred))


def test_rms_norm_has_no_bias():
    """One note adds beta to RMSNorm; others, and the paper, do without: "fewer parameters (no bias term to store)"."""
    with pytest.raises(ConfigError, match="bias"):
        NormConfig(kind="rms_norm", eps=1e-5, bias=True)

    def parameters(norm):
        blocks = (block_config(attention_config(8, 64), norm=norm),) * 6
        return account(model_config(*blocks, hidden_size=512)).bytes["norms"] // 4

    assert parameters(NormConfig(kind="layer_norm", eps=1e-5, bias=True)) == 6 * 2 * 1024
    assert parameters(NormConfig(kind="rms_norm", eps=1e-5)) == 6 * 2 * 512


def test_batch_norm_normalises_features_over_samples():
    """Mean and variance of each feature over the batch, here of four samples; a decoder runs with stored ones.

    The notes take statistics of each time step and feature; stored ones are of features alone, else every position
    would need its own.
    """
    batch = torch.stack((X, 10 * X, X + 100, -X), 1)  # features in columns
    stored = {"running_mean": batch.mean(0), "running_var": batch.var(0, correction=0)}
    normed = norm("batch_norm", **stored)(batch)
    expected = tensor(-1, 1, -1, 1)
    assert torch.allclose(normed, torch.stack((expected, expected, expected, -expected), 1))
    scaled = norm("batch_norm", weight=tensor(1, 2, 3, 4), bias=tensor(0, 0, 0, 50), **stored)(batch)
    assert scaled[0].tolist() == pytest.approx([-1, -2, -3, 54])
    assert norm("batch_norm", eps=16.0, **stored)(batch)[:, 0].tolist() == pytest.approx([-0.6, 0.6, -0.6, 0.6])


def test_layer_norm_knows_one_token_alone():
    """It "does not depend on the size of the batch", nor on other tokens."""
    layer_norm = norm("layer_norm", weight=tensor(1, 2, 3, 4), bias=tensor(10, 20, 30, 40))
    text = torch.stack((X, 10 * X, X + 100, -X))
    assert torch.allclose(layer_norm(text)[2], layer_norm(text[2]))
    # Scale and offset of a token are lost: three of these become one.
    assert torch.allclose(layer_norm(text)[:3], layer_norm(X).expand(3, -1))
