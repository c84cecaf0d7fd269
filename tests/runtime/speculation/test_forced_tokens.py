"""A row drafts the text that its structured output forces, and gets the same tokens in fewer runs."""

import json

import pytest
from forms_of_cache import Lengths

from edgeformer.runtime import load
from edgeformer.runtime.generation.generate import run_rows
from edgeformer.runtime.generation.speculation import DraftLength, ForcedTokens, forced_length
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["name", "number", "colour"],
    "properties": {
        "name": {"type": "string", "maxLength": 12}, "number": {"type": "integer", "maximum": 99, "minimum": 0},
        "colour": {"enum": ["yellow", "red"]},
    },
}  # fmt: skip
OPTIONS = {"greedy": {}, "sampled": {"temperature": 1.0, "seed": 5, "logprobs": True, "repetition_penalty": 1.1}}


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load(tiny_llama_bundle)


def run(model, lengths, **options):
    """Run a row with drafts of these lengths; return its result."""
    row = model.new_row("Once upon a time", json_schema=SCHEMA, max_new_tokens=90, **options)
    decoder = model.new_decoder(1, 120)
    run_rows(decoder, [row], drafts=RowDrafts(row, lambda: ForcedTokens(row.constraint), Lengths(lengths)))
    return row.result()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_tokens_are_those_without_drafts(model, options):
    plain, drafted = run(model, [0], **options), run(model, [12, 1, 3], **options)
    assert drafted.token_ids == plain.token_ids and json.loads(plain.text)["colour"] in ("yellow", "red")
    assert plain.speculation.drafted == 0
    assert drafted.speculation.accepted > 5
    assert drafted.speculation.runs <= plain.speculation.runs - drafted.speculation.accepted


def test_wrong_drafts_change_nothing(model, monkeypatch):
    plain = run(model, [0])
    monkeypatch.setattr(ForcedTokens, "draft", lambda self, count: [7] * count)
    wrong = run(model, [3])
    assert wrong.token_ids == plain.token_ids
    assert wrong.speculation.drafted > 20 and wrong.speculation.accepted < 3


def test_what_is_forced_is_the_rest_as_the_tokenizer_writes_it(model):
    constraint = model.new_row("Once", regex="(house|hat)[.]").constraint
    encode = model.require_tokenizer().encode
    ids = constraint.allowed().tolist()
    first = next(token for token in ids if model.tokenizer.decode([token]) == "h")
    constraint.accept(first)
    assert constraint.forced == []  # both words may come
    second = next(token for token in constraint.allowed().tolist() if model.tokenizer.decode([token]) == "o")
    constraint.accept(second)
    assert model.tokenizer.decode(constraint.forced) == "use." and len(constraint.forced) <= len(encode("use."))


def test_generate_drafts_for_one_row_with_structured_output(model, monkeypatch):
    seen = []
    forced = ForcedTokens.draft
    monkeypatch.setattr(ForcedTokens, "draft", lambda self, count: seen.append(count) or forced(self, count))
    result = model.generate("Once", json_schema=SCHEMA, max_new_tokens=90)
    assert seen and result.speculation.runs <= len(result.token_ids)
    assert model.generate("Once", max_new_tokens=4).speculation is None
    assert all(each.speculation is None for each in model.generate(["Once", "A"], json_schema=SCHEMA, max_new_tokens=4))


def test_a_search_in_a_thread_forces_the_same(model, monkeypatch):
    expected = run(model, [4])
    monkeypatch.setattr("edgeformer.runtime.generation.sampling.structured_output.OVERLAP_FROM", 1)
    found = run(model, [4])
    assert found.token_ids == expected.token_ids
    assert found.speculation.accepted == expected.speculation.accepted


def chosen(length, seconds):
    """The lengths of drafts of a text whose runs take these seconds, in turn, and whose every fifth draft is wrong."""
    lengths = []
    for turn in range(60):
        lengths.append(length.choose())
        length.record_run(seconds[turn % len(seconds)], 1 + lengths[-1], lengths[-1])
        if lengths[-1]:
            length.record_drafts(lengths[-1] - (turn % 5 == 0), turn % 5 == 0)
    return lengths


def test_lengths_of_forced_drafts_follow_from_the_tokens():
    fast, slow = (1.0,), (1.0, 9.0, 0.1)
    assert chosen(forced_length(), fast) == chosen(forced_length(), slow)
    assert max(chosen(forced_length(), fast)) > 4
    # The negative control: lengths that are measured.
    assert chosen(DraftLength(12), fast) != chosen(DraftLength(12), slow)
