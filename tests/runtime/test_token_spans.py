"""Labelled spans of texts beside transformers' token-classification pipeline."""

import json

import pytest
import tokenizers
import transformers
from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.runtime import load

PIECES = ["Ann", "##a", "##bel", "Par", "##is", "go", "##es", "to", "in", "and", "Ber", "##lin", ".", "se", "New"]
TEXTS = [
    "Annabel goes to Paris and Berlin .",
    "Anna sees Paris Berlin New Annabel in Paris",
    "to  unknown Annaa , New\nParis",
    "",
    "Berlin",
]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]


def write_wordpiece(folder):
    vocabulary = {token: id for id, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *PIECES])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    write(backend, folder)


def write_byte_pairs(folder):
    """Tokens of bytes without a mark for what continues a word, so that spaces say it."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id for id, token in enumerate([*alphabet, "[PAD]", "[UNK]", "An", "na", "Anna", "Ġt"])}
    merges = [("A", "n"), ("n", "a"), ("An", "na"), ("Ġ", "t")]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    write(backend, folder)


def write(backend, folder):
    backend.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


@pytest.fixture(scope="module", params=["wordpiece", "byte-pairs"])
def pair(request, make_model, tmp_path_factory):
    """Our model and the library's folder, for each kind of tokenizer."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    folder = make_model(
        "bert", 11, auto="AutoModelForTokenClassification", vocab_size=300, max_position_embeddings=64,
        id2label=dict(enumerate(LABELS)), **sizes,
    )  # fmt: skip
    (write_wordpiece if request.param == "wordpiece" else write_byte_pairs)(folder)
    bundle = export_model(folder, tmp_path_factory.mktemp("spans") / "bundle", verify=None).path
    return load(bundle), folder


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
def test_spans_are_those_of_the_pipeline(pair, aggregation):
    ours, folder = pair
    pipeline = transformers.pipeline("token-classification", model=str(folder), aggregation_strategy=aggregation)
    texts = [text for text in TEXTS if text]
    found = ours.spans(texts, aggregation=aggregation, batch_size=2)
    for text, spans in zip(texts, found, strict=True):
        expected = pipeline(text)
        assert [(span.label, span.start, span.end) for span in spans] == [
            (each["entity_group"], each["start"], each["end"]) for each in expected
        ]
        assert [span.score for span in spans] == pytest.approx([each["score"] for each in expected], abs=1e-5)
        assert all(span.text == text[span.start : span.end] for span in spans)
    assert sum(map(len, found)) > 3
    assert ours.spans(texts[0], aggregation=aggregation) == found[0]


def test_the_aggregation_counts(pair):
    """The negative control: words are labelled otherwise than their tokens."""
    ours, _ = pair
    ways = {
        way: str([ours.spans(text, aggregation=way) for text in TEXTS if text])
        for way in ("simple", "first", "average", "max")
    }
    assert len(set(ways.values())) >= 2


@pytest.mark.parametrize(
    ("texts", "aggregation", "message"),
    [
        ("Anna", "last", "aggregation is 'last' .*; it must be one of simple, first, average, max"),
        ([[5, 6]], "simple", "spans are parts of texts, and not of token ids"),
        (None, "simple", "text is None"),
        ("Anna " * 70, "simple", "the text has"),
    ],
)
def test_what_has_no_spans_is_refused(pair, texts, aggregation, message):
    with pytest.raises(RequestError, match=message):
        pair[0].spans(texts, aggregation=aggregation)


def test_the_command_prints_spans(pair):
    ours, _ = pair
    expected = ours.spans(TEXTS[0], aggregation="first")
    arguments = ["run", str(ours.folder), TEXTS[0], "--aggregation", "first"]
    printed = CliRunner().invoke(cli, [*arguments, "--json"])
    assert [each["text"] for each in json.loads(printed.stdout)] == [span.text for span in expected]
    table = CliRunner().invoke(cli, arguments).stdout
    assert all(f"{span.score:.3f}" in table and span.label in table for span in expected)
