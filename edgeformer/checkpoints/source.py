"""Find a model by `--model`: the name of a preset, a folder, a GGUF file, or a Hugging Face Hub id.

Names of presets take precedence: `edgeformer export --model tiny-llama` makes a folder of that name, and the same
command must find the same model again. `./tiny-llama` always means the folder.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgeformer.checkpoints.gguf.gguf_file import SUFFIX
from edgeformer.checkpoints.gguf.unpacked import UnpackedGguf, sole_gguf
from edgeformer.checkpoints.picture_processor import read_picture_processor
from edgeformer.checkpoints.sentence_transformers import (
    PooledStates,
    check_modality,
    choose_pooling,
    read_answer_head,
    read_max_length,
    read_score,
    transformer_folder,
)
from edgeformer.checkpoints.vector_heads import read_vector_head
from edgeformer.checkpoints.weight_map import find_weight_files
from edgeformer.config import ClassificationHead, DecoderConfig, EncoderConfig, LearnedPositions, ModelConfig, Pooling
from edgeformer.documents.json_document import parse, read_object
from edgeformer.errors import ConfigError, EdgeformerError, WeightsError, require, shown
from edgeformer.families import REFUSED, Family, has_family, load_family, read_model_config, text_config
from edgeformer.manifest.parts import SpecialTokens, sha256
from edgeformer.manifest.pictures import PictureProcessor
from edgeformer.options.generation_fields import GENERATION_FIELDS, SPEECH_FIELDS, unsupported_fields

if TYPE_CHECKING:
    from torch import Tensor

    from edgeformer.lora.merged_adapter import MergedAdapter

CONTEXT_FIELDS = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx",
)  # fmt: skip
"""Names of the number of positions in config.json; they depend on the family."""

SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
GENERATION_CONFIG = "generation_config.json"

PRESETS = Path(__file__).parents[1] / "presets"

TOKENIZER_MODELS = ("tokenizer.model", "spiece.model", "spm.model", "sentencepiece*.model", "tiktoken.model")
"""Files of SentencePiece and tiktoken; `original/tokenizer.model` of Llama 3 is one more copy, and needed by nobody."""

# Patterns of the files that are downloaded from a hub repository: configs first, weights when they are needed. A star
# also matches slashes, so that 1_Pooling/config.json is downloaded.
HUB_CONFIGS = ["*.json", "*.jinja", "artifact.metadata", "*.spm", "*vocab.txt", "*merges.txt", *TOKENIZER_MODELS]
HUB_WEIGHTS = ["*.safetensors"]
HUB_GGUF = re.compile(r"([\w.-]+/[\w.-]+):([\w./-]+\.gguf)")
"""A GGUF file of a hub repository, as `--model` names it."""
HUB_PICKLES = ["*pytorch_model*.bin", "*_linear.pt"]


def _names_of_layers(layers: Iterable[str]) -> dict[str, str]:
    """Return the names of the tensors of layers, which a checkpoint keeps in folders or files of their own."""
    patterns = dict.fromkeys(re.sub(r"\d+", "*", layer) for layer in layers)
    parts = ("", ".linear", ".residual")
    return {f"{pattern}{part}": f"{pattern}{part}" for pattern in patterns for part in parts}


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A folder with a config.json, of a known model family or not.

    Attributes:
        name: default name of the bundle.
        origin: description of where the model comes from, for people.
        folder: the folder.
        modules: of a model of sentence-transformers, the folder with its modules.json, which may hold `folder`.
        hf_config: contents of config.json.
        random_weights: seed of a preset without trained weights; None with a checkpoint.
        hub_id: hub repository to download the weights from; None for local models.
        text_model_of: model_type of the whole model where `hf_config` is that of the text model inside it.
        allow_pickle: whether pickled weights are read where there are no safetensors.
        gguf: of a model in a GGUF file, the temporary folder that is made of it, which this keeps on disk.
    """

    name: str
    origin: str
    folder: Path
    modules: Path
    hf_config: dict[str, Any]
    random_weights: int | None = None
    hub_id: str | None = None
    text_model_of: str | None = None
    allow_pickle: bool = False
    gguf: UnpackedGguf | None = None

    def fetch_weights(self) -> None:
        """Download the weights into the folder, unless they are in it. Raises WeightsError."""
        if self.hub_id is not None:
            _download(self.hub_id, HUB_WEIGHTS)
            if self.allow_pickle and not all(find_weight_files(folder).paths for folder in self.weight_folders):
                _download(self.hub_id, HUB_PICKLES)

    def pickled_weights(self) -> dict[str, str]:
        """Return the SHA-256 of each pickle that the weights are read from, by its path in the folder of the model."""
        from edgeformer.checkpoints.tensor_files import pickled_files

        if not self.allow_pickle:
            return {}
        files = [path for folder in self.weight_folders for path in pickled_files(folder)]
        return {path.relative_to(self.modules).as_posix(): sha256(path) for path in files}

    @property
    def weight_folders(self) -> tuple[Path, ...]:
        """The folders with weights."""
        return (self.folder,)

    def special_tokens(self) -> SpecialTokens:
        """Return the token ids from generation_config.json, and those that it does not name from config.json.

        Raises ConfigError for what is no token id.
        """
        found: dict[str, Any] = {}
        for file, fields in (("config.json", self.hf_config), (GENERATION_CONFIG, self.generation_config() or {})):
            for name in SPECIAL_TOKENS:
                if (value := fields.get(name)) is not None:  # the second file overrides
                    found[name] = _token_ids(file, name, value)
        return SpecialTokens(
            eos=tuple(found.get("eos_token_id", ())),
            bos=next(iter(found.get("bos_token_id", ())), None),
            pad=next(iter(found.get("pad_token_id", ())), None),
        )

    def generation_defaults(self, applied: bool = True) -> dict[str, Any]:
        """Return the defaults of generation of an encoder-decoder, with the keys of generation_config.json.

        That file replaces what config.json says of generation whole, as in transformers 5; only the first token, and
        what config.json says of single tasks, are read there in any case.

        applied: whether calls without options generate by them, as those of an encoder-decoder do and those of a
        decoder do not. Raises ConfigError for applied fields that change what is generated and that the runtime does
        not have.
        """
        generation = self.generation_config()
        if generation is None:
            generation = dict(self.hf_config)
            if generation.get("force_bos_token_to_be_generated"):  # of the first BART
                generation["forced_bos_token_id"] = generation.get("bos_token_id")
        lacking = unsupported_fields(generation)
        if lacking and applied:
            raise ConfigError(
                f"{self.origin} generates with {lacking}, which the runtime does not have, and which would change what "
                "is generated. Take it out of generation_config.json, or of config.json, where there is no such file."
            )
        kept = {name: self.hf_config.get(name) for name in ("decoder_start_token_id", "task_specific_params")}
        found = kept | {name: value for name, value in generation.items() if value is not None}
        return {name: found[name] for name in (*GENERATION_FIELDS, *SPEECH_FIELDS) if found.get(name) is not None}

    def generation_config(self) -> dict[str, Any] | None:
        """Return the object in generation_config.json; None where there is no such file."""
        path = self.folder / GENERATION_CONFIG
        return read_object(path) if path.is_file() else None


