"""Beams over every family of text encoder-decoders: the n best texts are those of transformers' `generate`."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from slow_rows import slow_unless

sys.path.insert(0, str(Path(__file__).parents[1] / "families"))

from seq2seq_rows import BART_SIZES, START, T5_SIZES, VOCABULARY

from edgeformer.export import export_model
from edgeformer.runtime import load

ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}
FAMILIES = {
    "t5": T5_SIZES | {"num_layers": 1},
    "mt5": T5_SIZES | {"num_layers": 1},
    "bart": BART_SIZES | ONE_LAYER,
    "mbart": BART_SIZES | ONE_LAYER,
    "marian": BART_SIZES | ONE_LAYER | {"scale_embedding": True},
    "m2m_100": BART_SIZES | ONE_LAYER,
    "pegasus": BART_SIZES | ONE_LAYER | {"scale_embedding": True},
}
ENDS = [3, 20, 40, 60, 80, 100]
"""Several, since a random model hardly ever writes a given token."""
BEST = 3
OPTIONS = {"max_new_tokens": 10, "no_repeat_ngram_size": 2}


@pytest.fixture(scope="module", params=slow_unless(("t5", "bart"), FAMILIES))
def pair(request, make_model, tmp_path_factory):
    """A random model, as our bundle and in transformers."""
    family = request.param
    folder = make_model(family, 1, auto="AutoModelForSeq2SeqLM", **FAMILIES[family])
    pad = json.loads((folder / "config.json").read_text())["pad_token_id"]
    tokens = {"decoder_start_token_id": START, "bos_token_id": None, "eos_token_id": ENDS, "pad_token_id": pad}
    (folder / "generation_config.json").write_text(json.dumps(tokens))
    bundle = export_model(folder, tmp_path_factory.mktemp("beams") / family, context_length=32, verify=None).path
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    return SimpleNamespace(ours=load(bundle), theirs=theirs, pad=pad)


def until_end(tokens):
    return tokens[: next((place for place, token in enumerate(tokens, 1) if token in ENDS), len(tokens))]


def test_the_best_texts_are_those_of_transformers(pair):
    random = np.random.default_rng(0)
    sources = [random.integers(4, VOCABULARY, length).tolist() for length in (9, 4, 6)]
    options = OPTIONS | {"suppress_tokens": [pair.pad]}
    width = max(map(len, sources))
    written = pair.theirs.generate(
        torch.tensor([source + [pair.pad] * (width - len(source)) for source in sources]),
        attention_mask=torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in sources]),
        num_beams=4,
        num_return_sequences=BEST,
        use_cache=False,
        **options,
    )
    expected = [until_end(row) for row in written[:, 1:].tolist()]
    expected = [expected[first : first + BEST] for first in range(0, len(expected), BEST)]

    def best(**beams):
        rows = pair.ours.generate(sources, **options, **beams)
        return [[each.token_ids for each in (row if isinstance(row, list) else [row])] for row in rows]

    assert best(num_beams=4, num_return_sequences=BEST) == expected
    # Negative controls: sources have lists of their own, of texts that differ; and greedy texts are others.
    assert len({str(row) for row in expected}) == len(sources)
    assert all(len({str(text) for text in row}) == BEST for row in expected)
    assert best() != [row[:1] for row in expected]
