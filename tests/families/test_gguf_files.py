"""GGUF files: headers and metadata that are damaged or unknown are one sentence, tokenizers give their tokens."""

import gc
import json
import os
import random
import shutil
import struct
from pathlib import Path

import gguf
import gguf_writer
import numpy as np
import pytest
import sentencepiece
import tokenizers
import torch
from click.testing import CliRunner
from exported_twice import export_twice
from rows import SIZES
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from edgeformer.checkpoints.found_model import PRESETS, find_model
from edgeformer.checkpoints.gguf import gguf_file
from edgeformer.checkpoints.gguf.gguf_file import TYPES, open_gguf
from edgeformer.checkpoints.gguf.tokenizer_json import WORDS, write_gguf_tokenizer
from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.errors import ConfigError, EdgeformerError, WeightsError
from edgeformer.export import export_model
from edgeformer.export.importers.opened_bundle import find_checkpoint
from edgeformer.export.importers.tokenizer_files import TokenizerFiles
from edgeformer.manifest.quantization import QuantizationOverrides
from edgeformer.runtime import load
from edgeformer.runtime.text.tokenizer import Tokenizer
from edgeformer.transformers_backend.tensors.gguf_metadata import quick_headers

TEXTS = (
    "Hello, world! It's 1234567 o'clock.", " two  spaces,\ta tab\n\nand lines \n", "naïve café, 漢字, 🙂", "", "   ",
    "<|im_start|>user\nHi<|im_end|>", "x=f(a,b);  # y",
)  # fmt: skip
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"


