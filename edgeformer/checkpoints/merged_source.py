"""Merge a LoRA adapter into a model that is about to be exported: its weights, and where it must be its config."""

from dataclasses import replace
from pathlib import Path

from edgeformer.checkpoints.source import ModelSource
from edgeformer.config import DecoderConfig
from edgeformer.errors import ConfigError
from edgeformer.lora.adapter_tensors import open_adapter
from edgeformer.lora.merged_adapter import MergedAdapter


def merge_adapter(source: ModelSource, folder: str | Path) -> ModelSource:
    """Return a model whose weights are those of `source` with an adapter merged into them.

    folder: of adapter_config.json and adapter_model.safetensors. A head that is tied to the embedding is untied where
    the adapter changes one of the two, since PEFT computes that, too, until it merges.

    Raises ConfigError and WeightsError for an adapter that does not fit the model.
    """
    if source.random_weights is not None:
        raise ConfigError(f"{source.origin} has random weights, and no adapter was trained on them.")
    adapter = open_adapter(folder)
    config, hf_config, copies = source.config, source.hf_config, dict[str, str]()
    if isinstance(config, DecoderConfig) and config.tied_head:
        free, prefix = replace(config, tied_head=False), source.family.optional_prefix
        embedding, head = (place.tensor for place in source.family.places(["embedding.weight", "head.weight"]).values())
        if {each for name in adapter.changed for each in (name, prefix + name)} & {embedding, head}:
            config, hf_config, copies = free, hf_config | {"tie_word_embeddings": False}, {head: embedding}
    return replace(
        source,
        name=f"{source.name}-{adapter.name}",
        config=config,
        hf_config=hf_config,
        merged=MergedAdapter(adapter, copies),
    )
