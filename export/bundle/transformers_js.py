"""What transformers.js reads in config.json, so that Node and browsers load a bundle without options.

Source: transformers.js 4.3, `src/models/session.js` and `src/utils/dtypes.js`.
"""

from pathlib import PurePosixPath
from typing import Any

from edgeformer.manifest import Manifest

KEY = "transformers.js_config"
# To transformers.js a dtype is a suffix of the file name, and "fp32" is the one without: in a browser it would look for
# model_quantized.onnx. What the graph computes in, it reads from the graph.
NO_SUFFIX = "fp32"


def with_transformers_js_config(hf_config: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return a config.json that says where graphs and their weights are; the manifest lists the files of both.

    A browser cannot look for the file of weights: it has to be told how many there are of each graph. A file that the
    graphs of an encoder-decoder share has no name of its own there; in Node onnxruntime finds it by itself. What the
    checkpoint says about other files is replaced. Where there is no graph for this client, the config is returned as it
    is.
    """
    if manifest.task == "seq2seq-lm" and manifest.merged_graph is None:
        return hf_config
    graphs = [manifest.graph] if manifest.merged_graph is None else [manifest.encoder_graph, manifest.merged_graph]
    counts = {PurePosixPath(name).name: len(_weight_files(manifest, name)) for name in graphs if name is not None}
    weights = {name: count for name, count in counts.items() if count}
    return hf_config | {KEY: {"dtype": NO_SUFFIX, "use_external_data_format": weights}}


def _weight_files(manifest: Manifest, graph: str) -> list[str]:
    """The files of weights that are named after a graph."""
    first = f"{graph}_data"
    return [name for name in manifest.files if name == first or name.startswith(f"{first}_")]


def without_transformers_js_config(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json that speaks of the model alone."""
    return {name: value for name, value in hf_config.items() if name != KEY}
