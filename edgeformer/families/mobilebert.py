"""MobileBERT: thin blocks between wide states, norms that only scale and shift, trigrams of thin embeddings.

In a padded batch, transformers lets the embedding of [PAD] into the trigram of a text's last token; here a text gives
what it gives alone. Source: transformers/models/mobilebert/modeling_mobilebert.py.
"""

from dataclasses import replace

from edgeformer.config import BottleneckConfig, EncoderConfig, MaskedLMHead, NormConfig, TokenProjection
from edgeformer.families._attention import multi_head
from edgeformer.families._encoder import HEAD_ACTIVATIONS, Head, layer_norm, read_head, usual_heads
from edgeformer.families._family import Family, Fields
from edgeformer.families.bert import BERT_IGNORED, COUNTED, HEADS_IGNORED, head_tensors, read_bert, read_norm


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a MobileBERT config.json."""
    fields.choice("normalization_type", {"no_norm": None}, "no_norm")
    fields.choice("use_bottleneck", {True: None}, True)
    whole = fields.choice("use_bottleneck_attention", {True: True, False: False}, False)
    shared = fields.choice("key_query_shared_bottleneck", {True: True, False: False}, True)
    if not whole and not shared:  # transformers' own module cannot run: queries read states that are too wide
        fields.choice("use_bottleneck_attention", {True: None}, False)
    size, width = fields.take("intra_bottleneck_size", 128), fields.take("embedding_size", 128)
    fields.choice("true_hidden_size", {size: None}, size)
    pooled = fields.choice("classifier_activation", {True: True, False: False}, True)
    hidden = fields.take("hidden_size")

    def masked_lm(head: Head) -> Head:
        assert isinstance(head, MaskedLMHead)
        return replace(head, own_columns=hidden - width)

    heads = usual_heads(
        fields, read_norm(fields), lambda: fields.choice("hidden_act", HEAD_ACTIVATIONS, "relu"),
        "tanh" if pooled else None,
    )  # fmt: skip
    usual = heads["ForMaskedLM"]
    heads["ForMaskedLM"] = lambda: masked_lm(usual())
    config = read_bert(fields, context_length, read_head(fields, "MobileBert", heads))
    attention, norm = config.blocks[0].attention, NormConfig(kind="affine", eps=0, bias=True)
    assert attention is not None
    block = replace(
        config.blocks[0],
        attention=multi_head(size, attention.num_heads, bias=True, causal=False),
        norm=norm,
        bottleneck=BottleneckConfig(
            size=size,
            attention="residual" if whole else "shared",
            feed_forwards=fields.take("num_feedforward_networks", 4),
        ),
    )
    trigrams = fields.choice("trigram_input", {True: True, False: False}, True)
    projected = trigrams or width != hidden
    return replace(
        config,
        blocks=(block,) * len(config.blocks),
        embedding_norm=norm,
        token_projection=TokenProjection(size=width, trigrams=trigrams) if projected else None,
    )


def _body_tensors() -> dict[str, str]:
    """Return the tensor names of all modules but the heads. The last network of a block has a name of its own."""
    embeddings, layer = "mobilebert.embeddings", "mobilebert.encoder.layer.*"
    names = {
        "embedding": f"{embeddings}.word_embeddings",
        "token_projection": f"{embeddings}.embedding_transformation",
        "position_embedding": f"{embeddings}.position_embeddings",
        "token_type_embedding": f"{embeddings}.token_type_embeddings",
        **layer_norm("embedding_norm", f"{embeddings}.LayerNorm"),
        "blocks.*.attention.query": f"{layer}.attention.self.query",
        "blocks.*.attention.key": f"{layer}.attention.self.key",
        "blocks.*.attention.value": f"{layer}.attention.self.value",
        "blocks.*.attention.output": f"{layer}.attention.output.dense",
        **layer_norm("blocks.*.attention_norm", f"{layer}.attention.output.LayerNorm"),
        "blocks.*.inwards": f"{layer}.bottleneck.input.dense",
        **layer_norm("blocks.*.inwards_norm", f"{layer}.bottleneck.input.LayerNorm"),
        "blocks.*.shared_inwards": f"{layer}.bottleneck.attention.dense",
        **layer_norm("blocks.*.shared_norm", f"{layer}.bottleneck.attention.LayerNorm"),
        "blocks.*.outwards": f"{layer}.output.bottleneck.dense",
        **layer_norm("blocks.*.outwards_norm", f"{layer}.output.bottleneck.LayerNorm"),
    }
    for network, theirs in (("networks.*", f"{layer}.ffn.*"), ("last_network", layer)):
        names |= {
            f"blocks.*.{network}.feed_forward.up": f"{theirs}.intermediate.dense",
            f"blocks.*.{network}.feed_forward.down": f"{theirs}.output.dense",
            **layer_norm(f"blocks.*.{network}.norm", f"{theirs}.output.LayerNorm"),
        }
    return names


FAMILY = Family(
    summary="MobileBERT; masked words, labels of texts and tokens, answers, sentence embeddings",
    read_config=read_config,
    tensors={
        **_body_tensors(),
        **head_tensors("mobilebert"),
        "masked_lm.own_table": "cls.predictions.dense",
    },
    defaults={"hidden_act": "relu"},
    transposed=("cls.predictions.dense",),
    optional_prefix="mobilebert.",
    ignored_tensors=(
        *BERT_IGNORED,
        *HEADS_IGNORED,
        r"cls\.predictions\.dense\.weight",
        r"mobilebert\.encoder\.layer\.\d+\.bottleneck\.attention\.(dense|LayerNorm)\.(weight|bias)",
    ),
    computed_tensors=COUNTED,
)
"""The family of MobileBERT. Where attention reads the residual, what would be shared is stored and not used."""
