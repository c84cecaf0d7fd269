"""CodeGen: GPT-J with query, value and key in one tensor, in shards for the four cores of a TPU.

Source: transformers/models/codegen/modeling_codegen.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.errors import ConfigError
from edgeformer.families import gptj
from edgeformer.families._family import Family, Fields, Packed

CORES = 4


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a CodeGen config.json."""
    fields.ignore("n_ctx")
    if fields.take("n_head") % CORES:
        raise ConfigError(f"config.json has n_head = {fields.take('n_head')}; CodeGen's heads are divided by {CORES}.")
    return gptj.read_config(fields, context_length)


FAMILY = Family(
    summary="CodeGen",
    read_config=read_config,
    tensors={
        **gptj.FAMILY.tensors,
        **{
            f"blocks.*.attention.{name}": Packed("transformer.h.*.attn.qkv_proj", part, shards=CORES)
            for part, name in enumerate(("query", "value", "key"))
        },
    },
    computed_tensors={
        r"transformer\.h\.\d+\.attn\.(causal_mask|bias)": "causal_mask",
        r"transformer\.h\.\d+\.attn\.masked_bias": "masking_value",
    },
)
