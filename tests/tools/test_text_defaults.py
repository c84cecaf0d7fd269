"""The defaults of text models inside bigger ones are those of the installed transformers."""

import json

from verification.text_defaults import FILE, defaults

from edgeformer.families import family_names
from edgeformer.families._wrappers import SAME_ON_TEXT, WRAPPERS


def test_the_file_has_the_defaults_of_transformers():
    stored = json.loads(FILE.read_text())
    assert stored == {kind: defaults(kind) for kind in stored}


def test_every_text_model_that_can_be_read_has_defaults():
    readable = set(family_names()) | SAME_ON_TEXT.keys()
    kinds = {wrapper.text for wrapper in WRAPPERS.values()}
    assert kinds & readable <= json.loads(FILE.read_text()).keys()
