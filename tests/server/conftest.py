"""Let the tests find the tools, of which they use the driver of a browser and the load generator."""

import functools
import sys
from pathlib import Path

import httpcore2
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once():
    """Give all clients one context of TLS: each request makes a client, which reads 140 certificates and needs none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", functools.cache(httpcore2.default_ssl_context))
        yield
