"""Compare the module of a family with the one that transformers has for the same checkpoint, before it is exported.

Graph and eager module are made of one reading of config.json; where that is wrong, both are wrong alike. So both
modules run on one random text in float64 with the real weights, and transformers' module has those that transformers
itself reads from the folder (`from_pretrained`): a file, a name or a buffer that is read wrong shows, too. Where
transformers is missing, or has no such module, the certificate says that nothing was compared, and why.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from edgeformer.checkpoints.gguf.unpacked import UnpackedGguf
from edgeformer.checkpoints.quantized.formats import check_quantization
from edgeformer.checkpoints.source import ModelSource
from edgeformer.checkpoints.tensor_files import open_tensors
from edgeformer.config import (
    ModelConfig,
    PatchStem,
    SoundTextConfig,
    StackConfig,
    TowerTextConfig,
)
from edgeformer.errors import EdgeformerError, ExportError, MissingDependencyError
from edgeformer.export.heap import reusing_freed_memory
from edgeformer.export.importers.opened_model import Comparison
from edgeformer.export.importers.pictures.compared_inputs import pictures_in_text, sounds_in_text
from edgeformer.export.reference.reference import Reference
from edgeformer.export.reference.weight_streaming import streaming_parameters
from edgeformer.models.kinds import KINDS
from edgeformer.models.model_spec import model_spec_of
from edgeformer.models.pictures.comparison import PicturesInText

if TYPE_CHECKING:
    from edgeformer.transformers_backend.tensors.loaded_weights import LoadedWeights

TOLERANCE = 5e-6
"""Largest difference of an output over the largest output. transformers rounds some tables to float32 when it makes
them: outputs change by up to 1.2e-7 in the random models of all families, and by 40 times that, if it adds up, in
models with 40 times as many layers. Other models agree to 1e-14; a wrong formula changes outputs by far more."""

ROUNDED = 2**-8
"""Largest relative difference of a quantized weight: transformers multiplies integers with scales in the scales' type,
bfloat16 at least. A weight within it is compared as what it means exactly; others are left, and show in the outputs."""

TEXT, LONGEST_WINDOW = 32, 512
"""Tokens of the text beyond the longest window; longer windows, in tokens, are not exceeded."""

SMALL_TABLE = 2**21
"""Elements of an embedding up to which it stays in memory: 16 MiB in float64."""

LARGEST_MODULE = 2**30
"""Bytes in float64 that one module may hold by itself. Stacked experts are read at once by transformers' modules."""

LARGEST_UNPACKED = 2**34
"""Bytes in float32 of a GGUF file that transformers dequantizes at once."""

LONGEST_RECORDING = 2**27
"""Parameters of a speech model above which 30 seconds, 1,500 positions, would take minutes in float64."""


class NotComparedError(Exception):
    """Raised where the two modules cannot be compared; its text says why, to follow "because"."""


@reusing_freed_memory()
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
        from edgeformer.transformers_backend.tensors.gguf_metadata import quick_headers
        from edgeformer.transformers_backend.transformers_shim import quietly
    except MissingDependencyError as error:
        return Comparison(reason=str(error))
    try:
        with quietly(), nullcontext() if source.gguf is None else quick_headers():
            difference, hint = _difference(source, weights)
    except NotComparedError as reason:
        return Comparison(library=INSTALLED, reason=str(reason))
    if not difference <= TOLERANCE:
        raise ExportError(
            f"edgeformer's module of this {source.hf_config['model_type']} does not compute what {INSTALLED} computes "
            f"with the same checkpoint: outputs of a random text differ by {difference:.1e} of the largest, and "
            f"{TOLERANCE:.0e} is allowed.{hint} Nothing was exported: please report it with the model's config.json. "
            "--backend transformers exports a decoder as transformers has it; --no-verify compares nothing."
        )
    return Comparison(library=INSTALLED, difference=difference)


