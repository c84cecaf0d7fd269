"""A text that begins with the first token, which the tokenizer adds, too, is encoded as by transformers, and logged."""

import logging
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from edgeformer.runtime.text.tokenizer import Tokenizer
from edgeformer.server.service.prompts import text_prompts
from edgeformer.server.service.records import LOG


@pytest.fixture
def served(tmp_path):
    """Return what `text_prompts` reads of a model whose tokenizer begins every text with <s>."""
    backend = Backend(models.WordLevel({"<s>": 0, "<unk>": 1, "Hi": 2}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    backend.save(str(tmp_path / "tokenizer.json"))
    manifest = SimpleNamespace(tokens=SimpleNamespace(bos=0))
    tokenizer = Tokenizer(tmp_path)
    model = SimpleNamespace(
        manifest=manifest, encode=lambda item, _: tokenizer.encode(item) if type(item) is str else item
    )
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend)
    return SimpleNamespace(name=str(tmp_path), model=model, theirs=theirs)


@pytest.fixture
def logged():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    LOG.addHandler(handler)
    yield records
    LOG.removeHandler(handler)


def test_it_is_said_once_and_done_as_transformers_does(served, logged):
    assert text_prompts(served, ["Hi", [0, 0, 2]], "prompt", 2) == [[0, 2], [0, 0, 2]]
    assert logged == []
    for _ in range(2):
        assert text_prompts(served, "<s>Hi", "prompt", 1) == [served.theirs("<s>Hi")["input_ids"]] == [[0, 0, 2]]
    [record] = logged
    assert "the model reads it twice" in record.getMessage()
