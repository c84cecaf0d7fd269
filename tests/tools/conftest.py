"""Fixtures of the tests of tools: the tools as modules, and one tiny checkpoint with its bundle."""

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"

# The folders of tools/ are packages, and tools import each other by `FOLDER.NAME`.
sys.path.insert(0, str(TOOLS))


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    from checkpoints.random_checkpoint import write_checkpoint

    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_checkpoint("tiny", folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory, tiny_checkpoint):
    from edgeformer.export import export_model

    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    export_model(tiny_checkpoint, folder, verify=None)
    return folder
