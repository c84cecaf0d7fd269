"""MiMo: Qwen2 with layers of multi-token prediction.

Source: https://huggingface.co/XiaomiMiMo/MiMo-7B-Base (modeling_mimo.py), vllm/model_executor/models/mimo.py and
mimo_mtp.py.
"""

from dataclasses import replace

from edgeformer.config import DecoderConfig
from edgeformer.families import qwen2
from edgeformer.families._family import Fields
from edgeformer.families._mtp import MTPTables


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a MiMo config.json."""
    fields.ignore("num_nextn_predict_layers")  # read by `with_mtp`, where drafts are asked for
    return qwen2.read_config(fields, context_length)


FAMILY = replace(
    qwen2.FAMILY,
    summary="MiMo 7B: Qwen2 with a layer of multi-token prediction",
    read_config=read_config,
    reads_is_causal=False,
    ignored_tensors=(r"model\.mtp_layers\..*",),
    mtp=MTPTables(
        count="num_nextn_predict_layers",
        block="model.mtp_layers.0.",
        parts={
            "token_norm": "model.mtp_layers.0.token_layernorm",
            "state_norm": "model.mtp_layers.0.hidden_layernorm",
            "projection": "model.mtp_layers.0.input_proj",
            "norm": "model.mtp_layers.0.final_layernorm",
        },
        hidden_first=True,
    ),
)
