"""Functions that families with a tower of sound share: the tower's config, its tensors, and its feature extractor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeformer.config import AudioStem, LearnedPositions, SoundTowerConfig
from edgeformer.documents.json_document import read_object
from edgeformer.errors import ConfigError, shown
from edgeformer.families._bart import NORM, block_tensors, read_blocks
from edgeformer.families._family import Fields

WHISPER: dict[str, Any] = {
    "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "num_mel_bins": 128,
    "max_source_positions": 1500, "activation_function": "gelu",
}  # fmt: skip
"""The tower of a config.json that has none: Whisper's large one."""

UNREAD = (
    "activation_dropout", "dropout", "encoder_layerdrop", "init_std", "is_decoder", "is_encoder_decoder", "layerdrop",
    "tie_word_embeddings", "vocab_size",
)  # fmt: skip
"""Fields of a tower that are of training, or that published files have of Whisper's other half."""

EXTRACTOR_FILES = ("preprocessor_config.json", "processor_config.json")
EXTRACTOR: dict[str, Any] = {
    "sampling_rate": 16_000,
    "hop_length": 160,
    "n_fft": 400,
    "padding_value": 0.0,
    "dither": 0.0,
}
"""Fields of a feature extractor that have one value, which is transformers' default, too."""
EXTRACTOR_WITHOUT_EFFECT = (
    "auto_map", "do_normalize", "feature_extractor_type", "image_processor_type", "padding_side", "processor_class",
    "return_attention_mask",
)  # fmt: skip
"""Fields of bookkeeping, and of what a processor says whatever the file has."""


def read_sound_tower(
    fields: Fields, others: Mapping[str, str], *, pool: int | None = None, masked: bool | None = None
) -> SoundTowerConfig:
    """Read the tower of `audio_config`. others: second names of its fields, by the first. pool, masked: see there."""
    given = dict(fields.take("audio_config", {}))
    for first, second in others.items():
        if second in given:
            if given.setdefault(first, given[second]) != given[second]:
                raise ConfigError(f"config.json has audio_config with both {first} and {second}, which differ.")
            del given[second]
    tower = Fields({"model_type": "tower of sound", **given}, WHISPER)
    tower.ignore(*UNREAD)
    tower.ignore("scale_embedding")  # transformers computes the factor, and does not use it
    positions, heads = tower.take("max_source_positions"), tower.take("encoder_attention_heads")
    tower.choice("num_key_value_heads", {heads: None}, heads)  # which transformers does not read, as the next one
    tower.choice("head_dim", {tower.take("d_model") // max(heads, 1): None}, tower.take("d_model") // max(heads, 1))
    config = SoundTowerConfig(
        vocab_size=0,
        hidden_size=tower.take("d_model"),
        context_length=positions,
        blocks=read_blocks(tower, "encoder", norm_placement="pre", key_bias=False),
        final_norm=NORM,
        position_embedding=LearnedPositions(rows=positions),
        audio=AudioStem(mel_bins=tower.take("num_mel_bins")),
        pool=pool,
        masked=masked,
    )
    tower.finish()
    return config


TOWER_TENSORS = {
    "tower.stem.first": "audio_tower.conv1",
    "tower.stem.second": "audio_tower.conv2",
    "tower.position_embedding": "audio_tower.embed_positions",
    "tower.final_norm": "audio_tower.layer_norm",
    **block_tensors("tower.blocks.*", "audio_tower.layers.*"),
}
"""Tensors of a tower."""


def check_feature_extractor(folder: Path, tower: SoundTowerConfig) -> None:
    """Check that the feature extractor of a checkpoint is a known one, and makes windows that the tower reads.

    Raises ConfigError where there is none, for fields that are not known, and for other values.
    """
    name, data = _find(folder)
    kind = data.get("feature_extractor_type", "WhisperFeatureExtractor")
    if kind != "WhisperFeatureExtractor":
        raise ConfigError(f"{name} has feature_extractor_type = {shown(kind)}; supported: WhisperFeatureExtractor.")
    expected = {**EXTRACTOR, "feature_size": tower.mel_bins, "nb_max_frames": tower.frames}
    expected["n_samples"] = tower.frames * EXTRACTOR["hop_length"]
    rate = EXTRACTOR["sampling_rate"]
    given = {"feature_size": 80, "chunk_length": 30} | {
        field: value for field, value in data.items() if value is not None
    }
    given.setdefault("n_samples", given["chunk_length"] * rate)
    wrong = {field: value for field, value in given.items() if field in expected and value != expected[field]}
    if wrong or given["chunk_length"] * rate != expected["n_samples"]:
        listed = ", ".join(f"{field} = {shown(value)}" for field, value in (wrong or given).items())
        raise ConfigError(
            f"{name} has {listed}, and by config.json the model reads spectrograms of {tower.mel_bins} × "
            f"{tower.frames} at {rate:,} Hz: {', '.join(f'{field} = {value}' for field, value in expected.items())}."
        )
    unknown = sorted(given.keys() - expected.keys() - {"chunk_length", *EXTRACTOR_WITHOUT_EFFECT})
    if unknown:
        raise ConfigError(
            f"{name} has fields that edgeformer does not know: {', '.join(unknown)}. They may change what the model "
            "hears, so nothing was exported."
        )


def _find(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the name and the contents of the file that describes the feature extractor."""
    for name in EXTRACTOR_FILES:
        data = read_object(folder / name) if (folder / name).is_file() else {}
        inner = data.get("feature_extractor", data if name == EXTRACTOR_FILES[0] else None)
        if inner:
            return name, inner
    raise ConfigError(
        f"{folder.name} has no {EXTRACTOR_FILES[0]}, so it is not known how the model hears. Put the one that it was "
        "trained with beside its config.json."
    )