def _difference(source: ModelSource, weights: Mapping[str, Tensor]) -> tuple[float, str]:
    """Run both modules on one text; return the largest difference, and a hint where it is too large.

    Raises NotComparedError.
    """
    from edgeformer.transformers_backend.float64 import computing_in_float64

    if source.text_model_of is not None:
        raise NotComparedError(f"the model is a part of a {source.text_model_of}")
    with computing_in_float64():  # so that its tables are computed in float64, too
        theirs = _build(source)
    stored = _load(source, theirs)
    _place_embeddings(theirs, stored)
    inputs = _inputs(source)
    config = source.config
    if isinstance(inputs, PicturesInText) and isinstance(config, TowerTextConfig):
        # Three pictures may be longer than the context that is exported.
        config = replace(config, context_length=max(config.context_length, inputs.text.shape[1]))
    reference, kind = Reference(model_spec_of(config), weights), KINDS[config.task]
    with torch.no_grad():
        with reference.loaded():
            ours = kind.comparison.ours(reference.module, config, inputs, reference.empty_caches(1))
        with computing_in_float64():
            expected = _run_theirs(source, theirs, stored, inputs)
    if not all(each.isfinite().all() for each in expected):
        lacking = ", ".join(stored.missing) or "nothing"
        raise NotComparedError(f"transformers computes no numbers with it (it has parameters more: {lacking})")
    pairs = [(mine.double(), other.double()) for mine, other in zip(ours, expected, strict=True)]
    worst = max(float((mine - other).abs().max() / other.abs().max()) for mine, other in pairs)
    return worst, "" if worst <= TOLERANCE else _read_otherwise(source, theirs, stored)


