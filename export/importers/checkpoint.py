"""Open a preset, a folder or a hub repository of a family that edgeformer knows."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from edgeformer.checkpoints.found_model import CONTEXT_FIELDS
from edgeformer.checkpoints.sentence_transformers import lowers_case, read_prompts
from edgeformer.checkpoints.source import ModelSource
from edgeformer.checkpoints.weights import CheckpointWeights
from edgeformer.config import EncoderConfig, PoolingHead, SoundTextConfig, TowerTextConfig
from edgeformer.errors import ConfigError
from edgeformer.export.importers.checkpoint_warnings import checkpoint_warnings
from edgeformer.export.importers.opened_model import OpenedAdapter, OpenedModel, Origin
from edgeformer.export.importers.pictures.dual_texts import open_dual
from edgeformer.export.importers.pictures.picture_comparison import compare_pictures
from edgeformer.export.importers.pictures.placeholders import compare_prompts, read_placeholder
from edgeformer.export.importers.sounds import compare_sounds
from edgeformer.export.importers.tokenizer_files import TokenizerFiles
from edgeformer.export.progress import Progress, no_progress
from edgeformer.lora.adapter_tensors import open_adapter
from edgeformer.manifest.parts import Provenance, TextModelOf
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.models.model_spec import model_spec_of

NO_ADAPTERS: Mapping[str, str | Path] = MappingProxyType({})


def open_checkpoint(
    source: ModelSource,
    progress: Progress = no_progress,
    *,
    compared: ModelSource | None = None,
    adapters: Mapping[str, str | Path] = NO_ADAPTERS,
) -> OpenedModel:
    """Open the weights of a model whose config is read. Raises WeightsError for tensors that do not fit it.

    compared: the model, without an adapter that is merged into it, whose module in edgeformer is compared with that of
    transformers; an ExportError says where they differ. adapters: folders of LoRA adapters that are kept apart from
    the weights, by name.
    """
    weights, comparison = source.weights(), None
    if compared is not None:
        # Imported here, because only a comparison needs the references.
        from edgeformer.export.importers.library_comparison import compare_modules

        progress("comparing with transformers", 0)
        comparison = compare_modules(compared, weights if compared is source else compared.weights())
    left_out = weights.left_out if isinstance(weights, CheckpointWeights) else ()
    compares = comparison is not None and comparison.library is not None
    tokenizer = TokenizerFiles(source.tokenizer_folder)
    placeholder, warnings = _read_pictures(source, tokenizer.folder, compares)
    dual = open_dual(source, weights, tokenizer.folder, compares=compares)
    whole, tokens, is_decoder = source.text_model_of, dual.tokens, source.config.form == "decoder"
    found = checkpoint_warnings(source, tokenizer, source.config.task, tokens, source.config.vocab_size, compares)
    return OpenedModel(
        model_spec=model_spec_of(source.config),
        weights=weights,
        comparison=comparison,
        warnings=(*found, *warnings, *dual.warnings),
        adapters=tuple(_open_adapter(name, Path(folder), weights) for name, folder in adapters.items()),
        origin=Origin(
            name=source.name,
            provenance=Provenance(
                source=source.origin,
                random_weights=source.random_weights,
                merged_adapter=None if source.merged is None else source.merged.adapter.origin(),
                pickled_weights=source.pickled_weights(),
                text_model_of=None if whole is None else TextModelOf(model_type=whole, left_out=left_out),
                left_out=left_out if whole is None and left_out else None,
            ),
            tokens=tokens,
            folder=tokenizer.folder,
            tokenizer=tokenizer,
            hf_config=_client_config(source),
            generation=source.generation_defaults(applied=not is_decoder),
            prompts=read_prompts(source.modules),
            pictures=source.pictures,
            placeholder=placeholder,
            similarity=dual.similarity,
            lower_case=_pools(source) and lowers_case(source.folder),
        ),
    )


def _read_pictures(
    source: ModelSource, folder: Path | None, compares: bool
) -> tuple[Placeholder | None, tuple[str, ...]]:
    """Return what stands for a picture or a recording in prompts, and why it was not compared with transformers.

    folder: of the tokenizer.
    """
    if isinstance(source.config, SoundTextConfig):
        heard = read_placeholder(source, source.config, folder)
        return heard, compare_sounds(source, heard, folder) if compares else ()
    if source.pictures is None:
        return None, ()
    warnings = compare_pictures(source.folder, source.pictures) if compares else ()
    if not isinstance(source.config, TowerTextConfig):
        return None, warnings
    placeholder = read_placeholder(source, source.config, folder)
    return placeholder, (*warnings, *(compare_prompts(source, placeholder, folder) if compares else ()))


def _pools(source: ModelSource) -> bool:
    """Return whether a model makes one vector of a text, as sentence-transformers does."""
    return isinstance(source.config, EncoderConfig) and isinstance(source.config.head, PoolingHead)


def _open_adapter(name: str, folder: Path, weights: Mapping[str, Tensor]) -> OpenedAdapter:
    """Open an adapter of a checkpoint. Raises ConfigError and WeightsError for one that does not fit it."""
    if not isinstance(weights, CheckpointWeights):
        raise ConfigError("the model has random weights, and no adapter was trained on them.")
    adapter = open_adapter(folder)
    return OpenedAdapter(name, adapter.origin(), weights.updates(adapter))


def _client_config(source: ModelSource) -> dict[str, Any]:
    """Return config.json for clients, which may not go past the positions that the graph has.

    A causal model that scores texts by its next token is a classifier to them.
    """
    if source.causal is not None:
        names = [name.replace("ForCausalLM", "ForSequenceClassification") for name in source.hf_config["architectures"]]
        return source.hf_config | {"architectures": names, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    if source.config.form != "decoder":
        return source.hf_config
    if source.text_config is not None:
        inner = source.hf_config.get("text_config") or {}
        return source.hf_config | {"text_config": _with_limit(inner, source.config.context_length)}
    return _with_limit(source.hf_config, source.config.context_length)


def _with_limit(hf_config: dict[str, Any], context_length: int) -> dict[str, Any]:
    """Return the config.json of a decoder with the positions that its graph has."""
    limits = {name: context_length for name in CONTEXT_FIELDS if name in hf_config}
    return hf_config | (limits or {"max_position_embeddings": context_length})
