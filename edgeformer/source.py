"""Where a model comes from: `--model` is the name of a preset, a folder, or a Hugging Face Hub id.

Names of presets come first: after `edgeformer export --model tiny-llama` there is a folder of that name, and the same
line must mean the same model again. `./tiny-llama` always means the folder.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeformer.config import EncoderConfig, ModelConfig
from edgeformer.errors import ConfigError, EdgeformerError, WeightsError, require
from edgeformer.families import GENERATION_FIELDS, Family, read_model_config
from edgeformer.manifest import SpecialTokens
from edgeformer.sentence_transformers import Pooling, choose_pooling, read_max_length

if TYPE_CHECKING:
    from torch import Tensor

CONTEXT_FIELDS = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx",
)  # fmt: skip
"""What config.json calls the number of positions, by family."""

PRESETS = Path(__file__).parent / "presets"

# What is read of a hub repository: these to know the model, the weights when they are needed, and nothing else. To the
# hub a star is any path, so that 1_Pooling/config.json is among them.
HUB_CONFIGS = ["*.json", "*.jinja"]
HUB_WEIGHTS = ["*.safetensors"]


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A folder with a config.json, whatever kind of model it is of.

    name: what to call its bundle. origin: for people, where it comes from. random_weights: the seed of a preset that
    has no trained weights; None where there is a checkpoint. hub_id: where its weights are to be downloaded from.
    """

    name: str
    origin: str
    folder: Path
    hf_config: dict[str, Any]
    random_weights: int | None = None
    hub_id: str | None = None

    def fetch_weights(self) -> None:
        """Download the weights into the folder, where they are not in it."""
        if self.hub_id is not None:
            _download(self.hub_id, HUB_WEIGHTS)

    def special_tokens(self) -> SpecialTokens:
        """Read the ids from generation_config.json, which overrides config.json."""
        found = self._generation_fields(("bos_token_id", "eos_token_id", "pad_token_id"))
        eos = found.get("eos_token_id", [])
        return SpecialTokens(
            eos=tuple(eos if isinstance(eos, list) else [eos]),
            bos=found.get("bos_token_id"),
            pad=found.get("pad_token_id"),
        )

    def generation_defaults(self) -> dict[str, Any]:
        """How the makers of an encoder-decoder want it to generate, in the words of generation_config.json."""
        return self._generation_fields(GENERATION_FIELDS)

    def _generation_fields(self, names: Sequence[str]) -> dict[str, Any]:
        path = self.folder / "generation_config.json"
        generation = _read_json(path) if path.is_file() else {}
        found = {
            name: value
            for fields in (self.hf_config, generation)  # the second overrides
            for name, value in fields.items()
            if value is not None
        }
        return {name: found[name] for name in names if name in found}


@dataclass(frozen=True, kw_only=True)
class ModelSource(FoundModel):
    """A model of a known family, which can be exported: its config is read, its weights are not."""

    family: Family
    config: ModelConfig

    def weights(self) -> Mapping[str, "Tensor"]:
        """Open the weights (downloading them first): parameter name → tensor, each read when it is asked for."""
        from edgeformer.weights import CheckpointWeights, RandomWeights

        if self.random_weights is not None:
            return RandomWeights(self.config, self.random_weights)
        self.fetch_weights()
        return CheckpointWeights(self.folder, self.family, self.config)


def preset_names() -> list[str]:
    """Names of the models that come with edgeformer."""
    return sorted(path.name for path in PRESETS.iterdir() if (path / "config.json").is_file())


def open_source(
    model: str | Path,
    context_length: int | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
) -> ModelSource:
    """Find a model and read its config. Raises an EdgeformerError that says what was looked for and where.

    context_length: positions to provide for; None for all that the model has, or, of a sentence encoder, as many as
    sentence-transformers lets a text have (max_seq_length). pooling: make one vector of an encoder's states, whatever
    head the checkpoint has: the `first` of them or their `mean`; None for what a folder of sentence-transformers says,
    and else for the head of config.json. normalize: whether the vector is given length one; None for what that folder
    says, and else not.
    """
    found = find_model(model)
    head = choose_pooling(found.folder, pooling, normalize)
    if head is None:
        family, config = read_model_config(found.hf_config, context_length)
        return ModelSource(**vars(found), family=family, config=config)
    family, config = read_model_config(found.hf_config | {"architectures": None}, context_length)
    if not isinstance(config, EncoderConfig):
        raise ConfigError(
            f"{found.origin} is no encoder ({found.hf_config['model_type']}), and only an encoder's states are pooled. "
            "Without pooling, and modules.json in its folder, it is exported as what its config.json says."
        )
    longest = read_max_length(found.folder) if context_length is None else None
    length = min(config.context_length, longest or config.context_length)
    return ModelSource(**vars(found), family=family, config=replace(config, head=head, context_length=length))


def find_model(model: str | Path) -> FoundModel:
    """Find a model, of a known family or not. Raises an EdgeformerError that says what was looked for and where."""
    text = str(model)
    if text in preset_names():
        return _open_folder(PRESETS / text, text, f"preset {text}")
    path = Path(text).expanduser()
    if path.is_dir():
        return _open_folder(path, path.resolve().name, f"folder {path.name}")
    looks_like_path = (
        isinstance(model, Path) or path.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1
    )
    if path.exists():
        raise ConfigError(f"{path} is a file; --model takes a preset, a model folder, or a hub id.")
    if looks_like_path or "/" not in text:
        raise ConfigError(
            f"there is no model {text!r}: no preset of that name (presets: {', '.join(preset_names())}), and no folder "
            f"{path.absolute()}. For a model of the Hugging Face Hub give its whole id, as in "
            "HuggingFaceTB/SmolLM2-135M."
        )
    folder = _download(text, HUB_CONFIGS)
    return _open_folder(folder, text.split("/")[1], f"hub {text}", hub_id=text)


def _open_folder(folder: Path, name: str, origin: str, hub_id: str | None = None) -> FoundModel:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json; a model folder has one beside its safetensors files.")
    hf_config = _read_json(folder / "config.json")
    preset_file = folder / "preset.json"
    random_weights = _read_json(preset_file).get("random_weights") if preset_file.is_file() else None
    return FoundModel(
        name=name, origin=origin, folder=folder, hf_config=hf_config, random_weights=random_weights, hub_id=hub_id
    )


def _download(hub_id: str, patterns: list[str]) -> Path:
    """Fetch files of a hub repository, or find them in the local cache; huggingface_hub draws its own progress bars."""
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a JSON object.")
    return data
