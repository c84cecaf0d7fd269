"""Bundles of the trained presets, exported once a session."""

import pytest

from edgeformer.export import export_model


@pytest.fixture(scope="session")
def translate(tmp_path_factory):
    return export_model("tiny-translate", tmp_path_factory.mktemp("bundles") / "tiny-translate", verify=None).path


@pytest.fixture(scope="session")
def embed(tmp_path_factory):
    return export_model("tiny-embed", tmp_path_factory.mktemp("bundles") / "tiny-embed", verify=None).path


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    return export_model("tiny-llama", tmp_path_factory.mktemp("bundles") / "tiny-llama", verify=None).path