@dataclass(frozen=True, kw_only=True)
class ModelSource(FoundModel):
    """A model of a known family, which can be exported; its weights are not read yet.

    merged: the adapter that is merged into the weights when they are read (`edgeformer.lora.merged_adapter`).
    head_layers: folders or files with the weights of layers of the head, by the beginnings of their names.
    pictures: the processor of a model that reads pictures. causal: config of the causal model whose next token is the
    score, and answers: the tokens that count (`ClassificationHead.tokens`).
    """

    family: Family
    config: ModelConfig
    merged: "MergedAdapter | None" = None
    head_layers: Mapping[str, Path] = field(default_factory=dict)
    pictures: PictureProcessor | None = None
    causal: DecoderConfig | None = None
    answers: tuple[int, ...] = ()

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


def preset_names() -> list[str]:
    """Return the names of the models that come with edgeformer."""
    return sorted(path.name for path in PRESETS.iterdir() if (path / "config.json").is_file())


def open_source(
    model: str | Path | FoundModel,
    context_length: int | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
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

    Raises:
        ConfigError: there is no such model, or its config is not supported.
        WeightsError: the hub does not provide it.
    """
    found = find_text_model(model if isinstance(model, FoundModel) else find_model(model))
    if pooling is None and (answers := read_answer_head(found.modules)) is not None:
        return _open_answers(found, answers, context_length)
    pooled = _read_head(found, pooling, normalize)
    if pooled is None:
        family, config = read_model_config(found.hf_config, context_length)
        family = replace(family, nested=found.text_model_of is not None)
        config = _with_score(found, _with_stored_positions(found, family, config))
        if config.reads == "picture":
            pictures = read_picture_processor(found.folder)
            config = config.with_picture_size(pictures.size.height, pictures.size.width)
            if context_length not in (None, config.context_length):
                raise ConfigError(
                    "the model reads pictures, which always have all their patches; leave context_length out."
                )
            return ModelSource(**vars(found), family=family, config=config, pictures=pictures)
        return ModelSource(**vars(found), family=family, config=config)
    alone = None if lacks_family(found) else load_family(found.hf_config["model_type"]).encoder_class
    plain = found.hf_config | ({} if pooled.keeps_head else {"architectures": None if alone is None else [alone]})
    family, config = read_model_config(plain, context_length)
    if isinstance(config, DecoderConfig):  # as Qwen3-Embedding: the states of a causal model
        family, config = family.without_head(), EncoderConfig.of_decoder(config)
    if config.reads == "picture":
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
    longest = read_max_length(found.folder) if context_length is None else None
    length = min(config.context_length, longest or config.context_length)
    if family.encoder_class is not None:  # positions that are relative have no last one
        length = longest or config.context_length
    config = replace(config, head=pooled.head(config.head), context_length=length)
    family = replace(family, tensors={**family.tensors, **_names_of_layers(pooled.layers), **pooled.tensors})
    return ModelSource(**vars(found), family=family, config=config, head_layers=pooled.layers)


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
    family = replace(family, nested=found.text_model_of is not None)
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


def find_text_model(found: FoundModel) -> FoundModel:
    """Return the text model inside a model of several, with its own config.json; another model as it is.

    Raises ConfigError for fields that belong neither to the text model nor to another modality.
    """
    if text_config(found.hf_config) is None:
        return found
    text = text_config(found.hf_config, _stored_names(found))
    assert text is not None
    return replace(found, hf_config=text, text_model_of=found.hf_config["model_type"])


def lacks_family(found: FoundModel) -> bool:
    """Return whether a model is of one type, there is no family of it, and another backend may export it.

    The text model inside a model of several is read by a family only.
    """
    model_type = found.hf_config.get("model_type")
    if not isinstance(model_type, str) or model_type in REFUSED or has_family(model_type):
        return False
    return text_config(found.hf_config) is None


def find_model(model: str | Path, allow_pickle: bool = False) -> FoundModel:
    """Find a model, of a known family or not. Raises ConfigError or WeightsError that says where it was searched.

    allow_pickle: whether its weights may be a pickle (see `edgeformer.checkpoints.tensor_files`).
    """
    return replace(_find_model(model), allow_pickle=allow_pickle)


def _find_model(model: str | Path) -> FoundModel:
    text = str(model)
    if text in preset_names():
        return _open_folder(PRESETS / text, text, f"preset {text}")
    path = Path(text).expanduser()
    if os.path.isdir(path):
        if (gguf := sole_gguf(path)) is not None:
            return _open_gguf(gguf, path.resolve().name, f"folder {path.name}", beside=path)
        return _open_folder(path, path.resolve().name, f"folder {path.name}")
    if path.suffix == SUFFIX and os.path.isfile(path):
        return _open_gguf(path, path.stem, f"file {path.name}")
    looks_like_path = (
        isinstance(model, Path) or path.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1
    )
    if os.path.exists(path):
        raise ConfigError(f"{path} is a file; --model takes a preset, a model folder, a GGUF file, or a hub id.")
    if looks_like_path or "/" not in text:
        raise ConfigError(
            f"there is no model {text!r}: no preset of that name (presets: {', '.join(preset_names())}), and no folder "
            f"{path.absolute()}. For a model of the Hugging Face Hub give its whole id, as in "
            "HuggingFaceTB/SmolLM2-135M."
        )
    if (named := HUB_GGUF.fullmatch(text)) is not None:
        parts = re.sub(r"-\d{5}-of-(?=\d{5})", "-*-of-", named[2])  # all files of a split one
        file = _download(named[1], [parts]) / named[2]
        if not file.is_file():
            raise ConfigError(f"the hub's {named[1]} has no file {named[2]}.")
        return _open_gguf(file, file.stem, f"hub {text}")
    folder = _download(text, HUB_CONFIGS)
    return _open_folder(folder, text.split("/")[1], f"hub {text}", hub_id=text)


def _open_folder(folder: Path, name: str, origin: str, hub_id: str | None = None) -> FoundModel:
    modules, folder = folder, transformer_folder(folder)
    if not os.path.isfile(folder / "config.json"):  # also of a name that no file can have
        raise ConfigError(f"{folder} has no config.json; a model folder has one beside its safetensors files.")
    hf_config = read_object(folder / "config.json")
    preset_file = folder / "preset.json"
    random_weights = read_object(preset_file).get("random_weights") if preset_file.is_file() else None
    return FoundModel(
        name=name, origin=origin, folder=folder, modules=modules, hf_config=hf_config, random_weights=random_weights,
        hub_id=hub_id,
    )  # fmt: skip


def _open_gguf(path: Path, name: str, origin: str, beside: Path | None = None) -> FoundModel:
    """Return a model in a GGUF file. beside: a folder with files of its tokenizer."""
    unpacked = UnpackedGguf(path, beside)
    found = _open_folder(unpacked.folder, name, origin)
    return replace(found, gguf=unpacked)


def cached_folder(hub_id: str) -> Path | None:
    """Return the folder of a hub repository in the local cache, or None; nothing is downloaded."""
    hub = require("huggingface_hub", "export")
    try:
        return Path(hub.snapshot_download(hub_id, allow_patterns=HUB_CONFIGS + HUB_WEIGHTS, local_files_only=True))
    except (OSError, ValueError):  # not there, or no id of a repository
        return None


def _token_ids(file: str, name: str, value: Any) -> list[int]:
    """Return the token ids of a field, one or a list. Raises ConfigError for anything but whole numbers."""
    ids = value if isinstance(value, list) else [value]
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, int | float) or each % 1 != 0:
            raise ConfigError(
                f"{file} has {name} = {shown(value)}; it must be a token id, which is a whole number"
                f"{', or a list of them' if name == 'eos_token_id' else ''}. Correct it, and export again."
            )
    return [int(each) for each in ids]


def _download(hub_id: str, patterns: list[str]) -> Path:
    """Return a folder with files of a hub repository, from the local cache or downloaded. Raises WeightsError.

    huggingface_hub draws progress bars of its own.
    """
    hub = require("huggingface_hub", "export")
    errors = require("huggingface_hub.errors", "export")
    try:
        return Path(hub.snapshot_download(hub_id, allow_patterns=patterns))
    except errors.GatedRepoError:
        raise WeightsError(
            f"{hub_id} is gated: accept its licence on its page of the hub, then log in with: hf auth login"
        ) from None
    except errors.RepositoryNotFoundError:
        raise WeightsError(
            f"the hub has no model {hub_id!r}, or it is private (log in with: hf auth login). Check the spelling."
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, OSError) as error:
        raise WeightsError(
            f"{hub_id} is not in the local cache, and the hub cannot be reached ({type(error).__name__}). Check the "
            f"network and HF_HUB_OFFLINE, or download it elsewhere (hf download {hub_id} --local-dir DIR) and give "
            "that folder to --model."
        ) from error
    except errors.HfHubHTTPError as error:
        raise EdgeformerError(f"the hub refused {hub_id}: {error}") from error


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
        return set()  # which names one model, of one type
    names = set(files.weight_map or ())
    for path in files.paths if files.index is None else ():
        with path.open("rb") as file, suppress(ValueError):
            length = int.from_bytes(file.read(8), "little")
            header = parse(file.read(min(length, path.stat().st_size)))
            names |= set(header if isinstance(header, dict) else ())
    return names
