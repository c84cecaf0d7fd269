"""A found model of a known family: what its config says, and its weights, which are read when they are needed."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgeformer.checkpoints.found_model import FoundModel, find_model
from edgeformer.checkpoints.picture_processor import read_picture_processor
from edgeformer.checkpoints.sentence_transformers import (
    PooledStates,
    check_modality,
    choose_pooling,
    read_answer_head,
    read_max_length,
    read_score,
)
from edgeformer.checkpoints.vector_heads import read_vector_head
from edgeformer.checkpoints.weight_map import find_weight_files
from edgeformer.config import (
    ClassificationHead,
    DecoderConfig,
    EncoderConfig,
    LearnedPositions,
    ModelConfig,
    Pooling,
    SoundTextConfig,
)
from edgeformer.documents.json_document import parse
from edgeformer.errors import ConfigError
from edgeformer.families import (
    REFUSED,
    Family,
    checked,
    family_inside,
    has_family,
    load_family,
    read_model_config,
    text_config,
)
from edgeformer.families._mtp import with_mtp
from edgeformer.families._sound import check_feature_extractor
from edgeformer.families._wrappers import WRAPPERS, encodes_text
from edgeformer.families.picture_text import PictureTextFamily, load_seeing, with_tower
from edgeformer.manifest.parts import SpecialTokens, sha256
from edgeformer.manifest.pictures.processor import WHOLE_PICTURES, PictureProcessor

if TYPE_CHECKING:
    from torch import Tensor

    from edgeformer.lora.merged_adapter import MergedAdapter


def _names_of_layers(layers: Iterable[str]) -> dict[str, str]:
    """Return the names of the tensors of layers, which a checkpoint keeps in folders or files of their own."""
    patterns = dict.fromkeys(re.sub(r"\d+", "*", layer) for layer in layers)
    parts = ("", ".linear", ".residual")
    return {f"{pattern}{part}": f"{pattern}{part}" for pattern in patterns for part in parts}


@dataclass(frozen=True, kw_only=True)
class ModelSource(FoundModel):
    """A model of a known family, which can be exported; its weights are not read yet.

    Attributes:
        merged: the adapter that is merged into the weights when they are read (`edgeformer.lora.merged_adapter`).
        head_layers: folders or files with the weights of layers of the head, by the beginnings of their names.
        pictures: the processor of a model that reads pictures.
        causal: config of the causal model whose next token is the score, and answers: the tokens that count
            (`ClassificationHead.tokens`).
        text_config: config.json of the text model inside one that reads pictures.
    """

    family: Family
    config: ModelConfig
    merged: "MergedAdapter | None" = None
    head_layers: Mapping[str, Path] = field(default_factory=dict)
    pictures: PictureProcessor | None = None
    causal: DecoderConfig | None = None
    answers: tuple[int, ...] = ()
    text_config: dict[str, Any] | None = None

    def special_tokens(self) -> SpecialTokens:
        """Return the token ids of the text model; see `FoundModel.special_tokens`."""
        if self.text_config is None:
            return super().special_tokens()
        return replace(self, hf_config=self.text_config, text_config=None).special_tokens()

    @property
    def tokenizer_folder(self) -> Path:
        """The folder with the tokenizer: an adapter's, where it resizes the vocabulary and has one."""
        resized = None if self.merged is None or not self.merged.resized else self.merged.adapter.folder
        return resized if resized is not None and (resized / "tokenizer.json").is_file() else self.folder

    @property
    def weight_folders(self) -> tuple[Path, ...]:
        """The folders with weights."""
        return (self.folder, *(path for path in self.head_layers.values() if path.is_dir()))

    def pickled_weights(self) -> dict[str, str]:
        """Return the SHA-256 of each pickle that the weights are read from, by its path in the folder of the model."""
        files = [path for path in self.head_layers.values() if path.is_file()]
        return super().pickled_weights() | {path.relative_to(self.modules).as_posix(): sha256(path) for path in files}

    def weights(self) -> Mapping[str, "Tensor"]:
        """Return a mapping from parameter name to tensor that reads each tensor on access; download it first.

        Raises WeightsError if the checkpoint does not fit the config.
        """
        from edgeformer.checkpoints.weights import CheckpointWeights, RandomWeights

        if self.random_weights is not None:
            return RandomWeights(self.config, self.random_weights)
        self.fetch_weights()
        weights = CheckpointWeights(
            self.folder, self.family, self.causal or self.config, self.merged, self.head_layers, self.allow_pickle
        )
        if self.causal is None:
            return weights
        from edgeformer.checkpoints.answer_weights import AnswerWeights

        return AnswerWeights(weights, self.causal, self.config, self.answers)


