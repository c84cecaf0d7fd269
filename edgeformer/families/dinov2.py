"""DINOv2: a ViT with scaled branches, gated networks in its largest model, and interpolated positions.

Source: transformers/models/dinov2/modeling_dinov2.py.
"""

from collections.abc import Callable

from edgeformer.config import FeedForwardConfig, TokenPooler, VisionConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Family, Fields, Packed
from edgeformer.families._vision import Outputs, read_class, read_classifier, read_tower, vit_tensors


def read_config(fields: Fields, context_length: int | None) -> VisionConfig:
    """Read a DINOv2 config.json."""
    # Initial values, a token of training, and what the model returns as the backbone of another one.
    fields.ignore("layerscale_value", "use_mask_token")
    fields.ignore("apply_layernorm", "out_features", "out_indices", "reshape_hidden_states", "stage_names")
    heads: dict[str, Callable[[], Outputs]] = {
        "Dinov2Model": lambda: (TokenPooler(), None),
        "Dinov2ForImageClassification": lambda: (None, read_classifier(fields, "first", "patches")),
    }
    return read_tower(
        fields,
        context_length,
        prefix_tokens=1,
        feed_forward=_read_feed_forward(fields),
        qkv_bias=fields.take("qkv_bias"),
        layer_scale=True,
        interpolates=True,
        outputs=read_class(fields, heads, "Dinov2Model")(),
    )


def _read_feed_forward(fields: Fields) -> FeedForwardConfig:
    """Read the network; a gated one has two thirds of the size, rounded up to a multiple of 8."""
    size, gated = int(fields.take("hidden_size") * fields.take("mlp_ratio")), fields.take("use_swiglu_ffn")
    activation = fields.choice("hidden_act", ACTIVATIONS)
    if gated:
        size, activation = (int(size * 2 / 3) + 7) // 8 * 8, {"activation": "silu"}
    return FeedForwardConfig(intermediate_size=size, **activation, gated=gated, bias=True)


LAYER = "dinov2.encoder.layer.*"

FAMILY = Family(
    summary="DINOv2, its gated giant too; vectors of pictures, labels of pictures",
    read_config=read_config,
    tensors=vit_tensors("dinov2")
    | {
        "blocks.*.attention_norm": f"{LAYER}.norm1",
        "blocks.*.attention_scale.scale": f"{LAYER}.layer_scale1.lambda1",
        "blocks.*.feed_forward_norm": f"{LAYER}.norm2",
        "blocks.*.feed_forward.gate": Packed(f"{LAYER}.mlp.weights_in", 0),
        "blocks.*.feed_forward.up": (f"{LAYER}.mlp.fc1", Packed(f"{LAYER}.mlp.weights_in", 1)),
        "blocks.*.feed_forward.down": f"{LAYER}.mlp.fc2|{LAYER}.mlp.weights_out",
        "blocks.*.feed_forward_scale.scale": f"{LAYER}.layer_scale2.lambda1",
    },
    defaults={
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "mlp_ratio": 4, "hidden_act": "gelu",
        "layer_norm_eps": 1e-6, "image_size": 224, "patch_size": 14, "qkv_bias": True, "use_swiglu_ffn": False,
    },
    optional_prefix="dinov2.",
    ignored_tensors=(r"dinov2\.embeddings\.mask_token", r"classifier\.(weight|bias)"),
)  # fmt: skip
