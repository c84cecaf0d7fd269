"""Compare the module of a family with the one that transformers has for the same checkpoint, before it is exported.

Graph and eager module are made of one reading of config.json; where that is wrong, both are wrong alike. So both
modules run on one random text in float64 with the real weights, each parameter read while its layer runs. Where
transformers is missing, or has no such module, the certificate says that nothing was compared, and why.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from edgeformer.checkpoints.expert_weights import LazyWeights
from edgeformer.checkpoints.source import ModelSource
from edgeformer.checkpoints.tensor_files import open_tensors
from edgeformer.config import ModelConfig, StackConfig
from edgeformer.errors import EdgeformerError, ExportError, MissingDependencyError
from edgeformer.export.adapters.compared_kinds import COMPARED_KINDS
from edgeformer.export.adapters.opened_model import Comparison
from edgeformer.export.reference.reference import Reference
from edgeformer.export.reference.weight_streaming import streaming_parameters
from edgeformer.models.model_spec import model_spec_of

if TYPE_CHECKING:
    from edgeformer.transformers_backend.stored_tensors import StoredTensor

TOLERANCE = 5e-6
"""Largest difference of an output over the largest output. transformers rounds some tables to float32 when it makes
them: outputs change by up to 1.2e-7 in the random models of all families, and by 40 times that, if it adds up, in
models with 40 times as many layers. Other models agree to 1e-14; a wrong formula changes outputs by far more."""

TEXT, LONGEST_WINDOW = 32, 512
"""Tokens of the text beyond the longest window; longer windows, in tokens, are not exceeded."""

SMALL_TABLE = 2**21
"""Elements of an embedding up to which it stays in memory: 16 MiB in float64."""

LARGEST_MODULE = 2**30
"""Bytes in float64 that one module may hold by itself. Stacked experts are read at once by transformers' modules."""

LONGEST_RECORDING = 2**27
"""Parameters of a speech model above which 30 seconds, 1,500 positions, would take minutes in float64."""


class NotComparedError(Exception):
    """Raised where the two modules cannot be compared; its text says why, to follow "because"."""


def compare_modules(source: ModelSource, weights: Mapping[str, Tensor]) -> Comparison:
    """Compare both modules of a checkpoint, and return the largest difference of an output over the largest output.

    weights: by edgeformer's names. Raises ExportError where they compute something else.
    """
    if source.random_weights is not None:
        return Comparison(reason="the model has random weights and no checkpoint")
    if find_spec("transformers") is None:
        return Comparison(reason="transformers is not installed")
    try:
        from edgeformer.transformers_backend.hf_module import INSTALLED
        from edgeformer.transformers_backend.transformers_shim import quietly
    except MissingDependencyError as error:
        return Comparison(reason=str(error))
    try:
        with quietly():
            difference = _difference(source, weights)
    except NotComparedError as reason:
        return Comparison(library=INSTALLED, reason=str(reason))
    if not difference <= TOLERANCE:
        raise ExportError(
            f"edgeformer's module of this {source.hf_config['model_type']} does not compute what {INSTALLED} computes "
            f"with the same checkpoint: outputs of a random text differ by {difference:.1e} of the largest, and "
            f"{TOLERANCE:.0e} is allowed. Nothing was exported: please report it with the model's config.json. "
            "--backend transformers exports a decoder as transformers has it; --no-verify compares nothing."
        )
    return Comparison(library=INSTALLED, difference=difference)


def _difference(source: ModelSource, weights: Mapping[str, Tensor]) -> float:
    """Run both modules on one text. Raises NotComparedError."""
    from edgeformer.transformers_backend.float64 import computing_in_float64

    if source.text_model_of is not None:
        raise NotComparedError(f"the model is a part of a {source.text_model_of}")
    with computing_in_float64():  # so that its tables are computed in float64, too
        theirs = _build(source)
    stored = _stored_tensors(source, theirs)
    _place_embeddings(theirs, stored)
    inputs = _inputs(source)
    reference = Reference(model_spec_of(source.config), weights)
    with torch.no_grad():
        with reference.loaded():
            ours = COMPARED_KINDS[source.config.task].ours(reference, source.config, inputs)
        with computing_in_float64(), streaming_parameters(theirs, stored, torch.float64):
            expected = _run_theirs(source, theirs, inputs)
    if not all(each.isfinite().all() for each in expected):
        lacking = ", ".join(stored.missing) or "nothing"
        raise NotComparedError(f"transformers computes no numbers with it (it has parameters more: {lacking})")
    pairs = [(mine.double(), other.double()) for mine, other in zip(ours, expected, strict=True)]
    return max(float((mine - other).abs().max() / other.abs().max()) for mine, other in pairs)


