"""The parts that Gemma 3n and Gemma 4 share: embeddings per layer, and layers that read other layers' caches."""

from edgeformer.config import Activation, LayerInputConfig, NormConfig, PerLayerEmbedding
from edgeformer.families._family import Fields

LAYER_INPUT_TENSORS = {
    "per_layer_embedding.embedding": "model.embed_tokens_per_layer",
    "per_layer_embedding.projection": "model.per_layer_model_projection",
    "per_layer_embedding.norm": "model.per_layer_projection_norm",
    "blocks.*.layer_input.gate": "model.layers.*.per_layer_input_gate",
    "blocks.*.layer_input.projection": "model.layers.*.per_layer_projection",
    "blocks.*.layer_input.norm": "model.layers.*.post_per_layer_input_norm",
}

OF_SHARING_LAYERS = r"model\.layers\.\d+\.self_attn\.[kv]_(proj|norm)\.(weight|bias)"
"""Tensors that checkpoints also have for layers that share those of another one."""


def read_layer_input(
    fields: Fields, norm: NormConfig, activation: Activation
) -> tuple[PerLayerEmbedding | None, LayerInputConfig | None]:
    """Read the per-layer embedding, and what every block does with its part of it; None where there is none."""
    size, rows = fields.take("hidden_size_per_layer_input"), fields.take("vocab_size_per_layer_input")
    if not size:
        return None, None
    embedding = PerLayerEmbedding(rows=rows, size=size, norm=norm)
    return embedding, LayerInputConfig(size=size, activation=activation, norm=norm)
