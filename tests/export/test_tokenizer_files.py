"""A tokenizer without a tokenizer.json is read by transformers at export, and gives its ids, its text and its streams.

The oracles are AutoTokenizer over the model's folder and SentencePiece itself.
"""

import base64
import io
import json
import shutil
import sys

import pytest
import sentencepiece
from transformers import AutoTokenizer
from transformers.models.esm.configuration_esm import get_default_vocab_list

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.export import export_model
from edgeformer.export.importers.piece_tokenizer import MARK
from edgeformer.export.importers.tokenizer_files import TokenizerFiles
from edgeformer.runtime import load
from edgeformer.runtime.text.streaming import TextStream
from edgeformer.runtime.text.tokenizer import Tokenizer

TEXTS = (
    "Hello, world!", " two  spaces,\ta tab\nand 1234567 numbers", "naïve café, 🙂", "", "\n", "\n\nHi </s> there <s>",
    "trailing  ", "Straße ﬁ ½ ① Ａ", "a\u0301 \u200b \u00a0x", "<unk> <pad> [CLS]x[SEP]", "The QUICK Brown", "the cat",
)  # fmt: skip

PIECES = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
AS_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "split_digits": True}
BYTES = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 430, **AS_IS}
NAMES = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}

MODELS = {
    "llama": ("tokenizer.model", "LlamaTokenizer", BYTES),
    "gemma": ("tokenizer.model", "GemmaTokenizer", {**BYTES, "add_dummy_prefix": False}),
    "t5": ("spiece.model", "T5Tokenizer", PIECES),
    "umt5": ("spiece.model", "T5Tokenizer", PIECES),
    "pegasus": ("spiece.model", None, PIECES),
    "xlm-roberta": ("sentencepiece.bpe.model", "XLMRobertaTokenizer", {}),
    "mbart": ("sentencepiece.bpe.model", "MBartTokenizer", {}),
    "albert": ("spiece.model", "AlbertTokenizer", {
        "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "normalization_rule_name": "nmt_nfkc_cf",
    }),
    "deberta-v2": ("spm.model", "DebertaV2Tokenizer", {
        **NAMES, "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]", "pad_piece": "[PAD]",
    }),
}  # fmt: skip
"""By model_type: the file, the class of the tokenizer, and how SentencePiece makes it."""


@pytest.fixture(scope="module")
def lines():
    """Sentences of the presets, English and another language, and more letters."""
    rows = [json.loads(row) for row in (PRESETS / "tiny-translate" / "evaluation.jsonl").read_text().splitlines()]
    found = [text for row in rows for text in row.values() if isinstance(text, str)][:600]
    return [*found, *["Straße und Größe, naïve café", "Hello, world! 1234567 890 The quick cat"] * 5]


def train(path, lines, model_type="unigram", vocab_size=300, **options):
    """Write a SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type=model_type, vocab_size=vocab_size,
        minloglevel=2, character_coverage=1.0, num_threads=1, hard_vocab_limit=False, **options,
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def describe(folder, model_type, tokenizer_class=None, **config):
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if tokenizer_class:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class} | config))


def read(folder):
    """Return transformers' tokenizer."""
    named = {"tokenizer_type": "t5"} if json.loads((folder / "config.json").read_text())["model_type"] == "umt5" else {}
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, mistral_format=False, **named)


def streamed(tokenizer, ids):
    stream = TextStream(tokenizer)
    return "".join(map(stream.push, ids)) + stream.flush()


def same(folder, texts=TEXTS, ends=""):
    """Check a folder's tokenizer against transformers'. ends: what decoding may drop at the ends of texts."""
    files = TokenizerFiles(folder)
    theirs, ours = read(folder), Tokenizer(files.folder)
    for text in texts:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids).strip(ends) == theirs.decode(ids, skip_special_tokens=True).strip(ends), text
        assert streamed(ours, ids) == ours.decode(ids)
    return files, ours


@pytest.mark.parametrize("model_type", MODELS)
def test_ids_of_sentencepiece_models_are_those_of_transformers(tmp_path, lines, model_type):
    name, tokenizer_class, options = MODELS[model_type]
    train(tmp_path / name, lines, **options)
    describe(tmp_path, model_type, tokenizer_class)
    files, ours = same(tmp_path)
    assert not any("gives" in warning for warning in files.warnings)
    again = AutoTokenizer.from_pretrained(files.folder, local_files_only=True)  # as clients of a bundle do
    assert all(ours.encode(text) == again(text)["input_ids"] for text in TEXTS)


