"""The models that families of sound and text are tested with: random ones of transformers' classes.

MODELS[model_type] holds options of each model's config. Windows have a second or two, so that tests are short.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from tower_models import TEXT, byte_level_tokenizer, randomize, reloaded, saved_tokenizer

SPECIAL = [
    "<pad>", "<s>", "</s>", *(f"<unused_{index}>" for index in range(21)), "[AUDIO]", "[BEGIN_AUDIO]", "<|AUDIO|>",
    "<|audio_bos|>", "<|audio_eos|>", "<end_of_utterance>",
]  # fmt: skip
"""Tokens; Voxtral's processor takes token 24 for that of a recording."""
MARKS = {"voxtral": "[AUDIO]", "qwen2_audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"}
"""The text that stands for a recording in a prompt."""
STATES = {"voxtral": "[AUDIO]", "qwen2_audio": "<|AUDIO|>"}
"""The token in the place of each state."""
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: {% for part in m['content'] %}"
    "{% if part['type'] == 'audio' %}MARK{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
TOWER = {
    "hidden_size": 24, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "num_mel_bins": 16,
    "max_source_positions": 100,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A random model: fields of its tower, of its text model, of the whole, and of its feature extractor."""

    audio: dict[str, Any] = field(default_factory=dict)
    text: dict[str, Any] = field(default_factory=dict)
    outer: dict[str, Any] = field(default_factory=dict)
    extractor: dict[str, Any] = field(default_factory=lambda: {"feature_size": 16, "chunk_length": 2})


QWEN2 = {"model_type": "qwen2"}
QWEN2_TOWER = {
    "d_model": 24, "encoder_ffn_dim": 36, "encoder_layers": 2, "encoder_attention_heads": 3, "num_mel_bins": 16,
    "max_source_positions": 100, "hidden_size": None, "intermediate_size": None, "num_hidden_layers": None,
    "num_attention_heads": None,
}  # fmt: skip

MODELS: dict[str, dict[str, Model]] = {
    "voxtral": {
        "four": Model(),
        "two": Model(
            audio={"intermediate_size": 48, "num_mel_bins": 80, "num_attention_heads": 2, "max_source_positions": 50,
                   "num_hidden_layers": 3},
            text={"num_key_value_heads": 5, "head_dim": 16},
            outer={"projector_hidden_act": "silu"},
            extractor={"feature_size": 80, "chunk_length": 1},
        ),
        "one": Model(
            audio={"intermediate_size": 24, "activation_function": "relu", "num_hidden_layers": 1},
            text={"model_type": "mistral", "sliding_window": 24}, outer={"projector_hidden_act": "gelu_new"},
        ),
    },
    "qwen2_audio": {
        "pairs": Model(text=QWEN2),
        "wide": Model(
            audio={"d_model": 40, "encoder_attention_heads": 5, "num_mel_bins": 80, "max_source_positions": 50},
            text=QWEN2 | {"num_key_value_heads": 5},
            extractor={"feature_size": 80, "chunk_length": 1},
        ),
        "windows": Model(
            audio={"encoder_ffn_dim": 20, "encoder_layers": 1, "activation_function": "gelu_new"},
            text=QWEN2 | {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
        ),
    },
}  # fmt: skip


def save(model_type: str, name: str, folder: Any) -> Any:
    """Save a seeded random model with its processor and tokenizer; return transformers' module in float64."""
    row = MODELS[model_type][name]
    torch.manual_seed(sum(map(ord, model_type + name)))
    token = {"voxtral": "audio_token_id", "qwen2_audio": "audio_token_index"}[model_type]
    base = TOWER if model_type == "voxtral" else QWEN2_TOWER
    tower = {key: value for key, value in (base | row.audio).items() if value is not None}
    options = {"audio_config": tower, "text_config": TEXT | row.text, token: SPECIAL.index(STATES[model_type])}
    config = transformers.CONFIG_MAPPING[model_type](**options, **row.outer)
    model = transformers.AutoModelForMultimodalLM.from_config(config)
    randomize(model, ("audio", "projector"))
    model.save_pretrained(folder)
    fast = saved_tokenizer(byte_level_tokenizer(SPECIAL), SPECIAL)
    fast.chat_template = TEMPLATE.replace("MARK", MARKS[model_type])
    extractor = transformers.WhisperFeatureExtractor(**row.extractor)
    if model_type == "qwen2_audio":
        transformers.Qwen2AudioProcessor(extractor, fast, chat_template=fast.chat_template).save_pretrained(folder)
    fast.save_pretrained(folder)
    extractor.save_pretrained(folder)
    return reloaded(transformers.AutoModelForMultimodalLM, folder)
