"""The official client of OpenAI for Node, unmodified, against a server: the program examples/node/openai.mjs.

The client is taken from EDGEFORMER_NODE_MODULES or examples/node/node_modules.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from running_server import running, with_tools

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program, beside the modules that it imports."""
    modules = Path(os.environ.get("EDGEFORMER_NODE_MODULES", EXAMPLES / "node" / "node_modules"))
    if shutil.which("node") is None or not (modules / "openai").is_dir():
        pytest.skip("2026-11-24: needs Node and OpenAI's client; cd examples/node && npm install --ignore-scripts")
    folder = tmp_path_factory.mktemp("node")
    (folder / "node_modules").symlink_to(modules)
    return Path(shutil.copy(EXAMPLES / "node" / "openai.mjs", folder))


def test_the_node_client_chats_streams_and_calls_tools(program, tiny_llama_bundle, tiny_embed_bundle, tmp_path):
    from edgeformer.runtime import load

    tools = with_tools(tiny_llama_bundle, tmp_path / "tools")
    with running([tiny_llama_bundle, tools, tiny_embed_bundle]) as server:
        command = ["node", str(program), f"{server.url}/v1", "tiny-llama", "tools", "tiny-embed"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    lines = dict(line.split(" ", 1) for line in found.stdout.splitlines())
    said = {name: json.loads(value) for name, value in lines.items()}
    assert said["chat"] == "345 + 278 = 623" == "".join(said["stream"])
    assert len(said["stream"]) > 1
    assert set(said["schema"]) == {"sum", "even"} and isinstance(said["schema"]["sum"], int)
    assert said["tool"]["name"] == "weather" and said["tool"]["arguments"]["city"] in ("Paris", "Rome")
    alone = load(tiny_embed_bundle, "cpu", 1).embed(["A dog barks.", "A cat sleeps on the old sofa."])
    np.testing.assert_allclose(said["embeddings"], alone[:, :4], atol=1e-6)
