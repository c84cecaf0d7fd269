"""Merge a LoRA adapter into a model that is about to be exported: its weights, and where it must be its config."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgeformer.checkpoints.source import ModelSource
from edgeformer.config import DecoderConfig
from edgeformer.errors import ConfigError, WeightsError
from edgeformer.lora.adapter_tensors import LoraAdapter, open_adapter
from edgeformer.lora.merged_adapter import MergedAdapter


def merge_adapter(source: ModelSource, folder: str | Path) -> ModelSource:
    """Return a model whose weights are those of `source` with an adapter merged into them.

    folder: of adapter_config.json and adapter_model.safetensors. A head that is tied to the embedding is untied where
    the adapter changes one of the two, since PEFT computes that, too, until it merges. Where the adapter has both for
    another vocabulary, the model has that vocabulary.

    Raises ConfigError and WeightsError for an adapter that does not fit the model.
    """
    if source.random_weights is not None:
        raise ConfigError(f"{source.origin} has random weights, and no adapter was trained on them.")
    adapter = open_adapter(folder)
    config, hf_config, copies, resized = source.config, source.hf_config, dict[str, str](), frozenset[str]()
    if isinstance(config, DecoderConfig):
        family = source.family
        embedding, head = (place.tensor for place in family.places(["embedding.weight", "head.weight"]).values())
        tables = {family.optional_prefix + each: each for each in (embedding, head)} | {
            embedding: embedding,
            head: head,
        }
        changed = [name for name in adapter.changed if name in tables]
        if changed and config.tied_head:
            config, copies = replace(config, tied_head=False), {head: embedding}
            hf_config = hf_config | {"tie_word_embeddings": False}
        rows = {name: adapter.replaced_shape(name)[0] for name in changed if name in adapter.replaced}
        if set(rows.values()) - {config.vocab_size}:
            resized = frozenset(rows)
            vocab_size = _resized(adapter, config, {tables[name]: count for name, count in rows.items()})
            config, hf_config = replace(config, vocab_size=vocab_size), hf_config | {"vocab_size": vocab_size}
    return replace(
        source,
        name=f"{source.name}-{adapter.name}",
        config=config,
        hf_config=hf_config,
        merged=MergedAdapter(adapter, copies, resized),
    )


def _resized(adapter: LoraAdapter, config: DecoderConfig, rows: Mapping[str, int]) -> int:
    """Return the vocabulary size of an adapter's tables. rows: of the embedding and of the head, by their names.

    Raises WeightsError where the adapter lacks one of the two, whose rows of new tokens nobody knows then.
    """
    if len(rows) == 2 and len(set(rows.values())) == 1:
        return next(iter(rows.values()))
    found = " and ".join(f"{name} of {count} tokens" for name, count in rows.items())
    raise WeightsError(
        f"the adapter {adapter.folder} has {found}, and the model has {config.vocab_size} tokens. "
        "An adapter of another vocabulary must have both the embedding and the head: train it with modules_to_save of "
        "both, or merge it with PEFT (merge_and_unload), save the model, and export that folder."
    )