def open_source(
    model: str | Path | FoundModel,
    context_length: int | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    *,
    text_only: bool = False,
    mtp: bool = False,
) -> ModelSource:
    """Find a model of a known family and read its config.

    Args:
        model: preset, folder or hub id, or what `find_model` found for one.
        context_length: positions that the graph supports. None: all that the model has, or max_seq_length of a model
            of sentence-transformers.
        pooling: replace the head of an encoder by a sentence embedding, made of its states in this way.
            None: the pooling of a sentence-transformers folder, otherwise the head of config.json.
        normalize: whether the sentence embedding has L2 norm 1. None: as the sentence-transformers folder says,
            otherwise False.
        text_only: whether the text model of a model that reads pictures is meant by itself.
        mtp: whether the layer that drafts tokens is meant, too.

    Raises:
        ConfigError: there is no such model, or its config is not supported.
        WeightsError: the hub does not provide it.
    """
    found = model if isinstance(model, FoundModel) else find_model(model)
    seeing = None if text_only else load_seeing(found.hf_config)
    if mtp:
        return _open_with_mtp(found, context_length, sees=seeing is not None)
    if seeing is not None:
        pooled = _read_head(found, pooling, normalize)
        if pooled is None or encodes_text(found.hf_config):
            return _open_seeing(found, seeing, context_length, pooled)
    found = find_text_model(found)
    if pooling is None and (answers := read_answer_head(found.modules)) is not None:
        return _open_answers(found, answers, context_length)
    pooled = _read_head(found, pooling, normalize)
    if pooled is None:
        family, config = read_model_config(found.hf_config, context_length)
        family = family_inside(family, found.text_model_of)
        config = _with_score(found, _with_stored_positions(found, family, config))
        if config.sees_pictures:
            pictures = read_picture_processor(found.folder)
            if pictures.kind not in WHOLE_PICTURES.values():
                raise ConfigError("the processor cuts pictures into parts, and the model reads whole ones.")
            config = pictures.fitted(config)
            writes = config.vocab_size > 0
            if not writes and context_length not in (None, config.context_length):
                raise ConfigError(
                    "the model reads pictures, which always have all their patches; leave context_length out."
                )
            return ModelSource(**vars(found), family=family, config=config, pictures=pictures)
        return ModelSource(**vars(found), family=family, config=config)
    family, config = _read_pooled(found, pooled, context_length)
    if isinstance(config, DecoderConfig):  # as Qwen3-Embedding: the states of a causal model
        family, config = family.without_head(), EncoderConfig.of_decoder(config)
    if config.sees_pictures:
        raise ConfigError(
            f"{found.origin} reads pictures, and pooling is for the states of texts. Leave pooling out, and remove "
            "modules.json from its folder."
        )
    if not isinstance(config, EncoderConfig):
        raise ConfigError(
            f"{found.origin} is an encoder-decoder ({found.hf_config['model_type']}), whose encoder edgeformer does "
            "not export by itself, so there are no states to pool. Leave pooling out, and remove modules.json from "
            "its folder, to export what config.json describes."
        )
    check_modality(found.folder)
    family, config = _with_pooling(found, pooled, context_length, family, config)
    return ModelSource(**vars(found), family=family, config=config, head_layers=pooled.layers)


def _read_pooled(found: FoundModel, pooled: PooledStates, context_length: int | None) -> tuple[Family, ModelConfig]:
    """Return the family and the config of a model whose states are pooled."""
    alone = None if lacks_family(found) else load_family(found.hf_config["model_type"]).encoder_class
    plain = found.hf_config | ({} if pooled.keeps_head else {"architectures": None if alone is None else [alone]})
    family, config = read_model_config(plain, context_length)
    return family_inside(family, found.text_model_of), config


