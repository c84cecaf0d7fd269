"""An export warns of tokens beyond the weights, of holes in the ids, and of end tokens that end nothing."""

import json
import shutil

import pytest
from click.testing import CliRunner

from edgeformer.checkpoints.found_model import PRESETS, find_model
from edgeformer.cli.main import cli
from edgeformer.errors import ConfigError
from edgeformer.export.importers.checkpoint_warnings import checkpoint_warnings, other_reader_warnings
from edgeformer.export.importers.tokenizer_files import TokenizerFiles
from edgeformer.runtime import load

VOCABULARY = 2048
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


@pytest.fixture
def folder(tmp_path):
    """Return a copy of tiny-llama."""
    return shutil.copytree(PRESETS / "tiny-llama", tmp_path / "model")


def edit(folder, file, **changes):
    """Change fields of a file; None takes one out."""
    path = folder / file
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


def add_token(folder, id, content):
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    edit(folder, "tokenizer.json", added_tokens=[*added, {"id": id, "content": content, **ADDED}])


def warnings(folder, task="causal-lm"):
    found = find_model(folder)
    return list(checkpoint_warnings(found, TokenizerFiles(folder), task, found.special_tokens(), VOCABULARY))


def test_a_preset_has_none(folder):
    assert warnings(folder) == []


def test_tokens_beyond_the_embedding_are_named(folder):
    add_token(folder, VOCABULARY, "<image_soft_token>")
    [warning] = warnings(folder)
    assert warning.startswith("the tokenizer has <image_soft_token> (2048), and the embedding has 2,048 rows")
    assert len(warnings(folder, "encoder")) == 1


def test_a_hole_in_the_added_tokens_is_named(folder):
    add_token(folder, 5000, "<hole>")
    assert any("a hole" in each and "<hole> (5000, not 2048)" in each for each in warnings(folder))


@pytest.mark.parametrize("eos", [0, [0], None])
def test_an_end_of_turn_that_ends_no_text_is_named(folder, eos):
    edit(folder, "generation_config.json", eos_token_id=eos)
    edit(folder, "config.json", eos_token_id=0)
    [warning] = warnings(folder)
    assert warning.startswith("<|im_end|> ends no text, although the chat template writes it behind an answer")
    assert "Add 2 to eos_token_id in generation_config.json" in warning


def test_a_tokenizer_end_token_that_ends_no_text_is_named(folder):
    edit(folder, "generation_config.json", eos_token_id=0)
    edit(folder, "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    [warning] = warnings(folder)
    assert "tokenizer_config.json names it as eos_token and the chat template writes it" in warning


@pytest.mark.parametrize(
    ("eos", "said", "endless"), [([], None, True), (-1, "-1 is no token", True), ([7000, 0], "7000 is no token", False)]
)
def test_end_tokens_that_end_nothing_are_named(folder, eos, said, endless):
    (folder / "chat_template.jinja").unlink()
    edit(folder, "generation_config.json", eos_token_id=eos)
    found = warnings(folder)
    assert said is None or said in found[0]
    assert any("no eos_token_id ends a text" in each for each in found) == endless


def test_whole_numbers_in_other_spellings_are_token_ids(folder):
    edit(folder, "generation_config.json", eos_token_id=[2.0, 0])
    assert find_model(folder).special_tokens().eos == (2, 0)
    assert warnings(folder) == []


@pytest.mark.parametrize("name", ["eos_token_id", "bos_token_id", "pad_token_id"])
@pytest.mark.parametrize("value", ["2", 2.5, True, {"id": 2}, [["2"]], float("nan")])
def test_what_is_no_token_id_is_refused_before_the_export(folder, name, value):
    edit(folder, "generation_config.json", **{name: value})
    with pytest.raises(ConfigError, match=f"generation_config.json has {name} = .*token id"):
        find_model(folder).special_tokens()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"do_sample": True, "temperature": 0.6}, "do_sample = True, temperature = 0.6"),
        ({"repetition_penalty": 1.1}, "repetition_penalty = 1.1"),
        ({"num_beams": 4}, "num_beams = 4"),
        ({"stop_strings": ["x"]}, "stop_strings = ['x']"),
        ({"penalty_alpha": 0.6}, "penalty_alpha = 0.6"),
        ({"temperature": 0.6, "top_p": 0.9, "use_cache": True, "num_beams": 1, "suppress_tokens": []}, None),
    ],
)
def test_a_decoder_is_greedy_whatever_its_file_asks(folder, fields, said):
    edit(folder, "generation_config.json", **fields)
    found = [each for each in warnings(folder) if "greedy" in each]
    assert found == [] if said is None else f"asks for {said}, and the calls" in found[0]
    assert [each for each in warnings(folder, "seq2seq-lm") if "greedy" in each] == []


def test_an_export_says_them_and_keeps_them_in_the_card(folder, tmp_path):
    edit(folder, "generation_config.json", eos_token_id=0, stop_strings=["x"])
    add_token(folder, VOCABULARY, "<image_soft_token>")
    line = ["export", "--model", str(folder), "-o", str(tmp_path / "bundle"), "--no-verify"]
    done = CliRunner().invoke(cli, line)
    assert done.exit_code == 0, done.output
    for said in ("stop_strings = ['x']", "<image_soft_token> (2048)", "<|im_end|> ends no text"):
        assert said in done.stdout
        assert said in (tmp_path / "bundle/README.md").read_text()
    data = json.loads(CliRunner().invoke(cli, [*line, "--overwrite", "--json"]).stdout)
    assert len(data["warnings"]) == 3
    model = load(tmp_path / "bundle")
    assert model.generate("Hello", max_new_tokens=2).token_ids, "the bundle loads and generates"


BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
}


TAG = {"content": "<tag>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
OTHERWISE = {
    "a token of tokenizer_config.json alone": {"added_tokens_decoder": {"2048": TAG}},
    "a special token that tokenizer.json lacks": {"additional_special_tokens": ["<tag>"]},
    "a mask that takes the space before it": {"mask_token": TAG | {"__type": "AddedToken"}},
    "accents that a class composes": {"tokenizer_class": "Qwen2Tokenizer"},
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_tokens_that_only_other_files_have_are_named(folder, case):
    edit(folder, "tokenizer_config.json", **{"tokenizer_class": "PreTrainedTokenizerFast"} | OTHERWISE[case])
    [found] = other_reader_warnings(folder)
    assert ("'cafe\u0301" in found) == ("accents" in case) and ("<tag>" in found) == ("accents" not in case)


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}, {"add_bos_token": True}, {"add_eos_token": True}])
@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "LlamaTokenizer", "GPTNeoXTokenizer"])
def test_ids_that_transformers_gives_otherwise_are_named(folder, name, flags):
    """GPTNeoXTokenizer builds its post-processor anew, and drops the one that begins a text with a token."""
    edit(folder, "tokenizer.json", post_processor=BOS)
    edit(folder, "tokenizer_config.json", tokenizer_class=name, **flags)
    found = list(other_reader_warnings(folder))
    assert len(found) == (name == "GPTNeoXTokenizer")
    assert all("GPTNeoXTokenizer of transformers gives 'Hello, world!' the ids [" in each for each in found)
