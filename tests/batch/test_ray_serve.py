"""examples/ray_serve answers requests of OpenAI's API from a replica that opens the bundle which the header names."""

import importlib.util
import json
import os
import shutil
import socket
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from edgeformer.runtime import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve" / "app.py"

pytestmark = [
    pytest.mark.slow,  # a cluster and its proxy start within the seconds that Ray allows them only on an idle machine
    pytest.mark.skipif(
        importlib.util.find_spec("fastapi") is None, reason="2026-11-25: needs Ray Serve; pip install 'ray[serve]'"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def address(llama, embed, tmp_path_factory):
    """The address of the example over two bundles."""
    models = tmp_path_factory.mktemp("models")
    for bundle in (llama, embed):
        (models / bundle.name).symlink_to(bundle)
    folder = tempfile.mkdtemp(prefix="ef")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    import ray
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = importlib.util.spec_from_file_location("ray_serve_app", EXAMPLE)
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    try:
        ray.init(
            num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, _temp_dir=folder, log_to_driver=False
        )
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(app.build({"folder": str(models), "max_replicas": 1}))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def post(url, model, body):
    headers = {"content-type": "application/json", "serve_multiplexed_model_id": model}
    request = urllib.request.Request(url, json.dumps({"model": model} | body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.loads(response.read())


def test_the_header_names_the_bundle_that_answers(address, llama, embed):
    text = post(
        f"{address}/v1/completions", llama.name, {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    )
    alone = load(llama, "cpu", 1).generate("Once upon a time", max_new_tokens=8).text
    assert text["choices"][0]["text"] == alone
    [entry] = post(f"{address}/v1/embeddings", embed.name, {"input": "A cat sleeps."})["data"]
    assert entry["embedding"] == pytest.approx(load(embed, "cpu", 1).embed("A cat sleeps.").tolist(), abs=1e-5)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        post(f"{address}/v1/completions", "none", {"prompt": "x"})
