"""Families of models that read pictures or sound, and text: a file per Hugging Face `model_type`, without registration.

Rooms have families whose pictures have one size, are cut into tiles, or have any size, and those that hear.

The text model is read by its own family, as where it is exported by itself (`_nested.py`). A file of this package says
what stands around it, as a `PictureTextFamily`: the tower, the projector, and what stands for a picture in a prompt.
"""

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgeformer.config import (
    Bidirectional,
    DecoderConfig,
    EncoderConfig,
    GridVisionConfig,
    PictureEncoderConfig,
    PictureLayerInput,
    PictureTextConfig,
    Projector,
    RotaryAxes,
    SoundTextConfig,
    SoundTowerConfig,
    TowerTextConfig,
    VisionConfig,
)
from edgeformer.errors import ConfigError
from edgeformer.families._family import Computed, Family, Fields, Packed
from edgeformer.families._nested import family_inside
from edgeformer.families._wrappers import is_foreign, wrapper_of
from edgeformer.manifest.placeholders.placeholder import Marks


@dataclass(frozen=True, kw_only=True)
class Seeing:
    """The tower and the projector of a config.json: fields of `PictureTextConfig` beside those of the text model.

    unread: patterns of tensors of the tower that nothing reads, because its config leaves them out.
    """

    tower: VisionConfig | GridVisionConfig | SoundTowerConfig
    feature_layers: tuple[int, ...]
    projector: Projector
    keeps_prefix: bool = False
    tiled: bool = False
    newline: bool | None = None
    bidirectional: Bidirectional | None = None
    deepstack: tuple[int, ...] | None = None
    layer_input: PictureLayerInput | None = None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PictureTextFamily:
    """How to read the config.json and the checkpoints of one `model_type` that reads pictures and text.

    Attributes:
        summary: one line for people about the supported models.
        read: returns what config.json says beside its text model.
        tensors: as in `Family`, of the tower (`tower.`) and the projector (`projector.`). Names of the checkpoint have
            no prefix `model.`.
        marks: returns the texts of tokens around pictures, of tokenizer_config.json.
        processor: kind of its processor of pictures (`edgeformer.manifest.pictures`), or `log_mel` of sound.
        axes: returns the axes of positions of a config.json; None for a family without them.
        completed: returns what was read with what follows from the text model, of its config and of config.json.
        picture_options: returns fields of its processor of pictures that its processor of texts and pictures says,
            whatever the file has, or its model; of config.json, and what was read of it.
        processor_fields: fields of processor_config.json that edgeformer reads, or that change nothing here.
        ignored_tensors, computed_tensors, transposed: as in `Family`.
    """

    summary: str
    read: Callable[[Fields], Seeing]
    tensors: Mapping[str, str | Packed | tuple[str | Packed, ...]]
    marks: Callable[[Mapping[str, Any]], Marks]
    processor: str
    axes: Callable[[Mapping[str, Any]], RotaryAxes] | None = None
    completed: Callable[[Seeing, Any, Mapping[str, Any]], Seeing] = lambda seeing, text, data: seeing
    picture_options: Callable[[Mapping[str, Any], TowerTextConfig], Mapping[str, Any]] = lambda data, config: {}
    processor_fields: tuple[str, ...] = ()
    ignored_tensors: tuple[str, ...] = ()
    computed_tensors: Mapping[str, Computed] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()


def seeing_names() -> list[str]:
    """Return the names of families that are exported with their towers, sorted: a `model_type`, or of `OF_TOWERS`."""
    return list(_modules())


@functools.cache
def _modules() -> dict[str, str]:
    """Return the modules of families by their `model_type`, sorted; each room of this package has some."""
    rooms = [f"{__name__}.{each.name}" for each in pkgutil.iter_modules(__path__)]
    paths = {room: importlib.import_module(room).__path__ for room in rooms}
    found = {each.name: f"{room}.{each.name}" for room in rooms for each in pkgutil.iter_modules(paths[room])}
    return dict(sorted(found.items()))


