"""Bundles of every form of cache, and a drafter that knows the answer and is wrong at chosen places."""

import pytest
from forms_of_cache import CONTEXT, KINDS, TEXT, VOCABULARY, Lengths

from edgeformer.export import export_model
from edgeformer.runtime import load
from edgeformer.runtime.generation.generate import run_rows
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts


@pytest.fixture(scope="package")
def models(make_model, tmp_path_factory):
    """Return a function that gives a loaded model by its form of cache."""
    loaded = {}

    def model(kind):
        if kind not in loaded:
            family, sizes, options = KINDS[kind]
            folder = make_model(family, 3, **TEXT, **sizes)
            place = tmp_path_factory.mktemp("bundles") / kind
            export_model(folder, place, context_length=CONTEXT, verify=None, **options)
            loaded[kind] = load(place, threads=1)
        return loaded[kind]

    return model


class Oracle:
    """A drafter that knows how the text goes on, and drafts other tokens at some places of it."""

    def __init__(self, text, wrong=()):
        self._text, self._wrong, self._length = text, set(wrong), 0

    def extend(self, tokens):
        assert list(tokens) == self._text[self._length : self._length + len(tokens)], "the text is another one"
        self._length += len(tokens)

    def draft(self, count):
        places = range(self._length, min(self._length + count, len(self._text)))
        return [(self._text[place] + (place in self._wrong)) % VOCABULARY for place in places]


@pytest.fixture
def speculate():
    """Return a function that runs a request with drafts of an oracle; it returns the `Generation`."""

    def run(model, prompt, plain, lengths, wrong=(), **options):
        row = model.new_row(prompt, **options)
        decoder = model.new_decoder(1, len(prompt) + row.max_new_tokens)
        drafts = RowDrafts(row, lambda: Oracle([*prompt, *plain], wrong), Lengths(lengths))
        run_rows(decoder, [row], drafts=drafts)
        return row.result()

    return run