def _build(source: ModelSource) -> Any:
    """Return transformers' module of a checkpoint: parameters on the meta device, real buffers."""
    from edgeformer.transformers_backend.hf_module import decoded
    from edgeformer.transformers_backend.transformers_shim import CONFIG_MAPPING, parameters_on_meta, transformers

    model_type = source.hf_config["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise NotComparedError(f"transformers has no model_type {model_type!r}")
    plain = source.hf_config.items()
    values = {name: decoded(value) for name, value in plain if name not in ("model_type", "auto_map")}
    if source.gguf is not None:
        values |= _read_metadata(source.gguf, model_type)
    if source.quantization is not None:
        values["quantization_config"] = _dequantizing(source.quantization)
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


def _dequantizing(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with which transformers reads a quantized checkpoint as plain weights.

    Raises NotComparedError for a format that it runs over kernels of a package instead.
    """
    form = check_quantization(options, "config.json")
    if not form.dequantizes:
        raise NotComparedError(f"transformers does not read {options.get('quant_method')} as plain weights")
    return options | {"dequantize": True}


def _read_metadata(gguf: UnpackedGguf, model_type: str) -> dict[str, Any]:
    """Return the fields of a config that transformers itself reads from the metadata of a GGUF file.

    It leaves others at their defaults, which may be those of another model; these are edgeformer's reading. Raises
    NotComparedError for an architecture that it does not read, and for a file that it would need more memory for than
    `LARGEST_UNPACKED`.
    """
    from edgeformer.transformers_backend.tensors.gguf_metadata import read_gguf_config

    unpacked = 4 * sum(math.prod(tensor.shape) for tensor in gguf.file.tensors.values())
    if unpacked > LARGEST_UNPACKED:
        raise NotComparedError(f"transformers would unpack the file to {unpacked / 2**30:.1f} GiB in memory")
    try:
        found = read_gguf_config(gguf.folder, gguf.file.paths[0])
    except Exception as error:  # code that is not ours may raise anything
        said = (str(error).strip().splitlines() or [""])[0][:200]
        raise NotComparedError(f"transformers cannot read the file ({type(error).__name__}: {said})") from error
    if found.pop("model_type", None) != model_type:
        raise NotComparedError("transformers reads the file as a model of another type")
    return found


def _class_name(source: ModelSource) -> str:
    """Return the name of transformers' class with the head that is exported."""
    comparison = KINDS[source.config.task].comparison
    return comparison.class_name(source.config, source.hf_config.get("architectures") or [])


def _load(source: ModelSource, model: Any) -> "LoadedWeights":
    """Let transformers load a checkpoint, and place the buffers that are stored there. Raises NotComparedError."""
    from edgeformer.transformers_backend.tensors.loaded_weights import load_weights

    try:
        loaded = load_weights(model, source.folder, source.allow_pickle)
    except Exception as error:  # code that is not ours may raise anything
        said = str(error).strip().splitlines() or [""]
        raise NotComparedError(f"transformers cannot load it ({type(error).__name__}: {said[0][:300]})") from error
    loaded.place_buffers(model)
    if source.quantization is not None:
        for name, ours, theirs in _read_by_both(source, model, loaded):
            if bool(((ours.double() - theirs.double()).abs() <= ROUNDED * ours.double().abs()).all()):
                loaded.replace(name, ours)
    return loaded


def _read_otherwise(source: ModelSource, model: Any, loaded: "LoadedWeights") -> str:
    """Return a sentence that names tensors which transformers reads with other numbers than edgeformer does."""
    names = [
        name
        for name, ours, theirs in _read_by_both(source, model, loaded)
        if not torch.equal(ours.double(), theirs.double())
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" transformers reads other numbers than edgeformer in {', '.join(names[:3])}{more}." if names else ""


def _read_by_both(
    source: ModelSource, model: Any, loaded: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield tensors of the checkpoint that are no parts of others: name in the module, edgeformer's, transformers'."""
    from edgeformer.transformers_backend.tensors.stored_tensors import stored_tensors

    files = open_tensors(source.folder, source.allow_pickle)
    empty = {name: torch.empty(files[name].get_slice(name).get_shape(), device="meta") for name in files}
    try:
        found = stored_tensors(empty, model)
    except EdgeformerError:
        return
    for name, each in found.items():
        if each.conversion is None and name in loaded:
            yield name, files[each.origin].get_tensor(each.origin), loaded[name]


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


def _inputs(source: ModelSource) -> list[Tensor] | PicturesInText:
    """Return the inputs of every stack of the model, [1, N] or a spectrogram; those of a decoder are its target."""
    generator = torch.Generator().manual_seed(0)
    text = partial(_text, padding=source.hf_config.get("pad_token_id"), generator=generator)
    if isinstance(source.config, SoundTextConfig):
        return sounds_in_text(source.config, text(source.config))
    if isinstance(source.config, TowerTextConfig):
        found = pictures_in_text(source, source.config, text(source.config))
        if found is None:
            raise NotComparedError("its config.json names no token that stands for a picture")
        return found
    inputs = []
    for stack in source.config.stacks.values():
        if stack.patch_stem is not None:
            inputs.append(_picture(stack.patch_stem, generator))
        elif stack.padded_grids:
            inputs += _patches(stack, generator)
        else:
            inputs.append(text(stack) if stack.audio is None else _recording(stack, source.config, generator))
    return inputs


def _picture(patches: PatchStem, generator: torch.Generator) -> Tensor:
    """Return a picture of noise [1, channels, height, width]."""
    return torch.randn(1, patches.channels, patches.height, patches.width, generator=generator).double()


def _patches(tower: StackConfig, generator: torch.Generator) -> list[Tensor]:
    """Return the patches of a picture of noise [1, P, numbers], some of which pad it, their mask and its shape."""
    grid, padding = tower.padded_grids[0], 3
    assert tower.patch_vectors is not None, "of such a tower"
    values = torch.randn(1, grid.patches + padding, tower.patch_vectors.inputs, generator=generator).double()
    mask = (torch.arange(values.shape[1]) < grid.patches).to(torch.int64).unsqueeze(0)
    return [values, mask, torch.tensor([[grid.rows, grid.columns]])]


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
    if stack.end_token is not None:
        tokens[0, [length // 2, length - 1]] = stack.end_token  # the first of them counts
    return tokens if not isinstance(padding, int) else tokens + (tokens >= padding)


def _run_theirs(source: ModelSource, model: Any, stored: Mapping[str, Tensor], inputs: Any) -> list[Tensor]:
    """Return the outputs of transformers' module that are compared. Raises NotComparedError.

    A module of a head that does not run, although its parameters are the model's, is read by the module around it
    (MobileBERT's table of words): these stay loaded, and the model runs again.
    """
    # torch's own attention reads the weight of its last layer without running that layer (SigLIP's pooling).
    unseen = [each.out_proj for each in model.modules() if isinstance(each, nn.MultiheadAttention)]
    # A method reads this parameter, without running the module around it (LLaVA-NeXT).
    unseen += [each for each in model.modules() if "image_newline" in dict(each.named_parameters(recurse=False))]
    ran: set[Any] = set()
    hooks = [each.register_forward_pre_hook(lambda module, _: ran.add(module)) for each in model.modules()]
    try:
        with streaming_parameters(model, stored, torch.float64, unseen):
            outputs = KINDS[source.config.task].comparison.theirs(model, source.config, inputs)
        body = set(model.base_model.modules())
        idle = [
            each for each in model.modules()
            if each not in ran and each not in body and next(each.parameters(recurse=False), None) is not None
        ]  # fmt: skip
        if not idle:
            return outputs
        with streaming_parameters(model, stored, torch.float64, [*unseen, *idle]):
            return KINDS[source.config.task].comparison.theirs(model, source.config, inputs)
    except Exception as error:  # code that is not ours may raise anything
        raise NotComparedError(f"transformers cannot run it ({type(error).__name__}: {error})") from error
    finally:
        for hook in hooks:
            hook.remove()