def _with_pooling(
    found: FoundModel, pooled: PooledStates, context_length: int | None, family: Family, config: EncoderConfig
) -> tuple[Family, EncoderConfig]:
    """Return the family and the config of an encoder whose states are pooled."""
    longest = read_max_length(found.folder) if context_length is None else None
    length = min(config.context_length, longest or config.context_length)
    if family.encoder_class is not None:  # positions that are relative have no last one
        length = longest or config.context_length
    config = replace(config, head=pooled.head(config.head), context_length=length)
    family = replace(family, tensors={**family.tensors, **_names_of_layers(pooled.layers), **pooled.tensors})
    return family, config


def _open_seeing(
    found: FoundModel, seeing: PictureTextFamily, context_length: int | None, pooled: PooledStates | None
) -> ModelSource:
    """Return a model that reads pictures or sound, and text, with its tower. pooled: what an encoder ends with."""
    instead, text = text_only_instead(found.hf_config["model_type"]), find_text_model(found, inside=True)
    if pooled is None:
        family, read = read_model_config(text.hf_config, context_length)
        read = _with_score(found, read)
    else:
        family, read = _read_pooled(text, pooled, context_length)
    form = "encoder" if encodes_text(found.hf_config) else "decoder"
    if read.form != form:
        raise ConfigError(f"the text model of {found.origin} is no {form}, and its pictures are for one.{instead}")
    try:
        if pooled is not None:
            family, read = _with_pooling(found, pooled, context_length, family, cast(EncoderConfig, read))
        family, config = with_tower(found.hf_config, family, cast(DecoderConfig | EncoderConfig, read))
        pictures = None
        if isinstance(config, SoundTextConfig):
            check_feature_extractor(found.folder, config.tower)
        else:
            pictures = read_picture_processor(found.folder, seeing.picture_options(found.hf_config, config))
            if pictures.kind != seeing.processor:
                raise ConfigError(f"the processor of its pictures is of kind {pictures.kind}, not {seeing.processor}.")
            config = pictures.fitted(config)
    except ConfigError as error:
        raise ConfigError(f"{error}{instead}") from error
    return ModelSource(
        **vars(found), family=family, config=checked(config), pictures=pictures, text_config=text.hf_config,
        head_layers={} if pooled is None else pooled.layers,
    )  # fmt: skip


def _open_with_mtp(found: FoundModel, context_length: int | None, *, sees: bool) -> ModelSource:
    """Return a decoder with the layer that drafts tokens. Raises ConfigError for a model without one."""
    if sees:
        instead = text_only_instead(found.hf_config["model_type"])
        raise ConfigError(
            f"mtp drafts tokens of texts, and {found.origin} reads pictures, too. Leave mtp out.{instead}"
        )
    found = find_text_model(found)
    family, config = read_model_config(found.hf_config, context_length)
    family, config = with_mtp(found.hf_config, family_inside(family, found.text_model_of), config)
    return ModelSource(**vars(found), family=family, config=config)


def text_only_instead(model_type: str) -> str:
    """Return the end of an error about the tower of a model that reads pictures: how its text model is exported."""
    return " Its text model can be exported by itself: --text-only." if model_type in WRAPPERS else ""


def _read_head(found: FoundModel, pooling: Pooling | None, normalize: bool | None) -> PooledStates | None:
    """Return the requested pooling, or else the head that a folder has beside its config.json; None without one.

    The layers of BGE-M3 are pickles: where these are not read, its states are pooled alone, and an export says so.
    """
    if pooling is None and normalize is None:
        head = read_vector_head(found.modules, found.folder, found.hf_config)
        if head is not None and (found.allow_pickle or all(path.is_dir() for path in head.layers.values())):
            return head
    return choose_pooling(found.modules, pooling, normalize)


