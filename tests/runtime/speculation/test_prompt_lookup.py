"""Drafts from the text itself, how many of them, and the option of `generate`."""

import numpy as np
import pytest

from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.runtime import GenerationConfig, load_causal_lm, load_seq2seq
from edgeformer.runtime.generation.speculation import DraftLength, PromptLookup
from edgeformer.runtime.generation.speculation.draft_length import EARNED, FIRST_CREDIT, TRAINED_CREDIT

COPY = "The old bear walked to the river. The old bear walked to the river. The old bear walked"


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load_causal_lm(tiny_llama_bundle)


@pytest.fixture
def always_drafting(monkeypatch):
    """Draft four tokens whenever there are any, so that no test depends on the time that runs take."""
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 4)


def lookup(text, max_ngram=3):
    found = PromptLookup(max_ngram)
    found.extend(text)
    return found


def test_a_draft_is_what_came_after_the_last_tokens():
    assert lookup([1, 2, 3, 4, 5, 6, 1, 2, 3]).draft(2) == [4, 5]
    assert lookup([1, 2, 3, 4, 5]).draft(2) == []
    assert lookup([]).draft(2) == []


def test_the_longest_match_counts_and_then_the_last_one():
    assert lookup([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]).draft(1) == [7]
    assert lookup([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], max_ngram=2).draft(1) == [8]


def test_one_token_matches_only_where_no_more_are_looked_up():
    assert lookup([4, 5, 6, 4]).draft(1) == []
    assert lookup([4, 5, 6, 4], max_ngram=1).draft(1) == [5]


def test_a_repeating_text_is_drafted_beyond_its_end():
    assert lookup([9, 1, 2, 3, 1, 2, 3]).draft(7) == [1, 2, 3, 1, 2, 3, 1]
    assert lookup([9, 5, 5, 5]).draft(3) == [5, 5, 5]