def test_pieces_that_sentencepiece_finds_otherwise_are_named(tmp_path, lines):
    """transformers leaves out the space before a text of Qwen2's: its class has no reader of such files."""
    train(tmp_path / "tokenizer.model", lines, **BYTES)
    describe(tmp_path, "qwen2", "LlamaTokenizer")
    files, _ = same(tmp_path)
    [warning] = files.warnings
    assert warning.startswith("SentencePiece finds the pieces ['▁', ") and "if its page has a tokenizer.json" in warning


@pytest.fixture
def marian(tmp_path, lines):
    """A model of two SentencePiece models and a vocabulary of both."""
    source = train(tmp_path / "source.spm", [line for line in lines if line.isascii()], vocab_size=150)
    target = train(tmp_path / "target.spm", lines)
    pieces = {model.id_to_piece(id) for model in (source, target) for id in range(3, model.get_piece_size())}
    vocabulary = ["</s>", "<unk>", ">>fra<<", ">>deu<<", *sorted(pieces), "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(vocabulary)}))
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    return tmp_path


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_encodes_with_the_pieces_of_the_source_alone(marian):
    texts = [text for text in TEXTS if "[CLS]" not in text]  # a run of letters that the source has none of
    files, ours = same(marian, [*texts, ">>fra<< Hello there", "the ß 7"], ends=" ")
    assert files.warnings == ()
    only_decoded = [name for name in ours.backend.get_vocab() if name.startswith(MARK)]
    assert only_decoded
    for name in only_decoded[:20]:
        piece, id = name.removeprefix(MARK), ours.backend.token_to_id(name)
        assert id not in ours.encode(piece.replace("▁", " "))
        assert ours.decode([5, id]).endswith(piece.replace("▁", " "))
        assert ours.vocabulary[id].decode() == piece.replace("▁", " ")
    assert ours.config["tokenizer_class"] == "MarianTokenizer"  # which tells the runtime how languages are named


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_m2m100_takes_pieces_from_one_file_and_ids_from_another(tmp_path, lines, kind):
    model = train(tmp_path / "sentencepiece.bpe.model", lines, kind)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *(model.id_to_piece(id) for id in range(3, model.get_piece_size()))]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    describe(tmp_path, "m2m_100", "M2M100Tokenizer", src_lang="en", tgt_lang="fr")
    files = TokenizerFiles(tmp_path)
    theirs, ours = read(tmp_path), Tokenizer(files.folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
    french = ours.backend.token_to_id("__fr__")
    assert french == theirs.get_lang_id("fr") and ours.special_tokens[french] == "__fr__"
    assert ours.decode(ours.encode("Hello, cat")) == "Hello, cat"


@pytest.mark.parametrize(("codes", "language"), [("base", "python"), ("base", None), ("multi", "java")])
def test_plbart_takes_ids_of_fairseq_and_a_language(tmp_path, lines, codes, language):
    train(tmp_path / "sentencepiece.bpe.model", lines, model_type="bpe")
    describe(tmp_path, "plbart", "PLBartTokenizer", src_lang=language, tgt_lang="en_XX", language_codes=codes)
    texts = [*TEXTS, "a __java__ b", "x <mask> y" if codes == "base" else "x y"]
    files, ours = same(tmp_path, texts, ends=" ")
    assert files.warnings == ()
    assert (ours.backend.id_to_token(ours.encode("the cat")[-1]) == f"__{language}__") == (language is not None)


def test_residues_of_proteins_are_tokens_wherever_they_stand(tmp_path):
    describe(tmp_path, "esm", "EsmTokenizer")
    (tmp_path / "vocab.txt").write_text("\n".join(get_default_vocab_list()))
    proteins = (
        "MKTVRQERLKSIVRILERSKEPVSGAQLAEELSVSR",
        " M K\tT V ",
        "MK<mask>TV",
        "mkTV x.Y-Z",
        "<cls>M<eos><null_1>B",
    )
    files, ours = same(tmp_path, [*TEXTS, *proteins])
    assert files.warnings == () and ours.encode("MK<mask>T") == [0, 20, 15, 32, 11, 2]


def test_vocabularies_of_bytes_and_words(tmp_path):
    """GPT-2's vocab.json, merges.txt and added_tokens.json; BERT's vocab.txt."""
    model = json.loads((PRESETS / "tiny-llama" / "tokenizer.json").read_text())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    for model_type in ("gpt2", "qwen2"):
        folder = tmp_path / model_type
        folder.mkdir()
        describe(folder, model_type)
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
        (folder / "added_tokens.json").write_text(json.dumps({"<|call|>": len(model["vocab"])}))
        files, ours = same(folder, [*TEXTS, "a <|call|> b"])
        assert files.warnings == () and ours.decode(ours.encode("\tcafé 🙂\n")) == "\tcafé 🙂\n"
    folder = tmp_path / "bert"
    folder.mkdir()
    describe(folder, "bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "hello", ",", "world", "!"]
    (folder / "vocab.txt").write_text("\n".join(words))
    _, ours = same(folder)
    assert ours.encode("The cats") == [2, 5, 6, 7, 3]


def write_tekken(folder):
    words = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"hello", b" w", b" wo"]
    vocabulary = [{"rank": rank, "token_bytes": base64.b64encode(word).decode()} for rank, word in enumerate(words)]
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<pad>"]
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    sizes = {"default_vocab_size": len(words) + len(special), "default_num_special_tokens": len(special)}
    tekken = {
        "config": {"pattern": pattern, "num_vocab_tokens": len(words), "version": "v7", **sizes},
        "vocab": vocabulary,
        "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(special)],
    }
    (folder / "tekken.json").write_text(json.dumps(tekken))
    describe(folder, "mistral")


def test_tekken_has_the_ids_of_transformers(tmp_path):
    write_tekken(tmp_path)
    files = TokenizerFiles(tmp_path)
    theirs, ours = read(tmp_path), Tokenizer(files.folder)
    for text in (*TEXTS, "[INST]hello world[/INST]"):
        ids = ours.encode(text)
        assert ids == [1, *theirs(text)["input_ids"]]  # as mistral-common begins every text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert streamed(ours, ids) == ours.decode(ids)
    assert ours.encode("hello") == [1, 7 + 259]
    describe(tmp_path, "mistral", "PreTrainedTokenizerFast", add_bos_token=False)
    files = TokenizerFiles(tmp_path)
    assert Tokenizer(files.folder).encode("hello") == [7 + 259]


def test_an_export_has_a_tokenizer_and_its_clients_files(llama_folder, lines, tmp_path):
    folder = shutil.copytree(llama_folder, tmp_path / "model")
    train(folder / "tokenizer.model", [line for line in lines if line.isascii()], vocab_size=100, **AS_IS)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    result = export_model(folder, tmp_path / "bundle", verify=None)
    model = load(result.path)
    assert model.tokenizer.encode("the cat") == read(folder)("the cat")["input_ids"]
    assert (result.path / "chat_template.jinja").is_file() and (result.path / "generation_config.json").is_file()
    assert not (folder / "tokenizer.json").exists()


def test_a_package_that_is_missing_is_named(tmp_path, lines, monkeypatch):
    train(tmp_path / "tokenizer.model", lines, **BYTES)
    describe(tmp_path, "llama", "LlamaTokenizer")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    files = TokenizerFiles(tmp_path)
    assert files.folder == tmp_path
    assert files.warnings == (
        "the tokenizer in tokenizer.model could not be read, so the bundle takes token ids, not text: sentencepiece is "
        "not installed, and this needs it. Install it with: pip install 'edgeformer[transformers]'. Export again then.",
    )
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert "tiktoken is not installed" in TokenizerFiles(tmp_path).warnings[0]


@pytest.mark.parametrize(
    ("model_type", "name", "content", "said"),
    [
        ("t5", "spiece.model", b"xx", "spiece.model is damaged: it has no pieces"),
        ("t5", "spiece.model", b"\x0a\xff\xff", "spiece.model is damaged: "),
        (
            "bert",
            "vocab.json",
            b'{"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6}',
            "transformers finds 5 tokens",
        ),
        (
            "biogpt",
            "vocab.json",
            b'{"a": 0}',
            "by the rules of Moses (sacremoses), which no tokenizer.json can hold; make",
        ),
    ],
)
def test_what_cannot_be_read_is_said_with_what_to_do(tmp_path, model_type, name, content, said):
    (tmp_path / name).write_bytes(content)
    describe(tmp_path, model_type)
    files = TokenizerFiles(tmp_path)
    [warning] = files.warnings
    assert files.folder == tmp_path and said in warning
    assert warning.startswith(f"the tokenizer in {name} could not be read, so the bundle takes token ids, not text: ")
    assert warning.endswith("If the model's page has a tokenizer.json, put it into the folder, and export again.")


def test_a_folder_of_another_tokenizer_or_of_none_stays(tmp_path):
    describe(tmp_path, "llama")
    assert TokenizerFiles(tmp_path).folder == tmp_path and TokenizerFiles(tmp_path).warnings == ()
    assert TokenizerFiles(PRESETS / "tiny-llama").folder == PRESETS / "tiny-llama"


def test_a_temporary_folder_is_removed_with_what_it_is_for(tmp_path):
    write_tekken(tmp_path)
    files = TokenizerFiles(tmp_path)
    made = files.folder
    assert (made / "tokenizer.json").is_file()
    del files
    assert not made.exists()
