"""Bundles that a server refuses before it listens."""

import pytest

from edgeformer.errors import RequestError
from edgeformer.server.service import served


def test_two_folders_of_one_name_are_refused():
    with pytest.raises(RequestError, match="two bundles are called tiny"):
        served.load_models(["a/tiny", "b/tiny"])


def test_a_draft_model_is_for_one_bundle(tiny_llama_bundle):
    with pytest.raises(RequestError, match="a draft model drafts for one bundle"):
        served.load_models(["a/tiny", "b/small"], draft=tiny_llama_bundle)
    models = served.load_models([tiny_llama_bundle], "cpu", draft=tiny_llama_bundle)
    try:
        [model] = models
        assert model.model.draft.folder == tiny_llama_bundle
        model.engine.submit("Once upon a time", max_new_tokens=48).finish(60)
        assert model.engine.statistics().drafted_tokens > 0
    finally:
        models.close(drain=False)
