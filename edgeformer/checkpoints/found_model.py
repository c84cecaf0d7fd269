"""Find a model by `--model`: the name of a preset, a folder, a GGUF file, or a Hugging Face Hub id.

Names of presets take precedence: `edgeformer export --model tiny-llama` makes a folder of that name, and the same
command must find the same model again. `./tiny-llama` always means the folder.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeformer.checkpoints.gguf.gguf_file import SUFFIX
from edgeformer.checkpoints.gguf.unpacked import UnpackedGguf, sole_gguf
from edgeformer.checkpoints.quantized.formats import read_config
from edgeformer.checkpoints.sentence_transformers import transformer_folder
from edgeformer.checkpoints.weight_map import find_weight_files
from edgeformer.documents.json_document import read_object
from edgeformer.errors import ConfigError, EdgeformerError, WeightsError, require, shown
from edgeformer.manifest.parts import SpecialTokens, sha256
from edgeformer.options.generation_fields import GENERATION_FIELDS, SPEECH_FIELDS, unsupported_fields

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
        quantization: `quantization_config` of config.json, of a checkpoint whose weights are quantized.
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
    quantization: dict[str, Any] | None = None
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


def preset_names() -> list[str]:
    """Return the names of the models that come with edgeformer."""
    return sorted(path.name for path in PRESETS.iterdir() if (path / "config.json").is_file())


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
        file = _download_gguf(named[1], named[2])
        return _open_gguf(file, file.stem, f"hub {text}")
    folder = _download(text, HUB_CONFIGS)
    return _open_folder(folder, text.split("/")[1], f"hub {text}", hub_id=text)


def _open_folder(folder: Path, name: str, origin: str, hub_id: str | None = None) -> FoundModel:
    modules, folder = folder, transformer_folder(folder)
    if not os.path.isfile(folder / "config.json"):  # also of a name that no file can have
        raise ConfigError(f"{folder} has no config.json; a model folder has one beside its safetensors files.")
    hf_config, quantization = read_config(folder, origin)
    preset_file = folder / "preset.json"
    random_weights = read_object(preset_file).get("random_weights") if preset_file.is_file() else None
    return FoundModel(
        name=name, origin=origin, folder=folder, modules=modules, hf_config=hf_config, random_weights=random_weights,
        hub_id=hub_id, quantization=quantization,
    )  # fmt: skip


def _open_gguf(path: Path, name: str, origin: str, beside: Path | None = None) -> FoundModel:
    """Return a model in a GGUF file. beside: a folder with files of its tokenizer."""
    unpacked = UnpackedGguf(path, beside)
    return replace(_open_folder(unpacked.folder, name, origin), gguf=unpacked)


def _download_gguf(hub_id: str, name: str) -> Path:
    """Return a GGUF file of a hub repository; the other files of a split one are beside it."""
    file = _download(hub_id, [re.sub(r"-\d{5}-of-(?=\d{5})", "-*-of-", name)]) / name
    if not file.is_file():
        raise ConfigError(f"the hub's {hub_id} has no file {name}.")
    return file


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