def _build(source: ModelSource) -> Any:
    """Return transformers' module of a checkpoint: parameters on the meta device, real buffers."""
    from edgeformer.transformers_backend.hf_module import decoded
    from edgeformer.transformers_backend.transformers_shim import CONFIG_MAPPING, parameters_on_meta, transformers

    model_type = source.hf_config["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise NotComparedError(f"transformers has no model_type {model_type!r}")
    plain = source.hf_config.items()
    values = {name: decoded(value) for name, value in plain if name not in ("model_type", "auto_map")}
    try:
        config = CONFIG_MAPPING[model_type].from_dict(values)
        kind = getattr(transformers, _class_name(source))
        options = {"attn_implementation": "eager", "experts_implementation": "eager"}
        with parameters_on_meta():
            make = kind.from_config if kind.__name__.startswith("Auto") else kind._from_config
            model = make(config, dtype=torch.float64, **options).eval().requires_grad_(False)
    except Exception as error:  # code that is not ours may raise anything
        raise NotComparedError(f"transformers cannot build it ({type(error).__name__}: {error})") from error
    for name, module in model.named_modules():
        size = 8 * sum(parameter.numel() for parameter in module.parameters(recurse=False))
        if size > LARGEST_MODULE and type(module) not in (nn.Linear, nn.Embedding):
            raise NotComparedError(f"{name} alone would take {size / 2**30:.1f} GiB of memory in transformers")
    return model


def _class_name(source: ModelSource) -> str:
    """Return the name of transformers' class with the head that is exported."""
    return COMPARED_KINDS[source.config.task].class_name(source.config, source.hf_config.get("architectures") or [])


class _Stored(LazyWeights):
    """The checkpoint by the names of transformers' module. What it lacks is NaN, so that no output may depend on it.

    missing: the names of those parameters.
    """

    def __init__(self, files: Mapping[str, Any], found: Mapping[str, "StoredTensor"], model: nn.Module):
        self._files, self._found = files, found
        self._shapes = {name: each.shape for name, each in model.named_parameters(remove_duplicate=False)}
        groups: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            groups.setdefault(id(parameter), []).append(name)
        first = [(group, next((each for each in group if each in found), None)) for group in groups.values()]
        self._names = {name: stored for group, stored in first for name in group}
        missing = [group[0] for group in groups.values() if self._names[group[0]] is None]
        # Marian and PEGASUS compute a table of positions that is not stored.
        tables = {
            name: getattr(model.get_submodule(name.rpartition(".")[0]), "create_weight", None) for name in missing
        }
        self._computed = {name: create() for name, create in tables.items() if create is not None}
        self.missing = [name for name in missing if name not in self._computed]

    def __getitem__(self, name: str) -> Tensor:
        stored = self._names[name]
        if name in self._computed:
            return self._computed[name]
        if stored is None:
            return torch.full(self._shapes[name], torch.nan)
        return self._found[stored].read(self._read)

    def _read(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _stored_tensors(source: ModelSource, model: Any) -> _Stored:
    """Open a checkpoint for transformers' module, whose stored buffers are read at once."""
    from edgeformer.transformers_backend.stored_tensors import stored_tensors

    files = open_tensors(source.folder, source.allow_pickle)
    empty = {name: torch.empty(files[name].get_slice(name).get_shape(), device="meta") for name in files}
    try:
        stored = _Stored(files, found := stored_tensors(empty, model), model)
        persistent = model.state_dict().keys()
        for name, buffer in model.named_buffers():
            if name in persistent and name in found:
                value = found[name].read(stored._read).to(buffer.dtype)
                owner, _, last = name.rpartition(".")
                setattr(model.get_submodule(owner), last, value.reshape(buffer.shape))
    except EdgeformerError as error:
        raise NotComparedError(str(error)) from error
    return stored


def _place_embeddings(model: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Give every embedding a weight that is not on the meta device.

    Llama 4 moves token ids to where its weight is, and DeBERTa reads a table of relations from outside of its module:
    small tables are read at once, others are one number, NaN, which is seen in the outputs if anything reads it.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            small = module.weight.numel() <= SMALL_TABLE
            value = stored[f"{name}.weight"].double() if small else torch.full((1,), torch.nan, dtype=torch.float64)
            module.weight = nn.Parameter(value.expand(module.weight.shape), requires_grad=False)


def _inputs(source: ModelSource) -> list[Tensor]:
    """Return the inputs of every stack of the model, [1, N] or a spectrogram; those of a decoder are its target."""
    generator = torch.Generator().manual_seed(0)
    text = partial(_text, padding=source.hf_config.get("pad_token_id"), generator=generator)
    recording = partial(_recording, config=source.config, generator=generator)
    return [text(stack) if stack.audio is None else recording(stack) for stack in source.config.stacks.values()]


def _recording(stack: StackConfig, config: ModelConfig, generator: torch.Generator) -> Tensor:
    """Return a random spectrogram of as many frames as the encoder takes."""
    assert stack.audio is not None
    parameters = sum(math.prod(shape) for shape in model_spec_of(config).parameter_shapes().values())
    if parameters > LONGEST_RECORDING:
        raise NotComparedError("a recording of 30 seconds would take minutes in a model of its size")
    return torch.randn(1, stack.audio.mel_bins, 2 * stack.context_length, generator=generator).double()


def _text(stack: StackConfig, padding: int | None, generator: torch.Generator) -> Tensor:
    """Return a random text [1, N] longer than the windows; padding tokens, which it lacks, have other positions."""
    windows = [each.window for each in stack.attentions if each.window is not None and each.window < LONGEST_WINDOW]
    length = min(max(windows, default=0) + TEXT, stack.context_length)
    tokens = torch.randint(0, stack.vocab_size - 1, (1, length), generator=generator)
    return tokens if not isinstance(padding, int) else tokens + (tokens >= padding)


def _run_theirs(source: ModelSource, model: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Return the outputs of transformers' module that are compared. Raises NotComparedError."""
    try:
        return COMPARED_KINDS[source.config.task].theirs(model, source.config, inputs)
    except Exception as error:  # code that is not ours may raise anything
        raise NotComparedError(f"transformers cannot run it ({type(error).__name__}: {error})") from error
