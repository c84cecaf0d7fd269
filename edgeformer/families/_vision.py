"""Functions that towers of pictures share: sizes, blocks, classes, and the tensor names of ViT and CLIP."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args

from edgeformer.config import (
    AttentionPooler,
    BlockConfig,
    FeedForwardConfig,
    Grid,
    LearnedPositions,
    NormConfig,
    PatchStem,
    PictureClassifier,
    PicturePooling,
    TokenPooler,
    VisionConfig,
)
from edgeformer.config.heads import ProblemType
from edgeformer.errors import ConfigError
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._encoder import read_labels
from edgeformer.families._family import Computed, Fields

T = TypeVar("T")

Outputs = tuple[TokenPooler | AttentionPooler | None, PictureClassifier | None]
"""The pooler and the classifier of a tower."""


def read_tower(
    fields: Fields,
    context_length: int | None,
    *,
    prefix_tokens: int,
    feed_forward: FeedForwardConfig,
    qkv_bias: bool = True,
    patch_bias: bool = True,
    embedding_norm: bool = False,
    final_norm: bool = True,
    layer_scale: bool = False,
    interpolates: bool = False,
    outputs: Outputs = (None, None),
    projection: int | None = None,
) -> VisionConfig:
    """Read the fields that towers share: sizes of pictures and patches, and blocks with norms before.

    Args:
        fields: config.json of the tower.
        context_length: not used; a picture has all its patches, and `open_source` refuses another number.
        prefix_tokens: learned tokens before the patches.
        feed_forward: of all blocks.
        qkv_bias: bias of queries, keys and values.
        patch_bias: bias of the map of patches.
        embedding_norm: whether a norm precedes the blocks.
        final_norm: whether one follows them.
        layer_scale: see `BlockConfig`.
        interpolates, projection: see `VisionConfig`.
        outputs: the pooler and the classifier.
    """
    fields.ignore("attention_dropout", "attention_probs_dropout_prob", "drop_path_rate", "hidden_dropout_prob")
    fields.ignore("initializer_factor", "encoder_stride")
    hidden_size = fields.take("hidden_size")
    height, width = _pair(fields.take("image_size"))
    patch_height, patch_width = _pair(fields.take("patch_size"))
    patches = PatchStem(
        height=height,
        width=width,
        patch_height=patch_height,
        patch_width=patch_width,
        channels=fields.choice("num_channels", {3: 3}, 3),
        bias=patch_bias,
    )
    norm = read_norm(fields)
    block = BlockConfig(
        attention=multi_head(
            hidden_size, fields.take("num_attention_heads"), bias=True, qkv_bias=qkv_bias, causal=False
        ),
        feed_forward=feed_forward,
        norm=norm,
        layer_scale=True if layer_scale else None,
    )
    tokens = prefix_tokens + patches.grid.patches
    return VisionConfig(
        vocab_size=0,
        hidden_size=hidden_size,
        context_length=tokens,
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm if final_norm else None,
        embedding_norm=norm if embedding_norm else None,
        position_embedding=LearnedPositions(rows=tokens),
        patches=patches,
        prefix_tokens=prefix_tokens,
        trained_grid=patches.grid,
        interpolates=interpolates,
        pooler=outputs[0],
        projection=projection,
        classifier=outputs[1],
    )


def read_norm(fields: Fields) -> NormConfig:
    """Read the config of all norms."""
    return NormConfig(kind="layer_norm", eps=fields.take("layer_norm_eps"), bias=True)


def read_feed_forward(fields: Fields) -> FeedForwardConfig:
    """Read the network of `intermediate_size`."""
    return FeedForwardConfig(
        intermediate_size=fields.take("intermediate_size"),
        **fields.choice("hidden_act", ACTIVATIONS),
        gated=False,
        bias=True,
    )


def _pair(size: Any) -> tuple[int, int]:
    """Return height and width of a size that is one number for both, or a list of them."""
    height, width = size if isinstance(size, list) else (size, size)
    return Grid(rows=height, columns=width).rows, width


def read_class(fields: Fields, classes: Mapping[str, T], otherwise: str | None = None) -> T:
    """Return the entry of the class in `architectures`; otherwise: the class of a config.json without any.

    Raises ConfigError for another class.
    """
    given = fields.take("architectures", [otherwise])
    if len(given) != 1 or given[0] not in classes:
        raise ConfigError(
            f"config.json has architectures = {given!r}; edgeformer has {', '.join(classes)}. For another output of "
            "the same tower, change it to one of these."
        )
    return classes[given[0]]


def read_classifier(fields: Fields, *poolings: PicturePooling, distilled: bool = False) -> PictureClassifier:
    """Read the labels of a classifier of pictures."""
    kinds: dict[ProblemType | None, ProblemType | None] = {name: name for name in (None, *get_args(ProblemType))}
    return PictureClassifier(
        labels=read_labels(fields),
        poolings=poolings,
        distilled=distilled,
        problem_type=fields.choice("problem_type", kinds, None),
    )


def inner_fields(
    fields: Fields, defaults: Mapping[str, Any], model_type: str, half: Literal["vision", "text"] = "vision"
) -> Fields:
    """Return the fields of a half of a model of two, which must be finished, too.

    Where older files have the half a second time (`vision_config_dict`), that one counts with all of its defaults, as
    in transformers.
    """
    inner = fields.take(f"{half}_config", {})
    older = fields.take(f"{half}_config_dict", None)
    if older is not None:
        inner = {**inner, **defaults, **older}
    read = Fields({**inner, "model_type": model_type}, defaults)
    read.ignore("dropout", "tie_word_embeddings")  # which older versions wrote of every config
    return read


def vit_tensors(model: str) -> dict[str, str]:
    """Return the tensor names that ViT, DeiT and DINOv2 have in common; model: their prefix."""
    embeddings, layer = f"{model}.embeddings", f"{model}.encoder.layer.*"
    return {
        "stem.convolution": f"{embeddings}.patch_embeddings.projection",
        "prefix.0": f"{embeddings}.cls_token",
        "position_embedding.weight": f"{embeddings}.position_embeddings",
        "blocks.*.attention.query": f"{layer}.attention.attention.query",
        "blocks.*.attention.key": f"{layer}.attention.attention.key",
        "blocks.*.attention.value": f"{layer}.attention.attention.value",
        "blocks.*.attention.output": f"{layer}.attention.output.dense",
        "blocks.*.attention_norm": f"{layer}.layernorm_before",
        "blocks.*.feed_forward_norm": f"{layer}.layernorm_after",
        "blocks.*.feed_forward.up": f"{layer}.intermediate.dense",
        "blocks.*.feed_forward.down": f"{layer}.output.dense",
        "final_norm": f"{model}.layernorm",
        "pooler.dense": f"{model}.pooler.dense",
        "classifier.output": "classifier",
    }


def clip_tensors(*heads: tuple[str, str]) -> dict[str, str]:
    """Return the tensor names that the towers of CLIP and SigLIP have in common, and further ones."""
    embeddings = "vision_model.embeddings"
    return {
        "stem.convolution": f"{embeddings}.patch_embedding",
        "position_embedding": f"{embeddings}.position_embedding",
        **encoder_tensors("vision_model"),
        "classifier.output": "classifier",
        **dict(heads),
    }


def encoder_tensors(half: str) -> dict[str, str]:
    """Return the tensor names of the blocks of CLIP and SigLIP; half: their prefix, that of texts or of pictures."""
    layer = f"{half}.encoder.layers.*"
    return {
        **{
            f"blocks.*.attention.{ours}": f"{layer}.self_attn.{theirs}"
            for ours, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("output", "out_proj"))
        },
        "blocks.*.attention_norm": f"{layer}.layer_norm1",
        "blocks.*.feed_forward_norm": f"{layer}.layer_norm2",
        "blocks.*.feed_forward.up": f"{layer}.mlp.fc1",
        "blocks.*.feed_forward.down": f"{layer}.mlp.fc2",
    }


OTHER_HALF = (r"text_model\..*", r"text_projection\.weight", r"logit_(scale|bias)")
"""Tensors of the text model beside a tower, which may be in its checkpoint."""

POSITION_IDS: dict[str, Computed] = {r"(vision|text)_model\.embeddings\.position_ids": "positions"}
"""Numbers that old checkpoints store."""
