"""Worked examples of positions: sinusoids, learned vectors, rotations, clipped relative distances."""

import cmath
import math
import subprocess
import sys

import pytest
import torch
from study_notes import as_printed, attend, attention_config, decoder, given, model_config, tensor

from edgeformer import ops
from edgeformer.config import LearnedPositions, RotaryConfig, ShawConfig, SinusoidalPositions
from edgeformer.layers import Attention, rotary_table
from edgeformer.layers.position import rotary_frequencies, sinusoidal_table

I_LOVE_AI = tensor([1.0, 0.5, -1.0, 0.3], [0.8, -0.2, 0.3, 0.7], [0.1, 0.9, -0.4, 0.5])


def test_sinusoids_of_four_dimensions():
    """Encodings of positions 0, 1 and 2 with d_model = 4; in "I am a student." those of "I", "am" and "a"."""
    rows = sinusoidal_table(SinusoidalPositions(), 3, 4)
    assert rows[0].tolist() == [0, 1, 0, 1]
    assert rows[1].tolist() == pytest.approx([math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)], abs=1e-15)
    # The notes print cos(0.01) = 0.99995 and cos(0.02) = 0.9998 as 0.999, cut off instead of rounded: both are 1.000.
    assert as_printed(rows[1]) == [0.841, 0.540, 0.010, 1.000] != [0.841, 0.540, 0.010, 0.999]
    assert as_printed(rows[2]) == [0.909, -0.416, 0.020, 1.000] != [0.909, -0.416, 0.020, 0.999]
    assert (rows[1:, 3] * 1000).floor().tolist() == [999, 999]
    # All sines before all cosines is another layout.
    apart = sinusoidal_table(SinusoidalPositions(interleaved=False), 3, 4)
    assert as_printed(apart[1]) == [0.841, 0.010, 0.540, 1.000]


def test_i_love_ai_with_its_positions():
    """The embeddings of the words of "I love AI." with their encodings added, the first word at position 0."""
    config = model_config(vocab_size=3, position_embedding=SinusoidalPositions())
    x, _ = decoder(config, {"embedding.weight": I_LOVE_AI}).embed(torch.tensor([[0, 1, 2]]), torch.ones(1, 3).long())
    assert as_printed(x[0, 0]) == [1.0, 1.5, -1.0, 1.3]
    # The last numbers in the notes carry the cosines that were cut off: 1.699 and 1.499.
    assert as_printed(x[0, 1]) == [1.641, 0.340, 0.310, 1.700] != [1.641, 0.340, 0.310, 1.699]
    assert as_printed(x[0, 2]) == [1.009, 0.484, -0.380, 1.500] != [1.009, 0.484, -0.380, 1.499]


def test_learned_positions_are_added_too():
    """A "learnable vector for each position", here the same ones as above as far as they are printed."""
    table = tensor([0, 1, 0, 1], [0.841, 0.540, 0.010, 1.000], [0.909, -0.416, 0.020, 1.000])
    config = model_config(vocab_size=3, context_length=3, position_embedding=LearnedPositions(rows=3))
    model = decoder(config, {"embedding.weight": I_LOVE_AI, "position_embedding.weight": table})
    x, _ = model.embed(torch.tensor([[0, 1, 2]]), torch.ones(1, 3).long())
    assert as_printed(x[0, 2]) == [1.009, 0.484, -0.380, 1.500]
    # The same word elsewhere gets another vector.
    moved, _ = model.embed(torch.tensor([[2, 1, 0]]), torch.ones(1, 3).long())
    assert as_printed(moved[0, 0]) == [0.1, 1.9, -0.4, 1.5]


def test_sinusoids_of_a_shifted_position_are_a_linear_map_of_it():
    """sin(a + b) = sin(a)·cos(b) + cos(a)·sin(b): the components at p and k give those at p + k."""
    rows = sinusoidal_table(SinusoidalPositions(), 40, 8)
    sin, cos = rows[:, 0::2], rows[:, 1::2]
    at, by = 23, 14
    assert torch.allclose(sin[at + by], sin[at] * cos[by] + cos[at] * sin[by], atol=1e-14, rtol=0)
    assert torch.allclose(cos[at + by], cos[at] * cos[by] - sin[at] * sin[by], atol=1e-14, rtol=0)


