"""The names of the caches that transformers.js makes, which follow from config.json.

It feeds the inputs that have one of these names, and takes their shapes from the graph. Source: getCacheNames and
getNormalizedConfig of `src/configs.js`, transformers.js 4.3.2.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.check.client_rules import transformers_js_types as types
from edgeformer.documents.schema import MOST_LAYERS
from edgeformer.errors import shown

Names = tuple[str, ...]
KEY_VALUE: Names = ("past_key_values.{}.key", "past_key_values.{}.value")
CONV: Names = ("past_conv.{}",)
RECURRENT: Names = ("past_recurrent.{}",)
SSM: Names = ("past_ssm.{}",)
FULL = "full_attention"

# Names of the states of a layer, by the word that config.json has for it in layer_types. An unknown word is an error.
_SHORT_CONV: dict[str, Names] = {FULL: KEY_VALUE, "conv": CONV}
_DELTA: dict[str, Names] = {FULL: KEY_VALUE, "linear_attention": CONV + RECURRENT}
_STRICT: dict[str, dict[str, Names]] = {
    "lfm2": _SHORT_CONV,
    "lfm2_moe": _SHORT_CONV,
    "qwen3_next": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA,
    "olmo_hybrid": {
        FULL: KEY_VALUE,
        "linear_attention": (*(f"past_conv.{{}}.{part}" for part in ("key", "value", "query")), *RECURRENT),
    },
}
# Names of states for types whose layers have no state where the word is unknown, and have all states where config.json
# has no layer_types.
_MAMBA: dict[str, Names] = {"mamba": CONV + SSM, "attention": KEY_VALUE}
_MAMBA_TYPES = ("granitemoehybrid", "falcon_h1", "nemotron_h")


def cache_names(config: Mapping[str, Any]) -> set[str]:
    """Return the names of the caches of a decoder. Raises ValueError with a sentence if it cannot name them."""
    model_type = str(config.get("model_type"))
    if model_type in types.TEXT_CONFIG:
        text = config.get("text_config")
        if not isinstance(text, dict):
            raise ValueError(f"It reads the layers of a {model_type} from text_config, which config.json lacks.")
        return cache_names(text)
    if model_type in _STRICT:
        return _named(_words(config, model_type), _STRICT[model_type])
    if model_type in _MAMBA_TYPES:
        words = config.get("layer_types", config.get("layers_block_type"))
        if words is None:
            return _every(_layers(config, model_type), CONV + SSM + KEY_VALUE)
        return {name.format(layer) for layer, word in enumerate(words) for name in _MAMBA.get(word, ())}
    layers = _layers(config, model_type)
    if model_type in ("gemma4", "gemma4_text"):
        layers -= config.get("num_kv_shared_layers") or 0
    return _every(layers, KEY_VALUE)


def _layers(config: Mapping[str, Any], model_type: str) -> int:
    key = types.LAYERS.get(model_type, "num_hidden_layers")
    layers = config.get(key)
    if type(layers) is not int or layers > MOST_LAYERS:
        raise ValueError(f"It makes caches for the number of layers in config.json, where {key} is {shown(layers)}.")
    return layers


def _words(config: Mapping[str, Any], model_type: str) -> list[str]:
    words = config.get("layer_types")
    if not isinstance(words, list):
        raise ValueError(f"It reads the layers of a {model_type} from layer_types, which config.json lacks.")
    return words


def _named(words: list[str], names: dict[str, Names]) -> set[str]:
    unknown = sorted({word for word in words if word not in names})
    if unknown:
        raise ValueError(f"It does not know the layer_types {', '.join(unknown)} of config.json.")
    return {name.format(layer) for layer, word in enumerate(words) for name in names[word]}


def _every(layers: int, names: Names) -> set[str]:
    return {name.format(layer) for layer in range(layers) for name in names}
