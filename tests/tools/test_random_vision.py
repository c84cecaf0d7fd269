"""Checkpoints that see have published sizes, tokenizers that read words, and processors that edgeformer reads."""

import pytest
import torch
import transformers
from checkpoints.random_vision import GEOMETRIES, READ_TOKENS, write_reader

from edgeformer.checkpoints.source import open_source
from edgeformer.export.importers.pictures.picture_comparison import compare_pictures

PARAMETERS = {
    "smolvlm-500m": 507_482_304, "lfm2-vl-450m": 450_822_656, "qwen3-vl-2b": 2_127_532_032, "gemma3-4b": 4_300_079_472,
    "modernvbert": 291_356_648,
}  # fmt: skip
"""Parameters of the published checkpoints; of ModernVBERT, whose number no page states, transformers' own count."""
QUESTION = "What is in the picture?"


@pytest.fixture(scope="module", params=GEOMETRIES)
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing") / request.param
    write_reader(request.param, folder).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries_have_the_published_parameters(name):
    geometry, kind, _ = GEOMETRIES[name]
    with torch.device("meta"):
        model = kind._from_config(geometry()[0])
    assert sum(each.numel() for each in model.parameters()) == PARAMETERS[name]


def test_words_are_tokens_and_texts_come_back(written):
    read = transformers.AutoTokenizer.from_pretrained(written)
    tokens = read.encode(QUESTION, add_special_tokens=False)
    assert len(tokens) == 10
    assert read.decode(tokens) == QUESTION
    assert len(read.encode("\n\n", add_special_tokens=False)) == 1  # llama.cpp looks it up
    assert len(read.encode("2026", add_special_tokens=False)) == 4


def test_special_tokens_come_first_and_fillers_last(written):
    geometry, _, _ = GEOMETRIES[written.name]
    config, _, names, _ = geometry()
    read = transformers.AutoTokenizer.from_pretrained(written)
    special, size = names["special"], config.text_config.vocab_size
    assert read.convert_tokens_to_ids(special) == list(range(len(special)))
    assert len(read) == size
    fillers = [f"<unused{token}>" for token in range(len(special) + READ_TOKENS, size)]
    assert read.convert_ids_to_tokens([size - len(fillers), size - 1]) == [fillers[0], fillers[-1]]


def test_a_tokenizer_is_the_same_each_time(written, tmp_path):
    write_reader(written.name, tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (written / "tokenizer.json").read_bytes()


def test_edgeformer_reads_their_pictures(written):
    source = open_source(written)
    assert source.pictures is not None
    assert all("torchvision" in warning for warning in compare_pictures(source.folder, source.pictures))