OF_TOWERS = {("llava", "pixtral"): "llava_pixtral"}
"""Families of a `model_type` with a tower of another one, which are models of their own."""


def load_seeing(data: Mapping[str, Any]) -> PictureTextFamily | None:
    """Return the family of a config.json whose model reads pictures and text; None for one that has none."""
    model_type, tower = data.get("model_type"), data.get("vision_config")
    if not isinstance(model_type, str) or wrapper_of(model_type) is None:
        return None
    tower_type = tower.get("model_type") if isinstance(tower, dict) else None
    name = OF_TOWERS.get((model_type, str(tower_type)), model_type)
    return family_named(name) if name in _modules() else None


def family_named(name: str) -> PictureTextFamily:
    """Return the family of a file."""
    family: PictureTextFamily = importlib.import_module(_modules()[name]).FAMILY
    return family


def with_tower(
    data: dict[str, Any], text_family: Family, text: DecoderConfig | EncoderConfig
) -> tuple[Family, TowerTextConfig]:
    """Return the family and the config of the whole model of a config.json, of those of its text model.

    Raises ConfigError for fields of the tower and the projector that the family does not know.
    """
    family = load_seeing(data)
    assert family is not None, "the caller has asked"
    wrapper = wrapper_of(data["model_type"])
    assert wrapper is not None, "every such family has an entry"
    own = {name: value for name, value in data.items() if is_foreign(name, wrapper)}
    fields = Fields({**own, "model_type": data["model_type"]})
    seeing = family.completed(family.read(fields), text, data)
    fields.finish()
    shared: dict[str, Any] = {
        "tower": seeing.tower,
        "feature_layers": seeing.feature_layers,
        "keeps_prefix": seeing.keeps_prefix,
        "projector": seeing.projector,
        "tiled": seeing.tiled,
        "newline": seeing.newline,
    }
    of_decoders = {
        "bidirectional": seeing.bidirectional,
        "deepstack": seeing.deepstack,
        "layer_input": seeing.layer_input,
        "axes": None if family.axes is None else family.axes(data),
    }
    shared |= {name: value for name, value in of_decoders.items() if value is not None}
    kinds: dict[tuple[str, bool], Any] = {
        ("decoder", False): PictureTextConfig,
        ("decoder", True): SoundTextConfig,
        ("encoder", False): PictureEncoderConfig,
    }
    config = kinds[text.form, seeing.tower.kind == "sound_tower"].of_text(text, **shared)
    text_family = family_inside(text_family, data["model_type"])
    return replace(
        text_family,
        tensors={**text_family.tensors, **family.tensors},
        ignored_tensors=(*text_family.ignored_tensors, *family.ignored_tensors, *seeing.unread),
        computed_tensors={**text_family.computed_tensors, **family.computed_tensors},
        transposed=(*text_family.transposed, *family.transposed),
        sees=True,
    ), config


def named_token(tokenizer_config: Mapping[str, Any], name: str, default: str) -> str:
    """Return the text of a token that the tokenizer has a name for."""
    places = ("extra_special_tokens", "model_specific_special_tokens")
    named = [each for each in (tokenizer_config.get(place) for place in places) if isinstance(each, dict)]
    found = [each[name] for each in (*named, tokenizer_config) if each.get(name) is not None]
    token = found[0] if found else default
    return str(token.get("content") if isinstance(token, dict) else token)


def layer_index(given: Any, layers: int) -> int:
    """Return after how many blocks of a tower the states are that an index of transformers' hidden states means."""
    index = given + layers + 1 if isinstance(given, int) and given < 0 else given
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= layers:
        raise ConfigError(f"config.json has the feature layer {given!r}, and its tower has {layers} layers.")
    return index


def blocks_from(layers: str, first: int, count: int) -> tuple[str, ...]:
    """Return patterns of the tensors of blocks that nothing reads. layers: the prefix of their numbers."""
    numbers = "|".join(map(str, range(first, count)))
    return (rf"{re.escape(layers)}({numbers})\..*",) if numbers else ()
