"""Complete config.json with what transformers.js reads there, so that Node and browsers load a bundle without options.

Source: transformers.js 4.3, `src/configs.js`, `src/models/session.js` and `src/utils/dtypes.js`.
"""

from pathlib import PurePosixPath
from typing import Any

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.manifest.graph_forms import TRANSFORMERS_JS
from edgeformer.manifest.manifest import Manifest

KEY = "transformers.js_config"
"""The key of the section."""
NO_SUFFIX = "fp32"
"""The dtype of files without a suffix. A dtype selects files by suffix alone; without one a browser looks for
model_quantized.onnx. The types of the tensors are read from the graph."""

FULL, CONV, LINEAR = "full_attention", "conv", "linear_attention"
"""Words of `layer_types`: layers with keys and values, with a short convolution, with linear attention."""
OLDER_WORDS = {LINEAR: "mamba", FULL: "attention"}
"""Words for the layers of models with selective state spaces. transformers reads both and writes the newer ones."""


def with_transformers_js_config(hf_config: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return a config.json that says where graphs and their weights are, and which states each layer keeps.

    The manifest lists the files. A browser cannot list any, so the section says how many files of weights each graph
    has. A file that the graphs of an encoder-decoder share cannot be named there; in Node onnxruntime finds it by
    itself. A section that the checkpoint has is replaced. The config is returned unchanged where there is no graph for
    this client.
    """
    if manifest.task == "seq2seq-lm" and "merged" not in manifest.graphs:
        return hf_config
    graphs = [graph.file for graph in manifest.graphs.read_by(TRANSFORMERS_JS).values()]
    counts = {PurePosixPath(graph).name: len(_weight_files(manifest, graph)) for graph in graphs}
    weights = {name: count for name, count in counts.items() if count}
    layers = _layer_types(hf_config, manifest.cache) | _number_of_layers(hf_config, manifest.cache)
    device = _device(manifest)
    return hf_config | layers | {KEY: {"dtype": NO_SUFFIX, **device, "use_external_data_format": weights}}


def _device(manifest: Manifest) -> dict[str, str]:
    """Return the device of a bundle for browsers, where its graphs are for another one than they take by default."""
    runs_on, browsers_alone = manifest.plan.runs_on, not manifest.plan.place.shared_data
    return {"device": runs_on.browser_device} if browsers_alone and runs_on.on_device and runs_on.browser_device else {}


def _layer_types(hf_config: dict[str, Any], cache: CacheGeometry) -> dict[str, list[str]]:
    """Return the types of layers by which it names states of fixed size, where the checkpoint's do not serve.

    Some checkpoints have none, but the numbers of the layers with attention. Of models with selective state spaces
    (Mamba-2) it knows older words, and takes every layer to have every state where there are none.
    """
    names = {tensor.name for tensor in cache.tensors() if not tensor.per_token}
    if "ssm" in names:
        keys = [key for key in ("layer_types", "layers_block_type") if hf_config.get(key)]
        return {key: [OLDER_WORDS.get(word, word) for word in hf_config[key]] for key in keys}
    if not names or hf_config.get("layer_types"):
        return {}
    fixed = LINEAR if "recurrent" in names else CONV
    keeps = [
        {tensor.per_token for tensor in cache.tensors() if tensor.layer == layer} for layer in range(cache.num_layers)
    ]
    return {"layer_types": [FULL if True in kinds else fixed for kinds in keeps]}


def _number_of_layers(hf_config: dict[str, Any], cache: CacheGeometry) -> dict[str, Any]:
    """Return the number of layers where it looks for it, if it is not there.

    That of a Qwen2-VL is beside what the config has of its text model, that of others in it. Checkpoints leave out what
    transformers takes by default.
    """
    text, layers = hf_config.get("text_config"), {"num_hidden_layers": cache.num_layers}
    if not isinstance(text, dict):
        return {}
    if hf_config.get("model_type") == "qwen2_vl":
        return {} if "num_hidden_layers" in hf_config else layers
    return {} if "num_hidden_layers" in text else {"text_config": text | layers}


def _weight_files(manifest: Manifest, graph: str) -> list[str]:
    """Return the files of weights that are named after a graph."""
    first = f"{graph}_data"
    return [name for name in manifest.files if name == first or name.startswith(f"{first}_")]


def without_transformers_js_config(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json without the section."""
    return {name: value for name, value in hf_config.items() if name != KEY}
