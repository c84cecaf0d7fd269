"""DistilBERT: BERT with half of the layers, without segment embeddings and pooler.

Source: transformers/models/distilbert/modeling_distilbert.py.
"""

from edgeformer.config import BlockConfig, EncoderConfig, FeedForwardConfig, LearnedPositions, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._encoder import HEAD_ACTIVATIONS, read_head, usual_heads
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length
from edgeformer.families.bert import COUNTED


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a DistilBERT config.json."""
    fields.ignore("dropout", "finetuning_task", "output_past", "qa_dropout", "seq_classif_dropout", "tie_weights_")
    # Sinusoidal positions are stored in the checkpoint like learned ones.
    fields.ignore("sinusoidal_pos_embds", "tie_word_embeddings")
    hidden_size = fields.take("dim")
    norm = NormConfig(kind="layer_norm", eps=1e-12, bias=True)
    heads = usual_heads(fields, norm, lambda: fields.choice("activation", HEAD_ACTIVATIONS, "gelu"), "relu")
    block = BlockConfig(
        attention=multi_head(hidden_size, fields.take("n_heads"), bias=True, causal=False),
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("hidden_dim"),
            **fields.choice("activation", ACTIVATIONS, "gelu"),
            gated=False,
            bias=True,
        ),
        norm=norm,
        norm_placement="post",
    )
    return EncoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length),
        blocks=(block,) * fields.take("n_layers"),
        final_norm=None,
        position_embedding=LearnedPositions(rows=fields.take("max_position_embeddings")),
        embedding_norm=norm,
        head=read_head(fields, "DistilBert", heads),
    )


FAMILY = Family(
    summary="DistilBERT; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        "embedding": "distilbert.embeddings.word_embeddings",
        "position_embedding": "distilbert.embeddings.position_embeddings",
        "embedding_norm": "distilbert.embeddings.LayerNorm",
        "blocks.*.attention.query": "distilbert.transformer.layer.*.attention.q_lin",
        "blocks.*.attention.key": "distilbert.transformer.layer.*.attention.k_lin",
        "blocks.*.attention.value": "distilbert.transformer.layer.*.attention.v_lin",
        "blocks.*.attention.output": "distilbert.transformer.layer.*.attention.out_lin",
        "blocks.*.attention_norm": "distilbert.transformer.layer.*.sa_layer_norm",
        "blocks.*.feed_forward.up": "distilbert.transformer.layer.*.ffn.lin1",
        "blocks.*.feed_forward.down": "distilbert.transformer.layer.*.ffn.lin2",
        "blocks.*.feed_forward_norm": "distilbert.transformer.layer.*.output_layer_norm",
        "masked_lm.dense": "vocab_transform",
        "masked_lm.norm": "vocab_layer_norm",
        "masked_lm.output": "vocab_projector",
        "classifier.dense": "pre_classifier",
        "classifier.output": "classifier",
        "answer_span": "qa_outputs",
    },
    optional_prefix="distilbert.",
    computed_tensors=COUNTED,
    # Heads of other tasks.
    ignored_tensors=(r"(vocab_(transform|layer_norm|projector)|pre_classifier|classifier|qa_outputs)\.(weight|bias)",),
)
