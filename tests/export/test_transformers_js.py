"""config.json tells transformers.js where graph and weights are, in a browser too."""

import json

from edgeformer.client_files.transformers_js import with_transformers_js_config
from edgeformer.runtime import load


def test_a_config_names_the_graph_and_its_file_of_weights(llama_bundle):
    manifest = load(llama_bundle).manifest
    checkpoint = {"model_type": "llama", "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"fp16": "x"}}}
    config = with_transformers_js_config(checkpoint, manifest)
    own = {"dtype": "fp32", "use_external_data_format": {"model.onnx": 1}}
    assert config == {"model_type": "llama", "transformers.js_config": own}
    assert checkpoint["transformers.js_config"]["dtype"] == "q4"
    assert [path.name for path in (llama_bundle / "onnx").iterdir() if path.suffix == ".onnx_data"] == [
        "model.onnx_data"
    ]


def test_a_bundle_has_it(llama_bundle):
    config = json.loads((llama_bundle / "config.json").read_text())
    assert config["transformers.js_config"]["dtype"] == "fp32"