def _open_answers(found: FoundModel, head: ClassificationHead, context_length: int | None) -> ModelSource:
    """Return a causal model that scores pairs of texts by its next token. Raises ConfigError where it cannot."""
    family, read = read_model_config(found.hf_config, context_length)
    if read.task != "causal-lm":
        raise ConfigError(f"{found.origin} scores texts by its next token (LogitScore), and it is no causal model.")
    causal = cast(DecoderConfig, read)
    if causal.logit_softcap is not None or causal.head_bias:
        raise ConfigError(
            f"{found.origin} scores texts by the logits of its next token, which have a bias or a soft cap; edgeformer "
            "computes plain ones. Remove modules.json from its folder to export what config.json describes."
        )
    outside = [token for token in head.tokens or () if token >= causal.vocab_size]
    if outside:
        raise ConfigError(
            f"{found.origin} takes token {outside[0]} for an answer, and its tokens are 0 to "
            f"{causal.vocab_size - 1}. Correct the tokens in the config of its LogitScore module."
        )
    family = family_inside(family, found.text_model_of)
    config = _with_score(found, EncoderConfig.of_decoder(causal, head))
    return ModelSource(**vars(found), family=family, config=config, causal=causal, answers=head.tokens or ())


def _with_score(found: FoundModel, config: ModelConfig) -> ModelConfig:
    """Return a config whose classes of texts are scored as a cross-encoder of sentence-transformers scores them."""
    if not isinstance(config, EncoderConfig) or not isinstance(config.head, ClassificationHead):
        return config
    return replace(config, head=replace(config.head, score=read_score(found.modules, found.hf_config)))


def _with_stored_positions(found: FoundModel, family: Family, config: ModelConfig) -> ModelConfig:
    """Return a config whose sinusoidal positions are read from the checkpoint by the stacks for which it has a table.

    Whether it has one is known from its weights alone, which are downloaded for that.
    """
    if not family.stored_positions or found.random_weights is not None:
        return config
    found.fetch_weights()
    stored, prefix = _stored_names(found), family.optional_prefix
    rows = found.hf_config.get("max_position_embeddings") or config.output_stack.context_length
    for half, tensor in family.stored_positions.items():
        if tensor in stored or tensor.removeprefix(prefix) in stored:
            stack = replace(getattr(config, half), position_embedding=LearnedPositions(rows=rows))
            config = replace(config, **{half: stack})
    return config


def find_text_model(found: FoundModel, *, inside: bool = False) -> FoundModel:
    """Return the text model inside a model of several, with its own config.json; another model as it is.

    inside: whether it is to run inside the whole model. Raises ConfigError for fields that belong neither to the text
    model nor to another modality.
    """
    if text_config(found.hf_config, inside=inside) is None:
        return found
    text = text_config(found.hf_config, _stored_names(found), inside=inside)
    assert text is not None
    return replace(found, hf_config=text, text_model_of=found.hf_config["model_type"])


def lacks_family(found: FoundModel) -> bool:
    """Return whether a model is of one type, there is no family of it, and another backend may export it.

    The text model inside a model of several is read by a family only.
    """
    model_type = found.hf_config.get("model_type")
    if (
        not isinstance(model_type, str)
        or model_type in REFUSED
        or has_family(model_type)
        or load_seeing(found.hf_config)
    ):
        return False
    return text_config(found.hf_config) is None


def _stored_names(found: FoundModel) -> set[str]:
    """Return the names of all tensors of a checkpoint, as far as its files are there; reads headers, or pickles.

    A file begins with the length of its header, which is JSON. A damaged file has no names here: opening the weights
    reports it.
    """
    files = find_weight_files(found.folder, found.allow_pickle)
    if files.pickled:
        from edgeformer.checkpoints.tensor_files import open_tensors

        return set(open_tensors(found.folder, allow_pickle=True))
    if files.gguf:
        return set()  # it holds one model, of one type
    names = set(files.weight_map or ())
    for path in files.paths if files.index is None else ():
        with path.open("rb") as file, suppress(ValueError):
            length = int.from_bytes(file.read(8), "little")
            header = parse(file.read(min(length, path.stat().st_size)))
            names |= set(header if isinstance(header, dict) else ())
    return names
