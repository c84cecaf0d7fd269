"""Read the folders of sentence-transformers: the pooling of states to one vector, and the maximum length of a text.

`modules.json` lists the modules in the order in which they run: Transformer in the folder itself or in one inside it,
Pooling, Dense and Normalize, each with its options in a folder of its own. The class paths and the names of options
differ between versions.
Source: sentence_transformers/sentence_transformer/modules/pooling.py and base/modules/dense.py of
sentence-transformers 6.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from edgeformer.config import Activation, ClassificationHead, Pooling, PoolingHead, PoolingLayer
from edgeformer.config.heads import EncoderHead
from edgeformer.config.tokenizer_limits import token_limit
from edgeformer.documents.json_document import is_inside, read_document, read_object
from edgeformer.errors import ConfigError, shown
from edgeformer.manifest.parts import TextPrompts

POOLINGS: dict[str, Pooling] = {
    "cls": "first", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "mean_sqrt", "weightedmean": "weighted_mean",
    "lasttoken": "last",
}  # fmt: skip
"""Our names of poolings, by those of sentence-transformers, in the order in which it concatenates old options."""

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

ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid",
}  # fmt: skip
"""Activations behind a Dense layer, by the names of their classes in torch.nn."""

TRANSFORMERS = ("Transformer", "MLMTransformer")
"""Classes of the first module; the second one is that of SPLADE before version 5.4."""

MODULES = re.compile("Transformer( Pooling( Dense)*( Normalize)?)?")
"""The lists of modules that a `PoolingHead` describes; Dropout, which does nothing in use, may stand anywhere."""

LIBRARIES = ("sentence_transformers", "pylate")
"""Packages whose modules are known; those of another name are code of the folder's repository."""

TEXT_CONFIGS = [
    f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "xlm-roberta", "camembert", "albert")
]
"""Files with the options of the first module; early versions named the file after the kind of model."""

_INSTEAD = "To pool the states in another way than the model was made for, choose --pooling mean or --pooling first."


EncoderHeadOf = Callable[[EncoderHead | None], EncoderHead]
"""Returns the head of a folder, from that of its config.json."""


@dataclass(frozen=True, kw_only=True)
class PooledStates:
    """A head that a folder has beside its config.json, and where the weights of its layers are.

    Attributes:
        head: the head.
        layers: folders with the weights of layers, or files, by the beginnings of their names in the model.
        tensors: names in the checkpoint itself of further layers, by those in the model; see `Family.tensors`.
        keeps_head: whether the head stands over that of config.json, and not in its place.
    """

    head: EncoderHeadOf
    layers: Mapping[str, Path] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    keeps_head: bool = False

    @property
    def pooling(self) -> PoolingHead:
        """Return the head of a folder that pools."""
        head = self.head(None)
        assert isinstance(head, PoolingHead)
        return head


def choose_pooling(folder: Path, pooling: Pooling | None, normalize: bool | None) -> PooledStates | None:
    """Return the requested pooling; without one, that of the folder, or None if it has none.

    normalize: None for what the folder says, or False with a requested pooling. Raises ConfigError.
    """
    if pooling not in (None, *get_args(Pooling)):
        raise ConfigError(f"pooling is {pooling!r}; it must be one of {', '.join(get_args(Pooling))}, or None.")
    if pooling is not None:
        requested = PoolingHead(pooling=pooling, normalize=bool(normalize))
        return PooledStates(head=lambda _: requested)
    found = read_pooling(folder)
    if normalize is None:
        return found
    if found is None:
        raise ConfigError("there is no pooling whose result could be normalized; choose one, as in --pooling mean.")
    changed = replace(found.pooling, normalize=normalize)
    return replace(found, head=lambda _: changed)


def transformer_folder(folder: Path) -> Path:
    """Return the folder of the transformer in a folder of sentence-transformers; any other folder itself.

    Raises ConfigError for a list of modules that cannot be read.
    """
    modules = listed_modules(folder)
    return folder / modules[0][1] if modules and modules[0][0] in TRANSFORMERS else folder


