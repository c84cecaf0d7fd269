"""The section of config.json that transformers.js reads, so that Node and browsers load a bundle without options.

Source: transformers.js 4.3, `src/models/session.js` and `src/utils/dtypes.js`.
"""

from pathlib import PurePosixPath
from typing import Any

from edgeformer.manifest import Manifest

KEY = "transformers.js_config"
"""The key of the section."""
NO_SUFFIX = "fp32"
"""The dtype of files without a suffix. A dtype selects files by suffix alone; without one a browser looks for
model_quantized.onnx. The types of the tensors are read from the graph."""


def with_transformers_js_config(hf_config: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return a config.json that says where graphs and their weights are; the manifest lists the files of both.

    A browser cannot list files, so the section says how many files of weights each graph has. A file that the graphs of
    an encoder-decoder share cannot be named there; in Node onnxruntime finds it by itself. A section that the
    checkpoint has is replaced. The config is returned unchanged where there is no graph for this client.
    """
    if manifest.task == "seq2seq-lm" and manifest.merged_graph is None:
        return hf_config
    graphs = [manifest.graph] if manifest.merged_graph is None else [manifest.encoder_graph, manifest.merged_graph]
    counts = {PurePosixPath(name).name: len(_weight_files(manifest, name)) for name in graphs if name is not None}
    weights = {name: count for name, count in counts.items() if count}
    return hf_config | {KEY: {"dtype": NO_SUFFIX, "use_external_data_format": weights}}


def _weight_files(manifest: Manifest, graph: str) -> list[str]:
    """Return the files of weights that are named after a graph."""
    first = f"{graph}_data"
    return [name for name in manifest.files if name == first or name.startswith(f"{first}_")]


def without_transformers_js_config(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json without the section."""
    return {name: value for name, value in hf_config.items() if name != KEY}
