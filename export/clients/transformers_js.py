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
    """Return a config.json that says where the graph of a decoder or an encoder and its weights are.

    A browser cannot look for the file of weights: it has to be told how many there are of each graph. What the
    checkpoint says about other files is replaced. An encoder-decoder's config is returned as it is.
    """
    if manifest.task == "seq2seq-lm":
        return hf_config
    return hf_config | {
        KEY: {"dtype": NO_SUFFIX, "use_external_data_format": {PurePosixPath(manifest.graph).name: 1}},
    }


def without_transformers_js_config(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json that speaks of the model alone."""
    return {name: value for name, value in hf_config.items() if name != KEY}