def test_sinusoids_depend_on_no_length():
    """They "generalise to any length": a longer table begins with the shorter one, and no row fades with position.

    One note holds that high frequencies "tend to zero as positions grow": sin² + cos² of every pair stays 1.
    """
    rows = sinusoidal_table(SinusoidalPositions(), 5000, 8)
    assert torch.allclose(rows[:3], sinusoidal_table(SinusoidalPositions(), 3, 8), atol=1e-15, rtol=0)
    assert torch.allclose(rows.square().sum(-1), torch.tensor(4.0, dtype=torch.float64))


def test_products_of_sinusoids_depend_on_distance():
    """A note says that the inner product of two encodings shrinks as their distance grows.

    It depends on the distance alone; at d = 4 it is cos(k) + cos(k / 100), which is larger at distance 6 than at 3.
    """
    rows = sinusoidal_table(SinusoidalPositions(), 40, 4)
    products = rows @ rows.t()
    assert products[0, 3].item() == pytest.approx(math.cos(3) + math.cos(0.03))
    assert products[20, 23].item() == pytest.approx(products[0, 3].item())
    assert products[0, 3] < products[0, 6] < products[0, 0]


def rotary(dim, interleaved=True):
    return RotaryConfig(rotary_dim=dim, base=10_000.0, interleaved=interleaved, scaling=None)


def turned(x, position, interleaved=True):
    """One vector as the token at `position`."""
    cos, sin = rotary_table(rotary(len(x), interleaved), position + 1)
    return ops.rotary_embedding(x[None, None], torch.tensor([[position]]), cos, sin, 1, interleaved)[0, 0]


@pytest.mark.parametrize("position", [0, 1, 2, 7])
def test_rotation_of_two_dimensions(position):
    """[q0·cos(m) − q1·sin(m), q0·sin(m) + q1·cos(m)]: the columns of the rotation matrix at position m."""
    assert turned(tensor(1, 0), position).tolist() == pytest.approx([math.cos(position), math.sin(position)])
    assert turned(tensor(0, 1), position).tolist() == pytest.approx([-math.sin(position), math.cos(position)])
    # sin(1) and cos(1) are the 0.841 and 0.540 of the sinusoids.
    assert as_printed(turned(tensor(1, 0), 1)) == [0.540, 0.841]


def test_rotation_is_multiplication_by_a_complex_number():
    """Even elements are real parts, odd ones imaginary; pair i turns by m / 10000^(2i / d)."""
    x, position = tensor(1.0, 0.5, -1.0, 0.3), 5
    first, second = complex(1.0, 0.5) * cmath.exp(5j), complex(-1.0, 0.3) * cmath.exp(0.05j)
    expected = [first.real, first.imag, second.real, second.imag]
    assert turned(x, position).tolist() == pytest.approx(expected)
    # Another note pairs element i with i + d/2: the same rotation of elements in another order, not of the same ones.
    halves = [0, 2, 1, 3]
    assert torch.allclose(turned(x[halves], position, interleaved=False), turned(x, position)[halves])
    assert not torch.allclose(turned(x, position, interleaved=False), turned(x, position))


def test_frequencies_fall():
    """One note writes theta_i = 10000^(2(i − 1)/d), i from 1; the exponent's sign is lost: it is −2(i − 1)/d."""
    frequencies = rotary_frequencies(rotary(4)).tolist()
    assert frequencies == pytest.approx([1, 0.01])
    assert frequencies != pytest.approx([10_000.0 ** (2 * (i - 1) / 4) for i in (1, 2)])