def read_pooling(folder: Path) -> PooledStates | None:
    """Return the pooling of a folder of sentence-transformers; None for other folders, or without pooling.

    Raises ConfigError for what a PoolingHead cannot describe.
    """
    modules = [module for module in listed_modules(folder) if module[0] != "Dropout"]
    kinds = " ".join(kind for kind, _ in modules)
    types: list[str] = [module["type"] for module in _listed(folder)]
    if foreign := [each for each in types if each.partition(".")[0] not in LIBRARIES]:
        raise ConfigError(
            f"{folder / 'modules.json'} has the module {shown(foreign[0])}, which is code of that repository: what it "
            f"does with the states is not known here. {_INSTEAD}"
        )
    if modules and not MODULES.fullmatch(kinds):
        raise ConfigError(
            f"{folder / 'modules.json'} lists {kinds.replace(' ', ', ')}, and edgeformer has Transformer, Pooling, any "
            f"number of Dense, Normalize, in this order. {_INSTEAD}"
        )
    if len(modules) < 2:
        return None
    layers = [folder / place for kind, place in modules if kind == "Dense"]
    pooling = folder / modules[1][1] / "config.json"
    head = PoolingHead(
        pooling=_read_mode(pooling),
        skips_prompt=None if read_options(pooling).get("include_prompt", True) else True,
        layers=tuple(read_layer(layer / "config.json") for layer in layers),
        normalize=modules[-1][0] == "Normalize",
        dimensions=_read_dimensions(folder),
    )
    return PooledStates(
        head=lambda _: head, layers={f"pooler.layers.{index}": layer for index, layer in enumerate(layers)}
    )


def _read_dimensions(folder: Path) -> int | None:
    """Return how many numbers of a vector the library keeps where no call says otherwise; None for all."""
    path = folder / "config_sentence_transformers.json"
    kept = read_object(path).get("truncate_dim") if os.path.isfile(path) else None
    if kept is not None and (type(kept) is not int or kept < 1):
        raise ConfigError(f"{path} has truncate_dim = {shown(kept)}; it must be a positive number, or null.")
    return kept


def read_answer_head(folder: Path) -> ClassificationHead | None:
    """Return the head of a causal model that a folder of sentence-transformers makes a cross-encoder; None for others.

    Its modules are Transformer and LogitScore, which names the tokens of the answers. Raises ConfigError for options
    that a ClassificationHead cannot describe.
    """
    modules = [module for module in listed_modules(folder) if module[0] != "Dropout"]
    if [kind for kind, _ in modules] != ["Transformer", "LogitScore"]:
        return None
    path = folder / modules[1][1] / "config.json"
    options = read_options(path)
    known = {"true_token_id", "false_token_id", "module_input_name"}
    if unknown := options.keys() - known:
        raise ConfigError(f"{path} has options that edgeformer does not know: {', '.join(sorted(unknown))}.")
    tokens: list[Any] = [options.get(name) for name in ("true_token_id", "false_token_id")]
    if tokens[1] is None:
        tokens.pop()
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise ConfigError(f"{path} has the tokens {shown(tokens)}; true_token_id and false_token_id must be token ids.")
    return ClassificationHead(
        labels=("LABEL_0",), pooling="last", bias=False, tokens=tuple(tokens), messages=_read_messages(folder, modules)
    )


def _read_messages(folder: Path, modules: list[tuple[str, str]]) -> Literal["closed", "open"] | None:
    """Return how a pair of texts goes through the chat template. modules: those of the folder."""
    path, options = _text_options(folder / modules[0][1])
    modalities = options.get("modality_config")
    if not isinstance(modalities, dict) or "message" not in modalities:
        return None
    processing = options.get("processing_kwargs") or {}
    variables = processing.get("chat_template") if isinstance(processing, dict) else None
    variables = dict(variables or {})
    variables.pop("restore_suffix", None)
    opens = variables.pop("add_generation_prompt", False)
    if variables:
        raise ConfigError(
            f"{path} gives the chat template {', '.join(map(str, variables))} (processing_kwargs.chat_template), and "
            "edgeformer gives it messages and add_generation_prompt. Set the variables within chat_template.jinja."
        )
    return "open" if opens else "closed"