def test_a_copy_goes_on_behind_a_token_that_was_replaced():
    growing = lookup([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    assert growing.draft(3) == [4, 5, 6]
    growing.extend([40])  # in place of the 4
    assert growing.draft(3) == [5, 6, 7]
    growing.extend([50, 60])
    assert growing.draft(3) == [], "three tokens that differ are another text"


def test_an_index_grown_token_by_token_is_the_whole_texts():
    text = np.random.default_rng(0).integers(0, 4, 60).tolist()
    growing = PromptLookup(3)
    for end, token in enumerate(text, 1):
        growing.extend([token])
        whole = lookup(text[:end]).draft(5)
        assert not whole or growing.draft(5) == whole


def run(length, tokens, slope, right, held_up=lambda place: 1.0):
    """Generate with runs that take 1 + slope · (n - 1) steps and drafts of which `right(place)` says what is right.

    held_up: how many times as long a step without a draft seems to take, because of other programs.

    Returns the time in steps, and how many tokens were drafted.
    """
    spent, place, drafted = 0.0, 0, 0
    while place < tokens:
        count = min(length.choose(), tokens - place - 1)
        cost = 1 + slope * count
        spent, drafted = spent + cost, drafted + count
        length.record_run(cost * (1.0 if count else held_up(place)) * 1e-3, 1 + count, count)
        accepted = next((index for index in range(count) if not right(place + index)), count)
        if count:
            length.record_drafts(accepted, accepted < count)
        place += 1 + accepted
    return spent, drafted


@pytest.mark.parametrize("credit", [FIRST_CREDIT, TRAINED_CREDIT])
@pytest.mark.parametrize("slope", [0.05, 0.1, 0.27, 0.6, 1.0])
def test_drafts_that_never_come_true_cost_only_the_budget(slope, credit):
    spent, drafted = run(DraftLength(10, credit=credit), 500, slope, lambda place: False)
    # The slope is estimated, so a first draft may cost more than it was thought to.
    assert drafted > 0 and spent <= 500 * (1 + EARNED) + credit + 1
    careless, _ = run(AlwaysTen(10), 500, slope, lambda place: False)
    assert careless > 500 * 1.4


def test_steps_that_are_held_up_do_not_make_drafts_look_cheap():
    # Half of the steps seem to take twice as long, so beside their median a draft of five tokens would often be free.
    held = 1 + (np.random.default_rng(0).random(500) < 0.5)
    spent, drafted = run(DraftLength(10), 500, 0.2, lambda place: False, lambda place: held[place])
    assert drafted > 0 and spent <= 500 * (1 + EARNED) + FIRST_CREDIT + 1


def test_a_draft_is_charged_what_it_took():
    length = DraftLength(10)
    length.record_run(1e-3, 1, 0)
    assert length.choose() > 0
    length.record_run(3e-3, 3, 2)  # three steps for three tokens: a slope of 1
    length.record_drafts(0, True)
    afterwards = [length.record_run(1e-3, 1, 0) or length.choose() for _ in range(100)]
    assert not any(afterwards), "a budget of 1 % of a step a token is not back within 100 tokens"


class AlwaysTen(DraftLength):
    """The negative control: drafts of ten tokens, come what may."""

    def choose(self, pending=0):
        return 10


@pytest.mark.parametrize(("slope", "least"), [(0.1, 4.0), (0.27, 2.2)])
def test_drafts_that_come_true_are_long(slope, least):
    spent, _ = run(DraftLength(10), 200, slope, lambda place: True)
    assert 200 / spent > least


def test_drafts_that_cost_as_much_as_steps_are_left_out():
    spent, drafted = run(DraftLength(10), 300, 1.2, lambda place: True)
    assert drafted < 10 and spent < 300 * 1.02


def test_drafting_begins_again_where_the_text_begins_to_repeat():
    length = DraftLength(10)
    run(length, 200, 0.2, lambda place: False)
    spent, _ = run(length, 300, 0.2, lambda place: True)
    assert 300 / spent > 1.5


def test_one_slow_run_does_not_end_it():
    length = DraftLength(10)
    run(length, 40, 0.1, lambda place: True)
    length.record_run(1.0, 11, 10)  # a thousand steps
    length.record_drafts(10, False)
    assert length.choose() == 10


@pytest.mark.parametrize("options", [{}, {"temperature": 0.3, "seed": 2}, {"stop": "river. The", "logprobs": True}])
def test_generate_gives_the_same_with_prompt_lookup(model, always_drafting, options):
    plain = model.generate(COPY, max_new_tokens=48, **options)
    drafts = {"prompt_lookup_num_tokens": 8, "max_matching_ngram_size": 1}
    found = model.generate(COPY, max_new_tokens=48, **options, **drafts)
    assert (found.text, found.token_ids, found.finish_reason) == (plain.text, plain.token_ids, plain.finish_reason)
    assert found.speculation.drafted > 0 and plain.speculation is None


def test_a_stream_and_a_chat_take_it_too(model, always_drafting):
    wanted = {"max_new_tokens": 24, "prompt_lookup_num_tokens": 4}
    stream = model.stream(COPY, **wanted)
    text = "".join(stream)
    assert text == model.generate(COPY, max_new_tokens=24).text
    assert stream.finish().speculation.drafted > 0
    messages = [{"role": "user", "content": COPY}]
    assert model.chat(messages, **wanted).finish().speculation is not None


def test_structured_output_is_the_same_with_prompt_lookup(model, always_drafting):
    wanted = {"json_schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 12}, "max_new_tokens": 48}
    plain = model.generate("[12, 13, 12, 13, 12, 13]\n", **wanted)
    found = model.generate("[12, 13, 12, 13, 12, 13]\n", prompt_lookup_num_tokens=8, **wanted)
    assert (found.text, found.finish_reason) == (plain.text, plain.finish_reason)
    assert found.speculation.drafted > 0


def test_a_batch_is_decoded_without_drafts(model):
    rows = model.generate([COPY, "Once"], max_new_tokens=4, prompt_lookup_num_tokens=4)
    assert [row.speculation for row in rows] == [None, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_lookup_num_tokens": -1}, "^prompt_lookup_num_tokens is -1; it must be between 0 and 64.$"),
        ({"prompt_lookup_num_tokens": 65}, "^prompt_lookup_num_tokens is 65; it must be between 0 and 64.$"),
        ({"max_matching_ngram_size": 0}, "^max_matching_ngram_size is 0; it must be between 1 and 64.$"),
        ({"prompt_lookup_num_tokens": 2.5}, "^prompt_lookup_num_tokens is 2.5 .* must be a whole number.$"),
    ],
)
def test_a_value_out_of_range_is_refused(options, message):
    with pytest.raises(RequestError, match=message):
        GenerationConfig(**options)


def test_an_encoder_decoder_looks_up_in_its_source(make_model, tmp_path, always_drafting):
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 131}
    tokens = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    folder = make_model("t5", 3, auto="AutoModelForSeq2SeqLM", **sizes, **tokens)
    model = load_seq2seq(export_model(folder, tmp_path / "t5", context_length=64, verify=None).path)
    source = np.random.default_rng(0).integers(3, 130, 20).tolist()
    wanted = {"max_new_tokens": 32, "ignore_eos": True, "temperature": 0.5, "seed": 3, "logprobs": True}
    plain = model.generate(source, **wanted)
    # The source has what is written, so that drafts come true until another token is drawn.
    source = [*plain.token_ids, *source]
    plain = model.generate(source, **wanted)
    found = model.generate(source, prompt_lookup_num_tokens=4, max_matching_ngram_size=1, **wanted)
    assert found.token_ids == plain.token_ids
    expected = [each.logprob for each in plain.logprobs]
    np.testing.assert_allclose([each.logprob for each in found.logprobs], expected, atol=1e-4)
    assert 0 < found.speculation.accepted < found.speculation.drafted
    assert model.stream(source, prompt_lookup_num_tokens=4, **wanted).finish().token_ids == plain.token_ids
