"""GPT-Neo, TinyStories.

GPT-2 without scaling of scores, and with a window in every second layer. Source:
transformers/models/gpt_neo/modeling_gpt_neo.py.
"""

from edgeformer.config import BlockConfig, DecoderConfig, FeedForwardConfig, LearnedPositions, NormConfig
from edgeformer.errors import ConfigError
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import FULL, SLIDING, of_each_layer, with_windows
from edgeformer.families._rotary import read_context_length

TYPES = {"global": FULL, "local": SLIDING}


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GPT-Neo config.json."""
    fields.ignore("resid_dropout", "embed_dropout", "classifier_dropout")
    # Options of a multiple-choice head.
    fields.ignore("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type")
    fields.ignore("summary_use_proj")
    hidden_size = fields.take("hidden_size")
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_epsilon", 1e-5), bias=True)
    block = BlockConfig(
        attention=multi_head(hidden_size, fields.take("num_heads"), bias=False, output_bias=True, scale=1.0),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("intermediate_size", 4 * hidden_size),
            **fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
            gated=False,
            bias=True,
        ),
        norm=norm,
    )
    config = DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length),
        blocks=(block,) * fields.take("num_layers"),
        final_norm=norm,
        tied_head=fields.take("tie_word_embeddings", True),
        position_embedding=LearnedPositions(rows=fields.take("max_position_embeddings")),
    )
    return with_windows(config, _read_types(fields, len(config.blocks)), fields.take("window_size", 256))


def _read_types(fields: Fields, layers: int) -> list[str]:
    """Return the attention type of each layer from runs, such as [[["global", "local"], 6]] for twelve layers."""
    runs = fields.take("attention_types", [[["global", "local"], 12]])
    names = of_each_layer("attention_types", [name for pattern, count in runs for name in pattern * count], layers)
    if fields.take("attention_layers", names) != names:
        raise ConfigError("config.json has attention_layers that do not follow from its attention_types.")
    for unknown in sorted(set(names) - TYPES.keys()):
        raise ConfigError(f"config.json's attention_types have {unknown!r}; supported here: {', '.join(TYPES)}.")
    return [TYPES[name] for name in names]


FAMILY = Family(
    summary="GPT-Neo, TinyStories: unscaled scores, windows by layer",
    read_config=read_config,
    tensors={
        "embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "blocks.*.attention_norm": "transformer.h.*.ln_1",
        "blocks.*.attention.query": "transformer.h.*.attn.attention.q_proj",
        "blocks.*.attention.key": "transformer.h.*.attn.attention.k_proj",
        "blocks.*.attention.value": "transformer.h.*.attn.attention.v_proj",
        "blocks.*.attention.output": "transformer.h.*.attn.attention.out_proj",
        "blocks.*.feed_forward_norm": "transformer.h.*.ln_2",
        "blocks.*.feed_forward.up": "transformer.h.*.mlp.c_fc",
        "blocks.*.feed_forward.down": "transformer.h.*.mlp.c_proj",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
    # Old checkpoints store masks, which the config determines.
    computed_tensors={
        r"transformer\.h\.\d+\.attn\.attention\.bias": "causal_mask",
        r"transformer\.h\.\d+\.attn\.attention\.masked_bias": "masking_value",
    },
)