def listed_modules(folder: Path) -> list[tuple[str, str]]:
    """Return class and folder of each module; none where there is no list of modules."""
    modules = _listed(folder)
    for place in (module.get("path", "") for module in modules):
        if not isinstance(place, str) or not (place == "" or is_inside(place)):
            raise ConfigError(
                f"{folder / 'modules.json'} has a module in {shown(place)}; it must be a folder inside this one."
            )
    return [(module["type"].rpartition(".")[2], module.get("path", "")) for module in modules]


def _listed(folder: Path) -> list[dict[str, Any]]:
    path = folder / "modules.json"
    if not os.path.isfile(path):
        return []
    listed: list[dict[str, Any]] = read_document(path, list)
    if not all(isinstance(module, dict) and isinstance(module.get("type"), str) for module in listed):
        raise ConfigError(f"{path} must list modules, each with its type.")
    return listed


def read_options(path: Path) -> dict[str, Any]:
    """Return the options of a module. Raises ConfigError where there is no such file."""
    if not os.path.isfile(path):
        raise ConfigError(f"there is no {path}, which modules.json lists. Download the folder again.")
    options: dict[str, Any] = read_document(path, dict)
    return options


def _refuse_unknown(path: Path, unknown: set[str]) -> None:
    if unknown:
        raise ConfigError(f"{path} has options that edgeformer does not know: {', '.join(sorted(unknown))}. {_INSTEAD}")


def _read_mode(path: Path) -> Pooling | tuple[Pooling, ...]:
    options = read_options(path)
    _refuse_unknown(path, options.keys() - LEGACY_MODES.keys() - IDLE_OPTIONS - {"pooling_mode", "include_prompt"})
    legacy = [mode for name, mode in LEGACY_MODES.items() if options.get(name)]
    modes = options.get("pooling_mode", legacy or "mean")
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(isinstance(mode, str) for mode in modes):
        raise ConfigError(f"{path} has pooling_mode = {shown(modes)}; it must be a text or a list of texts.")
    unknown = [mode for mode in modes if mode not in POOLINGS]
    if unknown:
        raise ConfigError(
            f"{path} has the pooling {shown(unknown[0])}; edgeformer has {', '.join(POOLINGS)}. {_INSTEAD}"
        )
    poolings = tuple(POOLINGS[mode] for mode in modes)
    return poolings[0] if len(poolings) == 1 else poolings


def read_layer(path: Path, what: str = "sentence_embedding") -> PoolingLayer:
    """Return the layer of a Dense module. what: the tensor that it reads and replaces. Raises ConfigError."""
    options = read_options(path)
    places = {"module_input_name": what, "module_output_name": what}
    known = {"in_features", "out_features", "bias", "activation_function", "use_residual"}
    _refuse_unknown(path, options.keys() - known - places.keys())
    for name, place in places.items():
        if options.get(name) not in (None, place):
            raise ConfigError(f"{path} has {name} = {shown(options[name])}; edgeformer has {place}. {_INSTEAD}")
    size = options.get("out_features")
    if type(size) is not int or size < 1:
        raise ConfigError(f"{path} has out_features = {shown(size)}; it must be a positive number.")
    for name in ("bias", "use_residual"):
        if not isinstance(options.get(name, False), bool):
            raise ConfigError(f"{path} has {name} = {shown(options[name])}; it must be true or false.")
    function = options.get("activation_function", "torch.nn.Tanh")  # as Dense has by default
    name = "Identity" if function is None else str(function).rpartition(".")[2]
    if name not in ACTIVATIONS or not str(function or "torch").startswith("torch"):
        raise ConfigError(
            f"{path} has activation_function = {shown(function)}; edgeformer has {', '.join(ACTIVATIONS)} of torch.nn. "
            f"{_INSTEAD}"
        )
    bias, residual = options.get("bias", True), options.get("use_residual", False)
    return PoolingLayer(size=size, activation=ACTIVATIONS[name], bias=bias, residual=residual)


