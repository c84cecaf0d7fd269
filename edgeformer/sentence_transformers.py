"""Read the folders of sentence-transformers: the pooling of states to one vector, and the maximum length of a text.

`modules.json` lists the modules in the order in which they run: Transformer in the folder itself, Pooling with its
options in a folder of its own, Normalize. The class paths and the names of options differ between versions.
Source: sentence_transformers/sentence_transformer/modules/pooling.py of sentence-transformers 5.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from edgeformer.config import PoolingHead
from edgeformer.errors import ConfigError, shown
from edgeformer.json_document import is_inside, read_document

Pooling = Literal["first", "mean"]

POOLINGS: dict[str, Pooling] = {"cls": "first", "mean": "mean"}
"""The poolings that edgeformer supports, by their names in sentence-transformers."""

# Options of older versions, each true or false, with the name of the pooling in newer versions.
LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# Names of the width of the states, which config.json has, too.
IDLE_OPTIONS = {"embedding_dimension", "word_embedding_dimension"}

TEXT_CONFIGS = [
    f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "xlm-roberta", "camembert", "albert")
]
"""Files with the options of the first module; early versions named the file after the kind of model."""

_INSTEAD = "To pool the states in another way than the model was made for, choose --pooling mean or --pooling first."


def choose_pooling(folder: Path, pooling: Pooling | None, normalize: bool | None) -> PoolingHead | None:
    """Return the requested pooling; without one, that of the folder, or None if it has none.

    normalize: None for what the folder says, or False with a requested pooling. Raises ConfigError.
    """
    if pooling not in (None, *get_args(Pooling)):
        raise ConfigError(f"pooling is {pooling!r}; it must be one of {', '.join(get_args(Pooling))}, or None.")
    if pooling is not None:
        return PoolingHead(pooling=pooling, normalize=bool(normalize))
    head = read_pooling(folder)
    if normalize is None:
        return head
    if head is None:
        raise ConfigError("there is no pooling whose result could be normalized; choose one, as in --pooling mean.")
    return replace(head, normalize=normalize)


def read_pooling(folder: Path) -> PoolingHead | None:
    """Return the pooling of a folder of sentence-transformers; None for other folders, or without pooling.

    Raises ConfigError for a pooling that PoolingHead does not support.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    listed = read_document(path, list)
    if not all(isinstance(module, dict) and isinstance(module.get("type"), str) for module in listed):
        raise ConfigError(f"{path} must list modules, each with its type.")
    for place in (module.get("path", "") for module in listed):
        if not isinstance(place, str) or not (place == "" or is_inside(place)):
            raise ConfigError(f"{path} has a module in {shown(place)}; it must be a folder inside this one.")
    modules = [(module["type"].rpartition(".")[2], module.get("path", "")) for module in listed]
    kinds = [kind for kind, _ in modules]
    if kinds[:1] != ["Transformer"] or kinds[1:] not in ([], ["Pooling"], ["Pooling", "Normalize"]):
        raise ConfigError(
            f"{path} lists {', '.join(kinds)}, and edgeformer has Transformer, Pooling, Normalize, in this order. "
            f"{_INSTEAD}"
        )
    if modules[0][1]:
        raise ConfigError(f"{path} has its Transformer in {modules[0][1]}; it must be in the folder itself.")
    if len(modules) == 1:
        return None
    return PoolingHead(pooling=_read_mode(folder / modules[1][1] / "config.json"), normalize="Normalize" in kinds)


def _read_mode(path: Path) -> Pooling:
    if not path.is_file():
        raise ConfigError(f"there is no {path}, which modules.json lists. Download the folder again.")
    options: dict[str, Any] = read_document(path, dict)
    unknown = options.keys() - LEGACY_MODES.keys() - IDLE_OPTIONS - {"pooling_mode", "include_prompt"}
    if unknown:
        raise ConfigError(f"{path} has options that edgeformer does not know: {', '.join(sorted(unknown))}. {_INSTEAD}")
    if not options.get("include_prompt", True):
        raise ConfigError(
            f"{path} has include_prompt = false: the pooling leaves out the prompt before a text, and a graph has no "
            f"input for the length of the prompt. {_INSTEAD}"
        )
    legacy = [mode for name, mode in LEGACY_MODES.items() if options.get(name)]
    modes = options.get("pooling_mode", legacy)
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not all(isinstance(mode, str) for mode in modes):
        raise ConfigError(f"{path} has pooling_mode = {shown(modes)}; it must be a text or a list of texts.")
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ConfigError(
            f"{path} has the pooling {' and '.join(modes) or 'none'}; edgeformer has one of {', '.join(POOLINGS)}. "
            f"{_INSTEAD}"
        )
    return POOLINGS[modes[0]]


def read_max_length(folder: Path) -> int | None:
    """Return the number of tokens to which sentence-transformers truncates a text; None if the folder has no limit."""
    paths = [folder / name for name in TEXT_CONFIGS if (folder / name).is_file()]
    length = read_document(paths[0], dict).get("max_seq_length") if paths else None
    if length is not None and (type(length) is not int or length < 1):
        raise ConfigError(f"{paths[0]} has max_seq_length = {shown(length)}; it must be a positive number, or null.")
    return length
