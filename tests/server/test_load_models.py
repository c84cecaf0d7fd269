"""Which bundles a server refuses before it listens."""

import pytest

from edgeformer.errors import RequestError
from edgeformer.runtime import Seq2SeqLM
from edgeformer.server import served


def test_a_speech_model_is_refused_because_no_route_serves_it(monkeypatch):
    speech = object.__new__(Seq2SeqLM)
    monkeypatch.setattr(Seq2SeqLM, "is_speech", property(lambda self: True))
    monkeypatch.setattr(served, "load", lambda *_: speech)
    with pytest.raises(RequestError, match="tiny-whisper is a speech model, and the server has no route for these"):
        served.load_models(["tiny-whisper"])


def test_two_folders_of_one_name_are_refused():
    with pytest.raises(RequestError, match="two bundles are called tiny"):
        served.load_models(["a/tiny", "b/tiny"])