def read_prompts(folder: Path) -> TextPrompts | None:
    """Return the prompts of a folder of sentence-transformers; None where it has none. Raises ConfigError."""
    path = folder / "config_sentence_transformers.json"
    if not os.path.isfile(path):
        return None
    options = read_object(path)
    prompts = options.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise ConfigError(f"{path} has prompts = {shown(prompts)}; it must be an object of texts.")
    default = options.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ConfigError(f"{path} has default_prompt_name = {shown(default)}; it must be one of its prompts, or null.")
    return TextPrompts(by_name=prompts, default=default) if prompts else None


def read_score(folder: Path, hf_config: dict[str, Any]) -> Literal["identity", "sigmoid"] | None:
    """Return what a cross-encoder does with its logits; None for what the library does where nothing is said.

    config_sentence_transformers.json says it where modules.json is beside it, or else config.json, in one of two
    fields. As in the library, a class outside of torch that a file names is not called, and says nothing. Raises
    ConfigError for another function than these two.
    """
    path = folder / "config_sentence_transformers.json"
    options = read_object(path) if os.path.isfile(path) and os.path.isfile(folder / "modules.json") else {}
    own = hf_config.get("sentence_transformers")
    name = options.get("activation_fn") or (own if isinstance(own, dict) else {}).get("activation_fn")
    name = name or hf_config.get("sbert_ce_default_activation_function")
    if not name or not str(name).startswith("torch."):
        return None
    match str(name).rpartition(".")[2]:
        case "Identity":
            return "identity"
        case "Sigmoid":
            return "sigmoid"
        case _:
            raise ConfigError(
                f"the scores of {folder.name} go through {shown(name)}; edgeformer has Identity and Sigmoid."
            )


def _text_options(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file with the options of the transformer in `folder`, and what it holds; nothing where none is."""
    path = next((folder / name for name in TEXT_CONFIGS if os.path.isfile(folder / name)), folder / TEXT_CONFIGS[0])
    return path, read_document(path, dict) if os.path.isfile(path) else {}


def lowers_case(folder: Path) -> bool:
    """Return whether sentence-transformers lowers the case of texts first. folder: that of the transformer."""
    path, options = _text_options(folder)
    lowers = options.get("do_lower_case", False)
    if not isinstance(lowers, bool):
        raise ConfigError(f"{path} has do_lower_case = {shown(lowers)}; it must be true or false.")
    return lowers


def check_modality(folder: Path) -> None:
    """Raise ConfigError where sentence-transformers puts texts through a chat template. folder: the transformer's.

    It does so where its options name the modality `message`, or, from version 6 on, where they name no modality and the
    tokenizer has a template. Folders of earlier versions are read as those versions read them, without it.
    """
    path, options = _text_options(folder)
    modalities = options.get("modality_config")
    if isinstance(modalities, dict) and "message" in modalities:
        raise ConfigError(
            f"{path} has the modality `message`: sentence-transformers puts every text through the chat template of "
            "the tokenizer, and edgeformer pools the states of plain texts. If the model was trained on those, take "
            "`message` out of modality_config."
        )


def read_max_length(folder: Path) -> int | None:
    """Return the number of tokens to which sentence-transformers truncates a text; None if the folder has no limit.

    It is max_seq_length of its own files, or else model_max_length of the tokenizer. folder: that of the transformer.
    """
    path, options = _text_options(folder)
    length = options.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise ConfigError(f"{path} has max_seq_length = {shown(length)}; it must be a positive number, or null.")
    tokenizer = folder / "tokenizer_config.json"
    if length is None and os.path.isfile(tokenizer):
        length = token_limit(read_object(tokenizer))
    return length
