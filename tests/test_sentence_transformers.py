"""Folders of sentence-transformers: how they pool, how long their texts are, and what is refused.

Values of pooled states are tested with the families (tests/families/test_encoder_parity.py).
"""

import json
import subprocess
import sys

import pytest
import torch
import transformers
from huggingface_hub.utils import filter_repo_objects

from edgeformer.checkpoints.found_model import HUB_CONFIGS
from edgeformer.checkpoints.sentence_transformers import lowers_case, read_pooling
from edgeformer.checkpoints.source import open_source
from edgeformer.config import MaskedLMHead, PoolingHead
from edgeformer.errors import ConfigError

SIZES = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 48,
}  # fmt: skip
MODEL = "sentence_transformers.models"
# As version 5.4 writes them.
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
}
MEAN = {
    "word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False,
}  # fmt: skip
MEAN_AND_ALL = MEAN | {
    "pooling_mode_weightedmean_tokens": False, "pooling_mode_lasttoken": False, "include_prompt": True,
}  # fmt: skip
FIRST = MEAN_AND_ALL | {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


@pytest.fixture
def make_folder(tmp_path):
    """Return a function that writes a BERT's config.json, and the other files of sentence-transformers."""

    def make(kinds=("Transformer", "Pooling", "Normalize"), pooling=MEAN, types=None, text=None, **config):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"} | SIZES | config))
        if kinds:
            paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds[1:], 1))]
            modules = [
                {"idx": index, "name": str(index), "path": path, "type": (types or {}).get(kind, f"{MODEL}.{kind}")}
                for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
            ]
            (tmp_path / "modules.json").write_text(json.dumps(modules))
        if pooling is not None:
            (tmp_path / "1_Pooling").mkdir()
            (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        if text is not None:
            (tmp_path / "sentence_bert_config.json").write_text(json.dumps(text))
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("kinds", "pooling", "types", "head"),
    [
        (["Transformer", "Pooling", "Normalize"], MEAN, None, PoolingHead(pooling="mean", normalize=True)),
        (["Transformer", "Pooling"], MEAN_AND_ALL, None, PoolingHead(pooling="mean", normalize=False)),
        (["Transformer", "Pooling"], FIRST, None, PoolingHead(pooling="first", normalize=False)),
        (
            ["Transformer", "Pooling", "Normalize"],
            {"embedding_dimension": 64, "pooling_mode": "cls", "include_prompt": True},
            NEW,
            PoolingHead(pooling="first", normalize=True),
        ),
        (["Transformer", "Pooling"], {"pooling_mode": ["mean"]}, NEW, PoolingHead(pooling="mean", normalize=False)),
        (["Transformer"], None, None, None),
        ([], None, None, None),
    ],
)
def test_a_folder_says_how_it_pools(make_folder, kinds, pooling, types, head):
    folder = make_folder(kinds, pooling, types)
    found = read_pooling(folder)
    assert (found.pooling if found else None) == head
    assert open_source(folder).config.head == head


INSTEAD = ".*To pool the states in another way .* choose --pooling mean or --pooling first"
REFUSALS = [
    (
        ["Transformer", "Dense", "Pooling", "Normalize"],
        MEAN,
        "lists Transformer, Dense, Pooling, Normalize, and" + INSTEAD,
    ),
    (["Transformer", "Normalize"], None, "lists Transformer, Normalize, and edgeformer has Transformer, Pooling, any"),
    (["Transformer", "WordWeights"], None, "lists Transformer, WordWeights, and edgeformer has"),
    (["StaticEmbedding"], None, "lists StaticEmbedding, and edgeformer has"),
    (["Transformer", "Pooling"], None, r"there is no .*1_Pooling/config\.json, which modules\.json lists"),
    (["Transformer", "Pooling"], {"pooling_mode": "min"}, "has the pooling 'min'; edgeformer has cls, max" + INSTEAD),
    (["Transformer", "Pooling"], {"pooling_mode": []}, r"pooling_mode = \[\]; it must be a text or a list of texts"),
    (["Transformer", "Pooling"], MEAN | {"pooling_layer": 3}, "options that edgeformer does not know: pooling_layer"),
    (["Transformer", "Pooling"], [], r"1_Pooling/config\.json cannot be read: it must hold a JSON object"),
    (["Transformer", "Pooling", "Dense"], MEAN, r"there is no .*2_Dense/config\.json, which modules\.json lists"),
]


@pytest.mark.parametrize(("kinds", "pooling", "message"), REFUSALS)
def test_what_a_head_cannot_do_is_refused(make_folder, kinds, pooling, message):
    folder = make_folder(kinds, pooling)
    with pytest.raises(ConfigError, match=message):
        open_source(folder)
    # A requested pooling replaces it.
    assert open_source(folder, pooling="mean").config.head == PoolingHead(pooling="mean", normalize=False)


def test_a_module_of_a_repository_is_refused(make_folder):
    """sentence-transformers runs it for those who trust it; what it computes is in no file that we read."""
    folder = make_folder(["Transformer", "Pooling"], MEAN)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match=r"has the module 'custom_st\.Transformer', which is code" + INSTEAD):
        open_source(folder)
    assert open_source(folder, pooling="mean").config.head == PoolingHead(pooling="mean", normalize=False)


