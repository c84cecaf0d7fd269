"""Fields of `FeedForwardConfig` by the name of an activation in config.json. Source: transformers/activations.py."""

from typing import Any

ACTIVATIONS: dict[str, dict[str, Any]] = {
    "gelu": {"activation": "gelu"},
    "gelu_fast": {"activation": "gelu_tanh"},
    "gelu_new": {"activation": "gelu_tanh"},
    "gelu_pytorch_tanh": {"activation": "gelu_tanh"},
    "linear": {"activation": "identity"},
    "quick_gelu": {"activation": "silu", "beta": 1.702},
    "relu": {"activation": "relu"},
    "relu2": {"activation": "relu_squared"},
    "sigmoid": {"activation": "sigmoid"},
    "silu": {"activation": "silu"},
    "swish": {"activation": "silu"},
    "tanh": {"activation": "tanh"},
}
