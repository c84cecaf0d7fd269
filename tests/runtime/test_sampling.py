"""Sampling gives the distributions of transformers' logits processors, draws from them, and repeats under a seed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from edgeformer.errors import RequestError
from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.sampling.logits_rules import penalise
from edgeformer.runtime.generation.sampling.sampling import Sampler, Sampling, distribution, exclude_top_choices

# transformers compares the sum of the dropped tail with 1 - p, this package that of the kept head with p: they agree to
# the rounding of float64.
TOLERANCE = 1e-12

OPTIONS = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.0, "typical_p": 0.6},
    {"temperature": 1.4, "top_k": 20, "min_p": 0.05, "typical_p": 0.8},
    {"temperature": 1.5, "top_k": 7, "top_p": 0.6},
    {"temperature": 0.6, "top_p": 0.9, "min_p": 0.1},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.7, "min_p": 0.3},
    {"temperature": 1.3, "repetition_penalty": 1.8},
    {"temperature": 0.8, "repetition_penalty": 0.6, "top_k": 9},
    {"temperature": 1.7, "top_k": 12, "top_p": 0.75, "min_p": 0.15, "repetition_penalty": 1.4},
    {"temperature": 1.2, "top_h": 0.6},
    {"temperature": 1.2, "epsilon_cutoff": 0.02},
    {"temperature": 1.2, "eta_cutoff": 0.1},
    {"temperature": 3.0, "top_h": 0.9, "top_k": 30, "epsilon_cutoff": 0.015, "eta_cutoff": 0.05},
]


def _logits(seed, size=40):
    return (3 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def _penalised(logits, seen, penalty):
    """A copy of logits [V] after the repetition penalty for the tokens that were seen."""
    changed = logits[None].copy()
    penalise(changed, np.array([sorted(seen)], np.int64), penalty)
    return changed[0]


ORDER = ("temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


class Chooser:
    """The part of the generation loop that chooses the tokens of one row, the repetition penalty included."""

    def __init__(self, config, prompt):
        self._row = Row(prompt, 100, frozenset(), config.sampling, None, rules=config.rules)

    def choose(self, logits):
        self._row.advance(logits)
        return self._row.tokens[-1]


def _transformers(logits, sampling, seen=(), order=ORDER):
    """Probabilities after the processors, in the order in which `generate` puts them unless another is given.

    The penalty works on the float32 logits, as `generate` has them; the rest in float64, to compare the form alone.
    """
    scores = torch.from_numpy(logits)[None]
    ids = torch.tensor([list(seen)], dtype=torch.int64)
    if getattr(sampling, "repetition_penalty", 1) != 1:
        scores = RepetitionPenaltyLogitsProcessor(penalty=float(sampling.repetition_penalty))(ids, scores)
    scores = scores.double()
    warpers = {
        "temperature": TemperatureLogitsWarper(float(sampling.temperature)),
        "top_k": TopKLogitsWarper(sampling.top_k) if sampling.top_k else None,
        "top_p": TopPLogitsWarper(float(sampling.top_p)) if sampling.top_p < 1 else None,
        "min_p": MinPLogitsWarper(float(sampling.min_p)) if sampling.min_p else None,
        "typical_p": TypicalLogitsWarper(float(sampling.typical_p)) if sampling.typical_p < 1 else None,
        "top_h": TopHLogitsWarper(float(sampling.top_h)) if sampling.top_h else None,
        "epsilon_cutoff": EpsilonLogitsWarper(sampling.epsilon_cutoff) if sampling.epsilon_cutoff else None,
        "eta_cutoff": EtaLogitsWarper(sampling.eta_cutoff) if sampling.eta_cutoff else None,
    }
    for name in order:
        if warpers[name] is not None:
            scores = warpers[name](ids, scores)
    return scores.softmax(-1)[0].numpy()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 200),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 250),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    typical_p=st.floats(0.01, 1),
)
def test_the_distribution_is_that_of_transformers(seed, size, temperature, top_k, top_p, min_p, typical_p):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    logits = _logits(seed, size)
    np.testing.assert_allclose(distribution(logits, sampling), _transformers(logits, sampling), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_the_distribution_is_transformers_after_the_penalty(options, seed):
    config = GenerationConfig(**options)
    logits, seen = _logits(seed), {1, 5, 8, 13, 39}
    penalised = _penalised(logits, seen, config.repetition_penalty)
    expected = _transformers(logits, config, seen)
    np.testing.assert_allclose(distribution(penalised, config.sampling), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "order",
    [
        ("top_p", "temperature", "top_k", "min_p", "typical_p"),
        ("temperature", "top_p", "top_k", "min_p", "typical_p"),
        ("temperature", "min_p", "top_k", "top_p", "typical_p"),
        ("temperature", "top_k", "min_p", "top_p", "typical_p"),
        ("temperature", "typical_p", "top_k", "top_p", "min_p"),
    ],
    ids=str,
)
def test_the_comparison_notices_another_order(order):
    # Negative control. Temperature and top-k are the one pair that may change places.
    sampling = Sampling(temperature=1.7, top_k=12, top_p=0.75, min_p=0.15, typical_p=0.7)
    differences = [
        np.abs(distribution(logits, sampling) - _transformers(logits, sampling, order=order)).max()
        for logits in map(_logits, range(20))
    ]
    assert max(differences) > 1e6 * TOLERANCE


@given(seed=st.integers(0, 10_000), penalty=st.floats(0.1, 5), seen=st.sets(st.integers(0, 39)))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_penalty_is_that_of_transformers_bit_for_bit(seed, penalty, seen):
    logits = _logits(seed)
    ids = torch.tensor([list(seen)], dtype=torch.int64)
    expected = RepetitionPenaltyLogitsProcessor(penalty=penalty)(ids, torch.from_numpy(logits)[None])[0]
    np.testing.assert_array_equal(_penalised(logits, seen, penalty), expected.numpy())


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 200),
    top_h=st.floats(0.01, 1),
    top_k=st.integers(0, 150),
    epsilon=st.floats(0, 0.5),
    eta=st.floats(0, 0.5),
)
def test_rare_filters_are_those_of_transformers(seed, size, top_h, top_k, epsilon, eta):
    sampling = Sampling(temperature=1.5, top_h=top_h, top_k=top_k, epsilon_cutoff=epsilon, eta_cutoff=eta)
    logits = _logits(seed, size)
    np.testing.assert_allclose(distribution(logits, sampling), _transformers(logits, sampling), rtol=0, atol=1e-7)


def test_the_order_of_rare_filters_matters():
    # Negative control: cutoffs before top-k keep other tokens than after it.
    sampling = Sampling(temperature=2.5, top_h=0.9, top_k=6, eta_cutoff=0.2)
    other = ("temperature", "top_k", "eta_cutoff", "top_h")
    differences = [
        np.abs(distribution(logits, sampling) - _transformers(logits, sampling, order=other)).max()
        for logits in map(_logits, range(20))
    ]
    assert max(differences) > 1e-3


def test_the_penalty_lowers_tokens_of_either_sign():
    logits = np.array([2, -2, 2, -2], np.float32)
    np.testing.assert_array_equal(_penalised(logits, {0, 1}, 4.0), np.array([0.5, -8, 2, -2], np.float32))
    Chooser(GenerationConfig(repetition_penalty=4.0), [0, 1]).choose(logits)
    np.testing.assert_array_equal(logits, [2, -2, 2, -2])


def test_top_k_keeps_every_token_tied_with_the_last():
    sampling = Sampling(temperature=1.0, top_k=2)
    logits = np.array([3, 1, 2, 2, 0], np.float32)
    probabilities = distribution(logits, sampling)
    assert list(np.flatnonzero(probabilities)) == [0, 2, 3]
    np.testing.assert_allclose(probabilities, _transformers(logits, sampling), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}], ids=str)
def test_the_narrowest_filters_leave_the_most_likely_token(options):
    logits = _logits(3)
    probabilities = distribution(logits, Sampling(temperature=5.0, **options))
    assert list(np.flatnonzero(probabilities)) == [logits.argmax()]
    assert probabilities.max() == 1


def test_logits_of_any_size_give_probabilities():
    for logits in (np.array([1e30, -1e30, 0], np.float32), np.array([-np.inf, 0, -np.inf], np.float32)):
        probabilities = distribution(logits, Sampling(temperature=0.01, top_p=0.9, min_p=0.1))
        assert probabilities.sum() == 1
        assert probabilities.argmax() == logits.argmax()


def test_greedy_takes_the_most_likely_token_after_the_penalty():
    logits = np.array([1.0, 3.0, 2.9, -1.0], np.float32)
    plain, penalised = Chooser(GenerationConfig(), []), Chooser(GenerationConfig(repetition_penalty=1.2), [])
    assert [plain.choose(logits) for _ in range(3)] == [1, 1, 1]
    # Chosen tokens count as seen: 3.0 falls to 2.5, then 2.9 to 2.4.
    assert [penalised.choose(logits) for _ in range(3)] == [1, 2, 1]


def test_tokens_of_the_prompt_are_penalised_from_the_start():
    logits = np.array([1.0, 3.0, 2.9, -1.0], np.float32)
    assert Chooser(GenerationConfig(repetition_penalty=1.2), [1, 1, 0]).choose(logits) == 2


def test_greedy_ignores_filters_and_seed():
    logits = _logits(0)
    for seed in (None, 0, 1):
        sampler = Sampler(Sampling(top_k=3, top_p=0.5, min_p=0.5, seed=seed))
        assert sampler.choose(logits) == logits.argmax()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_draws_are_quantiles_of_the_distribution_of_transformers(options):
    # The whole sampler, step by step: what it draws is where the seed's next uniform number falls.
    sampling = GenerationConfig(**options, seed=7)
    prompt = [2, 3, 3]
    sampler, uniform, seen = Chooser(sampling, prompt), np.random.default_rng(7), list(prompt)
    for step in range(30):
        logits = _logits(step % 3)
        expected = np.searchsorted(np.cumsum(_transformers(logits, sampling, seen)), uniform.random())
        token = sampler.choose(logits)
        assert token == expected
        seen.append(token)


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.2, [0, 0.2, 0, 0.1]),  # three reach it, and the least likely of them stays
        (0.3, [0, 0.2, 0.3, 0.1]),
        (0.35, [0.4, 0.2, 0.3, 0.1]),  # one alone is no choice
        (0.6, [0.4, 0.2, 0.3, 0.1]),
        (0.05, [0, 0, 0, 0.1]),
    ],
)
def test_xtc_drops_the_top_choices_but_the_least_likely_of_them(threshold, expected):
    probabilities = np.array([0.4, 0.2, 0.3, 0.1])
    exclude_top_choices(probabilities, threshold)
    assert probabilities.tolist() == expected


def test_xtc_drops_in_the_fraction_of_steps_that_is_asked_for():
    logits = np.log(np.array([0.6, 0.3, 0.1], np.float32))
    sampler = Sampler(Sampling(temperature=1.0, xtc_probability=0.25, xtc_threshold=0.2, seed=1))
    drawn = np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(drawn, [0.75 * 0.6, 0.75 * 0.3 + 0.25 * 0.75, 0.75 * 0.1 + 0.25 * 0.25], atol=0.025)
    always = Sampler(Sampling(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.2, seed=1))
    assert 0 not in {always.choose(logits) for _ in range(200)}


def test_draws_follow_the_distribution():
    sampling = Sampling(temperature=1.2, top_k=10, top_p=0.95, seed=11)
    logits = _logits(1, size=16)
    sampler = Sampler(sampling)
    count = 20_000
    counts = np.bincount([sampler.choose(logits) for _ in range(count)], minlength=len(logits))
    probabilities = distribution(logits, sampling)
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    degrees = possible.sum() - 1
    # Mean of chi-square is its degrees of freedom, its variance twice that.
    assert _chi_square(counts[possible], probabilities[possible]) < degrees + 4 * np.sqrt(2 * degrees)
    # Negative control: the counts don't fit a slightly colder distribution.
    colder = distribution(logits, Sampling(temperature=1.1, top_k=10, top_p=0.95))
    assert _chi_square(counts[possible], colder[possible]) > degrees + 10 * np.sqrt(2 * degrees)


def _chi_square(counts, probabilities):
    expected = counts.sum() * probabilities
    return ((counts - expected) ** 2 / expected).sum()


def _draw(seed, count=50):
    sampler = Sampler(Sampling(temperature=1.0, seed=seed))
    return [sampler.choose(_logits(step)) for step in range(count)]


def test_a_seed_repeats_its_draws_and_another_does_not():
    assert _draw(5) == _draw(5)
    assert _draw(5) != _draw(6)
    assert _draw(None) != _draw(None)


def test_samplers_of_one_seed_do_not_disturb_each_other():
    samplers = [Sampler(Sampling(temperature=1.0, seed=5)) for _ in range(2)]
    together = [[sampler.choose(_logits(step)) for sampler in samplers] for step in range(50)]
    assert together == [[token, token] for token in _draw(5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.5}, r"^temperature is -0\.5; it must be 0 \(greedy\) or larger\.$"),
        ({"temperature": float("nan")}, r"^temperature is nan; it must be 0 \(greedy\) or larger\.$"),
        ({"top_k": -1}, r"^top_k is -1; it must be 0 \(off\) or larger\.$"),
        ({"top_p": 0}, r"^top_p is 0; it must be above 0 and at most 1 \(off\)\.$"),
        ({"top_p": 1.5}, r"^top_p is 1\.5; it must be above 0 and at most 1 \(off\)\.$"),
        ({"min_p": -0.1}, r"^min_p is -0\.1; it must be between 0 \(off\) and 1\.$"),
        ({"min_p": 1.1}, r"^min_p is 1\.1; it must be between 0 \(off\) and 1\.$"),
        ({"typical_p": 0}, r"^typical_p is 0; it must be above 0 and at most 1 \(off\)\.$"),
        ({"xtc_probability": 2}, r"^xtc_probability is 2; it must be between 0 \(off\) and 1\.$"),
        ({"xtc_threshold": -1}, r"^xtc_threshold is -1; it must be between 0 and 1\.$"),
        ({"repetition_penalty": 0}, r"^repetition_penalty is 0; it must be above 0; 1 is off\.$"),
        ({"seed": -1}, r"^seed is -1; it must be at least 0\.$"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(RequestError, match=message):
        GenerationConfig(**options)


def test_the_ends_of_the_ranges_are_allowed():
    GenerationConfig(temperature=0, top_k=0, top_p=1, min_p=0, repetition_penalty=1, seed=0)
    GenerationConfig(temperature=100, top_k=10**6, top_p=1e-9, min_p=1, repetition_penalty=1e-9, seed=2**63)
