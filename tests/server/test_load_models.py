"""Bundles that a server refuses before it listens."""

import pytest

from edgeformer.errors import RequestError
from edgeformer.server import served


def test_two_folders_of_one_name_are_refused():
    with pytest.raises(RequestError, match="two bundles are called tiny"):
        served.load_models(["a/tiny", "b/tiny"])