@pytest.mark.parametrize("interleaved", [True, False])
def test_products_of_rotated_vectors_know_the_distance_alone(interleaved):
    """In "the cat sat on the mat" the score of "cat" and "mat" knows that they are 4 apart, not where they stand."""
    sentence = ["the", "cat", "sat", "on", "the", "mat"]
    cat, mat = sentence.index("cat"), sentence.index("mat")
    assert mat - cat == 4
    q, k = tensor(1.0, 0.5, -1.0, 0.3), tensor(0.8, -0.2, 0.3, 0.7)

    def score(query_position, key_position):
        return (turned(q, query_position, interleaved) @ turned(k, key_position, interleaved)).item()

    assert score(1000 + cat, 1000 + mat) == pytest.approx(score(cat, mat))
    assert score(0, mat - cat) == pytest.approx(score(cat, mat))  # <q·R_m, k·R_n> = <q, k·R_(n−m)>
    assert score(cat, mat + 1) != pytest.approx(score(cat, mat), abs=0.01)
    assert turned(q, 9, interleaved).norm().item() == pytest.approx(q.norm().item())


def shaw(tokens, reach, values, weights):
    """One head that sees `tokens` one-hot tokens and has, but for `weights`, zeros."""
    config = attention_config(head_dim=5, relative=ShawConfig(max_distance=reach, values=values))
    attention = Attention(config, 5, torch.float64)
    zeros = {name: torch.zeros_like(value) for name, value in attention.state_dict().items()}
    eye = torch.eye(5, dtype=torch.float64)
    return attend(given(attention, zeros | {"output.weight": eye} | weights), eye[:tokens])


@pytest.mark.parametrize(
    ("reach", "rows"),
    [
        (1, [[0, 1, 0], [1, 1, 0], [2, 1, 0], [3, 1, 0], [4, 1, 0]]),
        (2, [[0, 0, 1, 0, 0], [0, 1, 1, 0, 0], [1, 1, 1, 0, 0], [2, 1, 1, 0, 0], [3, 1, 1, 0, 0]]),
    ],
)
def test_distances_are_clipped(reach, rows):
    """a_ij = w_clip(j − i, k): with flat attention, each token averages the relations −k … k that its keys stand in.

    In "The cat eats", "cat" is the word before "eats": relation −1, and with k = 1 so is "The". The rows count them.
    """
    relations = torch.eye(5, dtype=torch.float64)[: 2 * reach + 1]
    output = shaw(5, reach, True, {"value_relations": relations})
    counts = output[:, : 2 * reach + 1] * torch.arange(1, 6, dtype=torch.float64)[:, None]
    assert torch.allclose(counts, tensor(*rows))


def test_relations_to_keys_are_weighed_by_the_query():
    """The notes write e_ij = q·k / sqrt(d) + a_ij, a score and a vector; it is q·(k + a_ij) / sqrt(d)."""
    eye = torch.eye(5, dtype=torch.float64)
    relations = torch.zeros(3, 5, dtype=torch.float64)
    relations[0, 2] = 0.7  # what the third token's query finds in every key before it

    def third_token(strength):
        weights = {"query.weight": strength * eye, "value.weight": eye, "key_relations": relations}
        return shaw(3, 1, False, weights)[2].log()

    for strength in (0.0, 1.0, 10.0):
        scores = third_token(strength)
        assert (scores[:2] - scores[2]).tolist() == pytest.approx([strength * 0.7 / math.sqrt(5)] * 2)


def test_values_carry_their_relation():
    """z_i = sum of alpha_ij · (value_j + a_ij)."""
    eye = torch.eye(5, dtype=torch.float64)
    relations = tensor([0, 0, 0, 6, 0], [0, 0, 0, 0, 6], [9, 9, 9, 9, 9])
    output = shaw(3, 1, True, {"value.weight": 3 * eye, "value_relations": relations})
    assert torch.allclose(output[2], tensor(1, 1, 1, 4, 2))  # thirds of three values, of two earlier keys, of itself


FIRST_SINES = """
import numpy as np
import torch
import edgeformer.ops
angles = torch.outer(torch.arange(256, dtype=torch.float64), 10000.0 ** -(torch.arange(0, 192, 2).double() / 192))
print(float(np.abs(angles.sin().numpy() - np.sin(angles.numpy())).max()))
"""


@pytest.mark.slow
def test_the_first_table_of_a_process_has_all_digits():
    """MKL's first call from two threads lost half of them in one of five processes; `edgeformer.ops` calls first."""
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", FIRST_SINES], capture_output=True, text=True, check=True)
        assert float(done.stdout) < 1e-12
