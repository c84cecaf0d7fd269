"""The programs of official clients, unmodified, against a server: chats, streams, tools over two turns, schemas.

A client is taken from the running interpreter, or from the environments in the folder EDGEFORMER_SERVER_CLIENTS; npm
packages also from EDGEFORMER_NODE_MODULES or examples/node/node_modules. All of them are run by
`tools/verification/server_conformance.py`, which writes the table of the reference.
"""

import os
from pathlib import Path

import pytest
from verification.server_clients.runs import PROGRAMS, Places, is_right, run
from verification.server_clients.scripted_server import scripted_server, with_tools

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def places():
    folder = os.environ.get("EDGEFORMER_SERVER_CLIENTS")
    found = Places.found(Path(folder) if folder else None)
    modules = Path(os.environ.get("EDGEFORMER_NODE_MODULES", EXAMPLES / "node" / "node_modules"))
    return Places(found.environments, (*found.node_modules, modules))


@pytest.fixture(scope="module")
def bundle(tiny_llama_bundle, tmp_path_factory):
    return with_tools(tiny_llama_bundle, tmp_path_factory.mktemp("clients") / "tiny-llama")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_client_does_all_that_its_program_does(program, places, bundle, tmp_path):
    installed = places.installed(program)
    if installed is None:
        pytest.skip(f"2026-11-27: needs {', '.join(program.packages)}; EDGEFORMER_SERVER_CLIENTS names environments")
    with scripted_server(bundle) as url:
        found = run(program, installed[0], url, bundle, tmp_path)
    assert found.error is None, found.error
    assert found.wrong == [] and len(found.calls) > 3


def test_a_wrong_answer_would_be_seen():
    assert is_right("chat", "345 + 278 = 623") and not is_right("chat", "345 + 278 = 624")
    assert is_right("openai streamed tool call", [{"city": "Paris"}]) and not is_right("openai tool call", [])
    assert not is_right("stream", ["345 + 278 = 623"]), "a stream of one piece"
    assert not is_right("structured", {"label": "good", "stars": 4}) and not is_right("of no kind", 1)
