"""MiMo for transformers, which has no class of it: that of Qwen2, as in the code of its repository."""

import transformers


class MiMoConfig(transformers.Qwen2Config):
    """Qwen2's fields; the number of layers of multi-token prediction is one more, and has no effect here."""

    model_type = "mimo"


class MiMoForCausalLM(transformers.Qwen2ForCausalLM):
    """Qwen2's module."""

    config_class = MiMoConfig


def register() -> None:
    """Let transformers make and load models of this type."""
    if "mimo" not in transformers.CONFIG_MAPPING:
        transformers.AutoConfig.register("mimo", MiMoConfig)
        transformers.AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM)
