"""The survey says of an architecture what an export of it says, and counts."""

from survey_transformers import LIMIT, Outcome, report, survey


def test_an_architecture_that_passes():
    outcome = survey("arcee")
    assert (outcome.verdict, outcome.reason) == ("passes", "")
    assert outcome.ops == {"TokenPositions": 1, "RMSNorm": 9, "RotaryEmbedding": 8, "GroupQueryAttention": 4}
    assert outcome.folded == 4
    assert 0 < outcome.error <= LIMIT


def test_a_model_that_sees_goes_by_its_text_model():
    outcome = survey("gemma4_unified")
    assert (outcome.verdict, outcome.way, outcome.reason) == ("passes", "family of the text model", "")
    assert 0 < outcome.error <= LIMIT


def test_an_architecture_that_is_refused():
    outcome = survey("reformer")
    assert outcome.verdict == "refused"
    assert "sorts tokens by hashes" in outcome.reason


def test_a_report_counts_what_has_no_family_and_only_our_ops():
    ours = {"RMSNorm": 9, "RotaryEmbedding": 8, "GroupQueryAttention": 4}
    outcomes = [
        Outcome("llama", "passes", ops=ours),
        Outcome("olmo3", "passes", ops=ours),
        Outcome("ctrl", "passes", ops={"GroupQueryAttention": 4}),
        Outcome("mamba", "refused", "it has\nno | cache"),
        Outcome("other", "fails", "off"),
    ]
    text = report(outcomes, "python tools/survey_transformers.py")
    assert "**3 of 5 pass**" in text
    assert "1 are refused, 1 fail, 0 cannot be tried." in text
    assert "| llama |" in text
    assert "| mamba | it has no \\| cache |" in text