@pytest.mark.parametrize("kept", [0, -1, "64", True, 2.5])
def test_a_number_of_dimensions_is_positive(make_folder, kept):
    folder = make_folder(["Transformer", "Pooling"], MEAN)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"truncate_dim": kept}))
    with pytest.raises(ConfigError, match=f"has truncate_dim = {kept!r}; it must be a positive number, or null"):
        open_source(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "cannot be read: it must hold a JSON list"),
        ("[", "cannot be read: it is not valid JSON"),
        ('[{"idx": 0}]', "must list modules, each with its"),
    ],
)
def test_a_broken_list_of_modules_is_named(make_folder, content, message):
    folder = make_folder()
    (folder / "modules.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"modules\.json {message}"):
        open_source(folder)


DENSE = {"in_features": 64, "out_features": 8, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.ELU"}, "activation_function = 'torch.*ELU'" + INSTEAD),
        ({"activation_function": "mine.Tanh"}, "activation_function = 'mine.Tanh'; edgeformer has Identity, Tanh"),
        ({"module_input_name": "token_embeddings"}, "module_input_name = 'token_embeddings'; edgeformer has sentence_"),
        ({"out_features": "8"}, "out_features = '8'; it must be a positive number"),
        ({"bias": 1}, "bias = 1; it must be true or false"),
        ({"dropout": 0.1}, "options that edgeformer does not know: dropout"),
    ],
)
def test_a_layer_that_the_head_cannot_have_is_refused(make_folder, change, message):
    folder = make_folder(["Transformer", "Pooling", "Dense"])
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps(DENSE | change))
    with pytest.raises(ConfigError, match=message):
        open_source(folder)


@pytest.mark.parametrize(
    ("wished", "head"),
    [
        ({"pooling": "first"}, PoolingHead(pooling="first", normalize=False)),
        ({"pooling": "first", "normalize": True}, PoolingHead(pooling="first", normalize=True)),
        ({"normalize": False}, PoolingHead(pooling="mean", normalize=False)),
        ({}, PoolingHead(pooling="mean", normalize=True)),
    ],
)
def test_a_wish_comes_before_what_the_folder_says(make_folder, wished, head):
    assert open_source(make_folder(), **wished).config.head == head


def test_wishes_that_mean_nothing_are_refused(make_folder):
    folder = make_folder(kinds=(), pooling=None)
    with pytest.raises(ConfigError, match="there is no pooling whose result could be normalized; choose one, as in"):
        open_source(folder, normalize=True)
    with pytest.raises(
        ConfigError,
        match="pooling is 'min'; it must be one of first, last, max, mean, mean_sqrt, weighted_mean, or None",
    ):
        open_source(folder, pooling="min")


def test_states_of_a_seq2seq_encoder_are_not_pooled():
    with pytest.raises(ConfigError, match=r"is an encoder-decoder \(marian\), whose encoder edgeformer does"):
        open_source("tiny-translate", pooling="mean")


@pytest.mark.parametrize("head", ["BertForMaskedLM", "BertForSequenceClassification", "BertForQuestionAnswering"])
def test_states_are_pooled_whatever_head_the_checkpoint_has(make_folder, tmp_path, head):
    kind = getattr(transformers, head)
    model = kind(transformers.BertConfig(**SIZES))
    model.save_pretrained(make_folder())
    source = open_source(tmp_path)
    assert source.config.head == PoolingHead(pooling="mean", normalize=True)
    weights = source.weights()
    table = model.base_model.embeddings.word_embeddings.weight
    assert torch.equal(weights["embedding.weight"], table)
    assert not any(name.startswith(("masked_lm", "classifier")) for name in weights)
    (tmp_path / "modules.json").unlink()
    if head == "BertForMaskedLM":
        assert isinstance(open_source(tmp_path).config.head, MaskedLMHead)


@pytest.mark.parametrize(
    ("text", "wished", "length"),
    [
        ({"max_seq_length": 32, "do_lower_case": False}, None, 32),
        ({"max_seq_length": 32}, 40, 40),
        ({"max_seq_length": 512}, None, 48),
        ({"max_seq_length": None}, None, 48),
        ({}, None, 48),
        (None, None, 48),
    ],
)
def test_texts_are_as_long_as_sentence_transformers_lets_them_be(make_folder, text, wished, length):
    assert open_source(make_folder(text=text), wished).config.context_length == length


@pytest.mark.parametrize(
    ("text", "limit", "length"),
    [
        (None, 20, 20),
        (None, 20.0, 20),
        (None, 10**30, 48),
        (None, 1e30, 48),
        (None, None, 48),
        ({"max_seq_length": 32}, 20, 32),
        ({"max_seq_length": None}, 20, 20),
    ],
)
def test_the_tokenizers_limit_is_read_where_no_other_is(make_folder, text, limit, length):
    folder = make_folder(text=text)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
    assert open_source(folder).config.context_length == length


def test_do_lower_case_is_true_or_false(make_folder):
    with pytest.raises(ConfigError, match=r"sentence_bert_config\.json has do_lower_case = 'yes'; it must be true or"):
        lowers_case(make_folder(text={"do_lower_case": "yes"}))


def test_only_a_sentence_encoder_is_cut_to_that_length(make_folder):
    folder = make_folder(kinds=(), pooling=None, text={"max_seq_length": 32})
    assert open_source(folder).config.context_length == 48


def test_older_folders_name_the_file_by_the_kind_of_model(make_folder):
    folder = make_folder()
    (folder / "sentence_xlm-roberta_config.json").write_text(json.dumps({"max_seq_length": 20}))
    assert open_source(folder).config.context_length == 20


def test_all_of_it_is_downloaded():
    files = ["config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "model.safetensors"]
    assert list(filter_repo_objects(files, allow_patterns=HUB_CONFIGS)) == files[:-1]


def test_it_is_read_without_torch():
    modules = "edgeformer.checkpoints.source, edgeformer.checkpoints.sentence_transformers"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("number", [0, 1])
def test_a_module_in_a_folder_that_no_system_has_is_missing(make_folder, number):
    folder = make_folder()
    modules = json.loads((folder / "modules.json").read_text())
    modules[number]["path"] = "a" * 300
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="a{300}"):
        open_source(folder)
