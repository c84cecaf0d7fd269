"""BERT, and sentence encoders of this architecture: MiniLM, BGE, E5, GTE.

Source: transformers/models/bert/modeling_bert.py.
"""

from typing import Literal

from edgeformer.config import BlockConfig, EncoderConfig, FeedForwardConfig, LearnedPositions, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._encoder import HEAD_ACTIVATIONS, Head, layer_norm, read_head, usual_heads
from edgeformer.families._family import Computed, Family, Fields
from edgeformer.families._rotary import read_context_length


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a BERT config.json."""
    # Options of a pooler of which only one variant exists.
    fields.ignore("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")
    fields.ignore("pooler_size_per_head", "pooler_type")
    heads = usual_heads(
        fields, read_norm(fields), lambda: fields.choice("hidden_act", HEAD_ACTIVATIONS, "gelu"), "tanh"
    )
    return read_bert(fields, context_length, read_head(fields, "Bert", heads))


def read_norm(fields: Fields) -> NormConfig:
    """Read the config of all norms."""
    return NormConfig(kind="layer_norm", eps=fields.take("layer_norm_eps", 1e-12), bias=True)


def read_bert(
    fields: Fields,
    context_length: int | None,
    head: Head,
    first_position: int = 0,
    *,
    norm_placement: Literal["pre", "post"] = "post",
    embedding_norm: bool = True,
) -> EncoderConfig:
    """Read the fields that BERT and its variants share.

    Args:
        fields: config.json.
        context_length: positions of the export; None for all.
        head: see `read_head`.
        first_position: row of position 0 in the table of positions.
        norm_placement: of all blocks; with `pre`, a norm follows the last block.
        embedding_norm: whether embeddings are normalized.
    """
    fields.ignore("attention_probs_dropout_prob", "classifier_dropout", "finetuning_task", "hidden_dropout_prob")
    fields.ignore("output_past", "tie_word_embeddings")
    fields.choice("add_cross_attention", {False: None}, False)
    fields.choice("is_decoder", {False: None}, False)
    fields.choice("position_embedding_type", {"absolute": None}, "absolute")
    hidden_size, norm = fields.take("hidden_size"), read_norm(fields)
    block = BlockConfig(
        attention=multi_head(hidden_size, fields.take("num_attention_heads"), bias=True, causal=False),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("intermediate_size"),
            **fields.choice("hidden_act", ACTIVATIONS, "gelu"),
            gated=False,
            bias=True,
        ),
        norm=norm,
        norm_placement=norm_placement,
    )
    return EncoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length, unused=first_position),
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm if norm_placement == "pre" else None,
        position_embedding=LearnedPositions(rows=fields.take("max_position_embeddings"), offset=first_position),
        embedding_norm=norm if embedding_norm else None,
        token_types=fields.take("type_vocab_size", 2),
        head=head,
    )


def body_tensors(model: str) -> dict[str, str]:
    """Return the tensor names of all modules but the heads; model: their prefix."""
    embeddings, layer = f"{model}.embeddings", f"{model}.encoder.layer.*"
    return {
        "embedding": f"{embeddings}.word_embeddings",
        "position_embedding": f"{embeddings}.position_embeddings",
        "token_type_embedding": f"{embeddings}.token_type_embeddings",
        **layer_norm("embedding_norm", f"{embeddings}.LayerNorm"),
        "blocks.*.attention.query": f"{layer}.attention.self.query",
        "blocks.*.attention.key": f"{layer}.attention.self.key",
        "blocks.*.attention.value": f"{layer}.attention.self.value",
        "blocks.*.attention.output": f"{layer}.attention.output.dense",
        **layer_norm("blocks.*.attention_norm", f"{layer}.attention.output.LayerNorm"),
        "blocks.*.feed_forward.up": f"{layer}.intermediate.dense",
        "blocks.*.feed_forward.down": f"{layer}.output.dense",
        **layer_norm("blocks.*.feed_forward_norm", f"{layer}.output.LayerNorm"),
    }


# The pooler, which only some heads use.
BERT_IGNORED = (r"\w+\.pooler\.dense\.(weight|bias)",)

COUNTED: dict[str, Computed] = {
    r"\w+\.embeddings\.position_ids": "positions",
    r"\w+\.embeddings\.token_type_ids": "zeros",
}
"""Numbers that old checkpoints store."""

# Heads of other tasks, which a checkpoint may have in addition.
HEADS_IGNORED = (
    r"cls\.predictions\.((decoder\.)?bias|decoder\.weight)",
    r"cls\.predictions\.transform\.(dense|LayerNorm)\.(weight|bias|gamma|beta)",
    r"(cls\.seq_relationship|classifier|qa_outputs)\.(weight|bias)",
)


def head_tensors(model: str, norm: str = "LayerNorm") -> dict[str, str]:
    """Return the tensor names of BERT's heads; model: prefix of the pooler, norm: name of the norm of masked words."""
    return {
        "masked_lm.dense": "cls.predictions.transform.dense",
        **layer_norm("masked_lm.norm", f"cls.predictions.transform.{norm}"),
        "masked_lm.output.weight": "cls.predictions.decoder.weight",
        # If both are stored, the second is a copy or unused.
        "masked_lm.output.bias": "cls.predictions.decoder.bias|cls.predictions.bias",
        "classifier.dense": f"{model}.pooler.dense",
        "classifier.output": "classifier",
        "answer_span": "qa_outputs",
    }


FAMILY = Family(
    summary="BERT, MiniLM, BGE, E5; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={**body_tensors("bert"), **head_tensors("bert")},
    optional_prefix="bert.",
    ignored_tensors=(*BERT_IGNORED, *HEADS_IGNORED),
    computed_tensors=COUNTED,
)
