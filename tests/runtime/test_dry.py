"""DRY penalises what llama.cpp's sampler does: tokens that would prolong a repetition, by its length."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeformer.errors import RequestError
from edgeformer.runtime import GenerationConfig, load_causal_lm
from edgeformer.runtime.generation.sampling.dry import Dry, DryPenalty


def expected_penalties(tokens, breakers, options):
    """The definition, place by place: how long is the text before each earlier token that equals the text's end."""
    if options.dry_penalty_last_n >= 0:
        tokens = tokens[max(0, len(tokens) - options.dry_penalty_last_n) :]
    longest = {}
    for place in range(1, len(tokens)):
        length = 0
        while (
            length < place
            and tokens[place - 1 - length] == tokens[len(tokens) - 1 - length]
            and tokens[len(tokens) - 1 - length] not in breakers
        ):
            length += 1
        if length >= options.dry_allowed_length and tokens[place] not in breakers:
            longest[tokens[place]] = max(length, longest.get(tokens[place], 0))
    return {
        token: options.dry_multiplier * options.dry_base ** (length - options.dry_allowed_length)
        for token, length in longest.items()
    }


def penalties(tokens, breakers, options):
    logits = DryPenalty(options, np.array(sorted(breakers), np.int64))(
        np.array(tokens, np.int64), np.zeros(6, np.float32)
    )
    return {token: -float(value) for token, value in enumerate(logits) if value}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    tokens=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    breakers=st.sets(st.integers(0, 5), max_size=2),
    allowed=st.integers(1, 4),
    last=st.integers(-1, 40),
)
def test_penalties_are_those_of_the_definition(tokens, breakers, allowed, last):
    options = Dry(dry_multiplier=0.8, dry_base=1.3, dry_allowed_length=allowed, dry_penalty_last_n=last)
    assert penalties(tokens, breakers, options) == pytest.approx(
        expected_penalties(tokens, breakers, options), rel=1e-6
    )


def test_an_example_by_hand():
    options = Dry(dry_multiplier=2.0, dry_base=3.0, dry_allowed_length=2)
    #         match of 3: 1 2 3, then 4; match of 2: 2 3, then 0
    assert penalties([1, 2, 3, 4, 2, 3, 0, 1, 2, 3], set(), options) == {4: 6.0, 0: 2.0}
    assert penalties([1, 2, 3, 4, 2, 3, 0, 1, 2, 3], {1}, options) == {4: 2.0, 0: 2.0}
    assert penalties([1, 2, 3, 4, 2, 3, 0, 1, 2, 3], {3}, options) == {}
    assert penalties([1, 2, 3, 4, 2, 3, 0, 1, 2, 3], {4}, options) == {0: 2.0}


def test_a_long_repetition_loses_a_finite_number():
    options = Dry(dry_multiplier=1.0, dry_base=1.75)
    (value,) = penalties([0] * 2000, set(), options).values()
    assert 1e37 < value < np.inf


def test_a_model_that_would_repeat_itself_does_not(tiny_llama_bundle):
    model = load_causal_lm(tiny_llama_bundle)
    prompt = model.encode("the old bear walked home and the old bear walked home and the old bear walked")
    repeated = prompt[len(model.encode("the old bear walked"))]
    options = {"max_new_tokens": 1, "logit_bias": {repeated: 50.0}}
    assert model.generate(prompt, **options).token_ids == [repeated]
    assert model.generate(prompt, **options, dry_multiplier=100.0).token_ids != [repeated]
    # A token with a breaker in it ends the repetition before it is long enough.
    breakers = {"dry_multiplier": 100.0, "dry_sequence_breakers": "alk"}
    assert "alk" in model.tokenizer.decode(prompt[-1:])
    assert model.generate(prompt, **options, **breakers).token_ids == [repeated]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dry_multiplier": -1}, r"^dry_multiplier is -1; it must be 0 \(off\) or larger\.$"),
        ({"dry_base": 0.5}, r"^dry_base is 0\.5; it must be at least 1\.$"),
        ({"dry_allowed_length": 0}, r"^dry_allowed_length is 0; it must be at least 1\.$"),
        ({"dry_penalty_last_n": -2}, r"^dry_penalty_last_n is -2; it must be -1 \(the whole text\) or larger\.$"),
        ({"dry_sequence_breakers": 3}, r"^dry_sequence_breakers is 3 \(int\); it must be a text or a list of texts\.$"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(RequestError, match=message):
        GenerationConfig(**options)