def trained_tokenizer(writer):
    """Add the tokenizer of a preset, a byte-level one of SmolLM's kind."""
    content = json.loads((PRESETS / "tiny-llama" / "tokenizer.json").read_text())
    ids = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    special = {each["content"] for each in content["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(ids)
    kinds = [gguf.TokenType.CONTROL if each in special else gguf.TokenType.NORMAL for each in ids]
    writer.add_token_types(kinds)
    pairs = [each if isinstance(each, str) else " ".join(each) for each in content["model"]["merges"]]
    writer.add_token_merges(pairs)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


@pytest.fixture(scope="module")
def small(make_model, tmp_path_factory):
    """A file of a small Llama in Q8_0, with a trained tokenizer."""
    folder = make_model("llama", **SIZES | {"vocab_size": 2048, "num_hidden_layers": 1})
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    gguf_writer.write_folder(folder, path, "Q8_0", tokens=trained_tokenizer)
    return path


def test_a_file_in_use_is_read_once_and_a_changed_one_again(small, tmp_path, monkeypatch):
    read, heads = [], gguf_file._read
    monkeypatch.setattr(gguf_file, "_read", lambda path: read.append(path) or heads(path))
    file, link = tmp_path / "model.gguf", tmp_path / "link.gguf"
    shutil.copy(small, file)
    link.symlink_to(file)
    opened = open_gguf(file)
    assert open_gguf(link) is opened and len(read) == 1
    os.utime(file, ns=(1, 1))  # as another file that took its place
    assert open_gguf(file) is not opened and len(read) == 2
    del opened
    gc.collect()
    assert open_gguf(link) is not None and len(read) == 3, "nobody had it open"


def test_an_export_talks(small, tmp_path):
    result = export_model(small, tmp_path / "bundle", precision="int8", quantization=QuantizationOverrides(block=32))
    assert result.warnings == ()
    assert result.manifest.provenance.source == "file small.gguf"
    assert result.manifest.name == "small"
    assert result.manifest.tokens.eos == (2, 0), "the end of a turn, and that of a text, which has a known name"
    assert "tokens" in result.report.comparison.describe() or result.report.comparison.difference < 1e-6
    shutil.copy(small, tmp_path)
    assert find_checkpoint(tmp_path / "bundle") == str(tmp_path / "small.gguf"), "beside the bundle"
    model = load(tmp_path / "bundle")
    original = tokenizers.Tokenizer.from_file(str(PRESETS / "tiny-llama" / "tokenizer.json"))
    for text in TEXTS:
        assert model.tokenizer.encode(text) == original.encode(text).ids
    assert model.tokenizer.render_chat([{"role": "user", "content": "Hi"}]).startswith("<|im_start|>Hi")


@pytest.mark.slow
def test_a_file_is_compared_the_same_in_a_process_of_its_own(small, tmp_path):
    here, apart = export_twice(small, tmp_path, precision="int4")
    assert here == apart and apart[0].difference < 1e-6


def test_info_needs_no_weights(small):
    done = CliRunner().invoke(cli, ["info", str(small)])
    assert done.exit_code == 0
    assert "file small.gguf: 1 layer" in done.output.replace("layers", "layer")


def test_a_folder_may_have_one_model(small, tmp_path):
    shutil.copy(small, tmp_path / "one.gguf")
    shutil.copy(small, tmp_path / "mmproj-one.gguf")
    assert find_model(tmp_path).name == tmp_path.name
    shutil.copy(PRESETS / "tiny-translate" / "tokenizer.json", tmp_path)
    found = find_model(tmp_path)
    assert (found.folder / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    shutil.copy(small, tmp_path / "two.gguf")
    with pytest.raises(ConfigError, match=r"has 2 GGUF files \(one.gguf, two.gguf\). Give one of them"):
        find_model(tmp_path)


def test_a_file_on_the_hub_is_named_behind_its_repository(small, tmp_path, monkeypatch):
    asked = []

    def downloaded(hub_id, patterns):
        asked.append((hub_id, patterns))
        return tmp_path

    monkeypatch.setattr("edgeformer.checkpoints.found_model._download", downloaded)
    shutil.copy(small, tmp_path / "small.gguf")
    assert find_model("org/small-GGUF:small.gguf").origin == "hub org/small-GGUF:small.gguf"
    with pytest.raises(ConfigError, match="has no file a-00001-of-00002.gguf"):
        find_model("org/small-GGUF:a-00001-of-00002.gguf")
    assert asked == [("org/small-GGUF", ["small.gguf"]), ("org/small-GGUF", ["a-*-of-00002.gguf"])]


def spread(path, content):
    path.write_bytes(content)
    return path


def test_a_file_that_is_cut_off_is_one_sentence(small, tmp_path):
    whole = small.read_bytes()
    places = [0, 1, 4, 8, 23, 24, 40, 1000, len(whole) // 2, len(whole) - 33, *range(100, 30000, 977)]
    for place in places:
        with pytest.raises(WeightsError, match=r"cut off|no GGUF file") as caught:
            open_gguf(spread(tmp_path / "cut.gguf", whole[:place]))
        assert "\n" not in str(caught.value)


def test_garbage_is_one_sentence_or_a_model(small, tmp_path):
    whole, chance = bytearray(small.read_bytes()[:60000]), random.Random(0)
    rest = small.read_bytes()[60000:]
    errors = []
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 1, 3, 30])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            open_source(spread(tmp_path / "damaged.gguf", bytes(damaged) + rest))
        except EdgeformerError as error:
            errors.append(str(error))
    assert len(errors) > 10
    assert max(map(len, errors)) < 1500


HEADER = struct.pack("<4sIQQ", b"GGUF", 3, 1, 1)


def text(value):
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no GGUF file"),
        (b"PK\x03\x04" * 10, "is no GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "is GGUF of version 1, and edgeformer reads 2 and 3"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "is a big-endian GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**63, 0), "announces 9,223,372,036,854,775,808 entries"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60), "announces 1,152,921,504,606,846,976 entries"),
        (HEADER + struct.pack("<Q", 2**50), "cut off or damaged"),
        (HEADER + text(b"a\xff") + b"\0" * 40, "is no UTF-8"),
        (HEADER + text(b"a") + struct.pack("<I", 99) + b"\0" * 40, "is of kind 99"),
        (HEADER + text(b"a") + struct.pack("<IIQ", 9, 4, 2**40) + b"\0" * 40, "cut off or damaged"),
        (HEADER + text(b"a") + struct.pack("<IIQ", 9, 9, 1) + b"\0" * 40, "a list before byte"),
        (HEADER + text(b"a") + struct.pack("<II", 4, 1) + text(b"t") + struct.pack("<I", 9) + b"\0" * 40, "has 9 axes"),
        (
            HEADER + text(b"a") + struct.pack("<II", 4, 1) + text(b"t") + struct.pack("<IQIQ", 1, 8, 24, 0),
            "holds 't' as I8, which is not read",
        ),
        (
            HEADER + text(b"a") + struct.pack("<II", 4, 1) + text(b"t") + struct.pack("<IQIQ", 1, 33, 2, 0),
            "'t' is \\[33\\] of Q4_0",
        ),
    ],
)
def test_damaged_headers_are_named(tmp_path, content, said):
    with pytest.raises(WeightsError, match=said):
        open_gguf(spread(tmp_path / "bad.gguf", content))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"llama.attention.clamp_kqv": 8.0}, "does not know: llama.attention.clamp_kqv = 8.0"),
        ({"llama.logit_scale": 0.5}, "does not know: llama.logit_scale = 0.5"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type = 'longrope'"),
        ({"llama.attention.value_length": 24}, "value_length = 24, and edgeformer computes 16 alone"),
        ({"adapter.type": "lora"}, "has adapter.type, which belongs to no decoder"),
    ],
)
def test_metadata_that_changes_the_model_is_refused(make_model, tmp_path, more, said):
    folder = make_model("llama", **SIZES | {"num_hidden_layers": 1})
    gguf_writer.write_folder(folder, tmp_path / "odd.gguf", more=more)
    with pytest.raises(ConfigError, match=said):
        open_source(tmp_path / "odd.gguf")


@pytest.mark.parametrize(
    ("architecture", "said"),
    [("mamba", "has the architecture 'mamba', which edgeformer does not read from GGUF"), ("clip", "mmproj")],
)
def test_architectures_are_refused_by_name(tmp_path, architecture, said):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", architecture)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(ConfigError, match=said):
        open_source(tmp_path / "other.gguf")


