"""Structured output: what a schema, an expression or a grammar allows comes, and nothing else; errors say why."""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import GenerationConfig, load_causal_lm
from edgeformer.runtime.generation.sampling import structured_output
from edgeformer.runtime.generation.sampling.structured_output import StructuredOutput

TOOL = Path(__file__).parents[2] / "tools" / "verification" / "structured_outputs.py"


def load_tool():
    spec = importlib.util.spec_from_file_location("structured_outputs", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load_causal_lm(tiny_llama_bundle)


def test_a_sampled_output_of_every_schema_is_valid(model):
    found = list(tool.outputs(model, len(tool.SCHEMAS)))
    assert len({name for name, _ in found}) == 20
    assert [reason for name, output in found if (reason := tool.invalid(name, output))] == []


def test_the_check_of_outputs_can_fail(model):
    # Negative control: text without a schema, the output of another schema, and one that is cut.
    free = model.generate("Once upon a time", max_new_tokens=20, temperature=1.0, seed=1)
    assert "Once" not in free.text and tool.invalid("record", replace(free, finish_reason="stop"))
    other = model.generate("Once", json_schema=tool.SCHEMAS["list"], temperature=1.0, seed=1, max_new_tokens=100)
    assert tool.invalid("list", other) is None and "is not of type 'object'" in tool.invalid("record", other)
    cut = model.generate("Once", json_schema=tool.SCHEMAS["record"], max_new_tokens=3)
    assert cut.finish_reason == "length" and tool.invalid("record", cut) == "cut after 3 tokens"


def test_expressions_and_grammars_are_followed(model):
    for seed in range(5):
        options = {"temperature": 1.0, "seed": seed, "max_new_tokens": 30}
        assert re.fullmatch("[0-9]{3}-[a-c]{2}", model.generate("Once", regex="[0-9]{3}-[a-c]{2}", **options).text)
        grammar = 'start: greeting " " NAME\ngreeting: "hello" | "bye"\nNAME: /[A-Z][a-z]{1,5}/'
        assert re.fullmatch("(hello|bye) [A-Z][a-z]{1,5}", model.generate("Once", grammar=grammar, **options).text)


def test_an_output_that_is_complete_ends_without_another_step(model):
    result = model.generate("Once", regex="yes", max_new_tokens=30)
    assert (result.text, result.finish_reason) == ("yes", "stop")
    assert result.token_ids[-1] not in model.manifest.tokens.eos
    # Where more could follow, the model ends it, by an end token alone.
    ended = model.generate("Once", regex="[0-9]+", temperature=1.0, seed=1, max_new_tokens=200)
    assert ended.finish_reason == "eos" and ended.text.isdigit()


def test_rows_have_their_grammars_and_equal_solo_runs(model):
    prompts = ["Once upon a time", "a", "12 + 30 = "]
    options = {"json_schema": tool.SCHEMAS["nested"], "temperature": 1.0, "seed": 4, "max_new_tokens": 120}
    batch = model.generate(prompts, **options)
    assert [row.token_ids for row in batch] == [model.generate(each, **options).token_ids for each in prompts]
    assert len({tuple(row.token_ids) for row in batch}) == 3


def test_a_thread_of_its_own_finds_the_same_tokens(model, monkeypatch):
    options = {"json_schema": tool.SCHEMAS["list of records"], "temperature": 1.0, "seed": 2, "max_new_tokens": 200}
    expected = model.generate("Once", **options).token_ids
    monkeypatch.setattr(structured_output, "OVERLAP_FROM", 1)
    started = []
    submit = structured_output._worker().submit
    monkeypatch.setattr(structured_output._worker(), "submit", lambda call: started.append(call) or submit(call))
    assert model.generate("Once", **options).token_ids == expected
    assert len(started) == len(expected)  # the last token needs none, the first one's is found before


def test_the_most_likely_allowed_token_is_chosen(model):
    """Greedy choice among the allowed tokens, by a plain loop over the logits of the whole text."""
    result = model.generate("12 + 30 = ", regex="[a-z]{6}", max_new_tokens=12)
    prompt = model.encode("12 + 30 = ")
    logits = model.forward(prompt + result.token_ids)[len(prompt) - 1 :]
    vocabulary = model.tokenizer.vocabulary
    text = ""
    for row, token in zip(logits, result.token_ids, strict=False):
        allowed = [
            id for id, piece in enumerate(vocabulary) if re.fullmatch(b"[a-z]+", piece) and len(piece) <= 6 - len(text)
        ]
        assert token == allowed[int(np.argmax(row[allowed]))]
        text += vocabulary[token].decode()
    assert text == result.text


def test_a_sentencepiece_vocabulary_is_spelled_as_it_decodes(tokenizer, tiny_llama_bundle):
    """Byte-level and SentencePiece alike: tokens are allowed by their bytes, and joined they are the text."""
    size = tokenizer.backend.get_vocab_size(with_added_tokens=True)
    tokens = replace(Manifest.read(tiny_llama_bundle).tokens, eos=())
    manifest = replace(Manifest.read(tiny_llama_bundle), tokens=tokens)
    constraint = StructuredOutput(regex="The dog|The é|Th你").constraint(tokenizer, manifest)
    rng, ids = np.random.default_rng(0), []
    while not constraint.finished:
        allowed = constraint.allowed()
        assert allowed.max() < size
        ids.append(int(allowed[rng.integers(len(allowed))]))
        constraint.accept(ids[-1])
    assert b"".join(tokenizer.vocabulary[id] for id in ids).decode() in ("The dog", "The é", "Th你")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "a("}, "^regex cannot be followed: .*unclosed group"),
        ({"grammar": "start: nothing"}, "^grammar cannot be followed: "),
        ({"json_schema": {"type": "frob"}}, "^json_schema cannot be followed: Invalid type: frob"),
        ({"json_schema": {"not": {}}}, r"^json_schema cannot be followed: Unimplemented keys: \[\"not\"\]"),
        ({"json_schema": "{"}, r"^json_schema is '\{' \(str\), which is no JSON: "),
        ({"json_schema": [1]}, r"^json_schema is \[1\] \(list\); it must be a JSON schema"),
        ({"regex": 3}, r"^regex is 3 \(int\); it must be a text\.$"),
        ({"regex": "a", "grammar": "b"}, "^regex and grammar exclude each other; give one of them.$"),
        ({"regex": "a", "num_beams": 2}, "^structured output does not work with beams; use num_beams=1.$"),
        ({"regex": "a", "ignore_eos": True}, "^structured output ends where it is complete; take ignore_eos out.$"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_followed_says_why(model, options, message):
    with pytest.raises(RequestError, match=f"(?s){message}"):
        model.generate("Hi", max_new_tokens=4, **options)


def test_rules_that_leave_nothing_of_it_say_so(model):
    first = model.generate("Hi", regex="[0-9]", max_new_tokens=1).token_ids
    only = [id for id, piece in enumerate(model.tokenizer.vocabulary) if piece.isdigit()]
    assert first[0] in only
    with pytest.raises(RequestError, match="the rules and logits processors ban every token that the structured"):
        model.generate("Hi", regex="[0-9]", max_new_tokens=1, suppress_tokens=only)


def test_a_bundle_without_a_tokenizer_says_so(llama_bundle):
    with pytest.raises(RequestError, match="^regex needs a tokenizer, and this bundle has none.$"):
        load_causal_lm(llama_bundle).generate([3], regex="a")


def test_configs_of_equal_schemas_are_equal_and_hashable():
    one, other = (GenerationConfig(json_schema=schema) for schema in ({"type": "null"}, '{"type": "null"}'))
    assert one == other and hash(one) == hash(other)


def test_without_llguidance_the_error_names_the_extra(tiny_llama_bundle):
    code = f"""
import sys
sys.modules["llguidance"] = None
from edgeformer.runtime import load
model = load({str(tiny_llama_bundle)!r})
print(model.generate("Once", max_new_tokens=1).finish_reason)
model.generate("Once", regex="a")
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "length\n"
    assert "llguidance is not installed" in done.stderr and "pip install 'edgeformer[structured]'" in done.stderr


def test_the_command_takes_a_schema_as_a_file_and_as_text(tiny_llama_bundle, tmp_path):
    from click.testing import CliRunner

    from edgeformer.cli.main import cli

    schema = {"enum": ["red", "green"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    for given in (tmp_path / "schema.json", json.dumps(schema)):
        done = CliRunner().invoke(cli, ["run", str(tiny_llama_bundle), "Hi", "--json-schema", str(given)])
        assert json.loads(done.stdout) in schema["enum"]
    assert CliRunner().invoke(cli, ["run", str(tiny_llama_bundle), "Hi", "--regex", "abc"]).stdout == "abc\n"
    done = CliRunner().invoke(cli, ["run", str(tiny_llama_bundle), "Hi", "--grammar", 'start: "abd"'])
    assert done.stdout == "abd\n"