def test_tensors_that_do_not_fit_are_named_with_the_file(make_model, tmp_path):
    folder = make_model("llama", **SIZES | {"num_hidden_layers": 1})
    model = gguf_writer.load(folder)
    model.config.num_hidden_layers = 2
    gguf_writer.write(model, tmp_path / "short.gguf")
    with pytest.raises(WeightsError, match=r"short.gguf do not fit its config.json:\n  missing: model.layers.1"):
        open_source(tmp_path / "short.gguf").weights()


def test_types_have_the_sizes_of_the_package():
    sizes = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for number, kind in TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == kind.name
        assert sizes[kind.name] == (kind.block, kind.bytes)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A SentencePiece model with byte pieces, trained on a page of text."""
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "text.txt").write_text((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "pieces"), vocab_size=600, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "pieces.model"))


def pieces_file(path, pieces, **flags):
    """Write a file with SentencePiece's vocabulary alone."""
    writer = gguf.GGUFWriter(path, "llama")
    count = pieces.vocab_size()
    kinds = [
        gguf.TokenType.UNKNOWN if pieces.is_unknown(id)
        else gguf.TokenType.CONTROL if pieces.is_control(id)
        else gguf.TokenType.BYTE if pieces.is_byte(id)
        else gguf.TokenType.NORMAL
        for id in range(count)
    ]  # fmt: skip
    writer.add_tokenizer_model("llama")
    writer.add_token_list([pieces.id_to_piece(id) for id in range(count)])
    writer.add_token_scores([pieces.get_score(id) for id in range(count)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return open_gguf(path)


def test_pieces_are_those_that_sentencepiece_finds(pieces, tmp_path):
    write_gguf_tokenizer(pieces_file(tmp_path / "pieces.gguf", pieces), tmp_path)
    ours = Tokenizer(tmp_path)
    for each in ("Hello world, edgeformer exports models.", "a  b", "漢字 🙂", "x\ny", "ONNX graphs of transformers"):
        assert ours.encode(each) == [1, *pieces.encode(each)], each
        assert ours.decode(ours.encode(each)) == each


def test_pieces_without_a_space_before_them(pieces, tmp_path):
    flags = {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}
    write_gguf_tokenizer(pieces_file(tmp_path / "pieces.gguf", pieces, **flags), tmp_path)
    ours = Tokenizer(tmp_path)
    assert ours.encode("graphs") == [*pieces.encode("graphs")[1:], 2] or ours.encode("graphs")[-1] == 2
    assert ours.backend.encode("graphs").tokens[0] != "▁graphs"


def test_a_tokenizer_that_is_unknown_is_left_out_and_said(small, tmp_path):
    path = tmp_path / "odd.gguf"
    path.write_bytes(small.read_bytes().replace(text(b"smollm"), text(b"smollx")))
    found = find_model(path)
    files = TokenizerFiles(found.folder)
    (warning,) = files.warnings
    assert "odd.gguf could not be read" in warning
    assert "'smollx'" in warning
    assert not (files.folder / "tokenizer.json").exists()


def test_ways_to_cut_texts_are_named_once():
    assert len(WORDS) == len(set(WORDS))
    assert "smollm" in WORDS
    assert "default" not in WORDS, "what llama.cpp takes for an unknown one is no model's own"


def test_a_quick_reading_of_a_header_is_that_of_the_package(small):
    def read():
        reader = gguf.GGUFReader(small)
        fields = {name: (each.types, [part.tolist() for part in each.parts]) for name, each in reader.fields.items()}
        return fields, {each.name: (each.tensor_type, each.data.tobytes()) for each in reader.tensors}

    def parsed():
        return load_gguf_checkpoint(small, return_tensors=False)

    plain, theirs, cut = read(), parsed(), gguf.GGUFReader._get
    with quick_headers():
        assert gguf.GGUFReader._get is not cut
        assert read() == plain and parsed() == theirs
        once = gguf.GGUFReader(small)
        with quick_headers():
            assert gguf.GGUFReader(small) is once
        assert gguf.GGUFReader(small) is once, "a context within another one forgets nothing"
    assert gguf.GGUFReader is gguf.gguf_reader.GGUFReader
    assert gguf.GGUFReader._get is cut and len(plain[0]["tokenizer.ggml.tokens"][1]) > 4000


def test_rows_of_a_tied_embedding_are_read_alone(small):
    weights = open_source(find_model(small)).weights()
    whole, rows = weights["embedding.weight"], torch.tensor([7, 0, 7, 2047])
    opened = weights._open(weights._places["embedding.weight"].tensor)
    read = []

    class Watched:
        def get_shape(self):
            return opened.get_shape()

        def __getitem__(self, index):
            read.append(index)
            return opened[index]

    weights._open = lambda tensor: Watched()
    assert torch.equal(weights.read_rows("embedding.weight", rows), whole[rows])
    assert read == [slice(0, 1), slice(7, 8), slice(2047, 2048)]
    assert torch.equal(weights.read_rows("embedding.weight", slice(5, 9)), whole[5:9])
    assert read[3:] == [slice(5, 9)]
