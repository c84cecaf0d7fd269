"""`export_module`: a bundle from any `nn.Module` that keeps the forward contract of a decoder.

The module is the user's, with its weights in it, and stays as it is: what is traced and what parity measures by are
copies of it without values. `verify_module` holds a bundle to the module again, because a bundle has no code.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.contract import CacheGeometry
from edgeformer.deployment import DEPLOYMENTS
from edgeformer.errors import ExportError
from edgeformer.export.adapters.module_contract import FEWEST_TOKENS, check_contract
from edgeformer.export.bundle.writer import Progress, check_destination
from edgeformer.export.calibrate.text import Calibration
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.lower import CacheChoice
from edgeformer.export.options import arithmetic_of, check_options, choose
from edgeformer.export.parity import Mode, Report, open_bundle, verify_graph
from edgeformer.export.pipeline import ExportResult, Provenance, export_model_spec
from edgeformer.manifest import (
    CachePrecision,
    DeploymentName,
    Manifest,
    OpSet,
    Precision,
    PrefillChoice,
    Provider,
    SpecialTokens,
)
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import Quantization


def export_module(
    module: nn.Module,
    output: str | Path,
    *,
    vocab_size: int,
    context_length: int,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    name: str | None = None,
    deployment: DeploymentName | None = None,
    precision: Precision | None = None,
    provider: Provider = "cpu",
    ops: OpSet = "ort",
    cache: CacheChoice | None = None,
    cache_precision: CachePrecision | None = None,
    functions: bool = False,
    quantization: Quantization | None = None,
    calibration: Calibration | None = None,
    prefill: PrefillChoice | None = None,
    smooth: bool = False,
    tokenizer_folder: str | Path | None = None,
    eos: int | Sequence[int] = (),
    bos: int | None = None,
    pad: int | None = None,
    verify: Mode | None = "quick",
    overwrite: bool = False,
    progress: Progress = lambda what, part: None,
) -> ExportResult:
    """Export a module of your own to a bundle folder.

    module: forward(input_ids int64 [B, S], attention_mask int64 [B, T], caches: a list of one (key, value) for each
    layer, [B, K, P, D]) → (logits [B, S, V], such a list with [B, K, T, D]), its attention computed by
    `edgeformer.ops.group_query_attention`. Its weights may be of any float type; it is not changed. context_length:
    positions that it can tell apart. num_layers, num_kv_heads, head_dim: of the caches. name: of the model, by default
    that of the output folder. tokenizer_folder: holds tokenizer.json and what belongs to it. eos: tokens that end a
    text. The rest is as for `export_model`. Raises ExportError, before anything is written, where the module does not
    keep the contract, and ParityError where its graph computes something else.
    """
    check_options(precision, provider, verify, ops=ops, cache=cache, deployment=deployment)
    chosen_deployment = DEPLOYMENTS[deployment]
    chosen, lowering = choose(
        chosen_deployment,
        None,
        ops=ops,
        provider=provider,
        cache=cache,
        functions=functions,
        precision=precision,
        quantization=quantization,
        calibration=calibration,
        prefill=prefill,
    )
    destination = Path(output)
    check_destination(destination, overwrite)
    model_spec = _model_spec(
        module,
        CacheGeometry(num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim),
        vocab_size,
        context_length,
    )
    folder = None if tokenizer_folder is None else Path(tokenizer_folder)
    if folder is not None and not (folder / "tokenizer.json").is_file():
        raise ExportError(
            f"{folder} has no tokenizer.json. Give the folder that has one, or leave tokenizer_folder out."
        )
    weights = ModuleWeights(module)
    progress("running the module", 0)
    check_contract(
        model_spec, weights, TORCH_PRECISIONS[arithmetic_of(chosen.precision, lowering)], in_float64=verify is not None
    )
    provenance = Provenance(
        name=name or destination.resolve().name,
        origin=f"module {type(module).__qualname__}",
        tokens=SpecialTokens(eos=(eos,) if isinstance(eos, int) else tuple(eos), bos=bos, pad=pad),
        folder=folder,
    )
    return export_model_spec(
        model_spec,
        weights,
        provenance,
        destination,
        precision=chosen.precision,
        target=lowering,
        deployment=chosen_deployment,
        cache_precision=cache_precision,
        prefill=chosen.prefill,
        smooth=smooth,
        calibration=calibration,
        verify=verify,
        overwrite=overwrite,
        progress=progress,
    )


def verify_module(
    bundle: str | Path,
    module: nn.Module,
    *,
    mode: Mode = "full",
    progress: Progress = lambda what, part: None,
) -> Report:
    """Verify the graph of a bundle against the module that it was exported from, with the module's weights.

    A graph that computes something else is a report that has not passed. Raises BundleError for files that are not what
    the manifest says, and ExportError for a module that does not keep the forward contract with the bundle's sizes.
    """
    folder = Path(bundle)
    manifest = open_bundle(folder, progress)
    model_spec, weights = module_spec(module, manifest), ModuleWeights(module)
    check_contract(model_spec, weights, TORCH_PRECISIONS[manifest.arithmetic])
    reference = f"module {type(module).__qualname__}"
    return verify_graph(folder, manifest, model_spec, weights, mode=mode, reference=reference, progress=progress)


def module_spec(module: nn.Module, manifest: Manifest) -> ModelSpec:
    """The model spec of a module as the model of a bundle."""
    return _model_spec(module, manifest.cache, manifest.vocab_size, manifest.context_length)


class ModuleWeights(Mapping[str, Tensor]):
    """The parameters of a module by name, each brought to the CPU when it is asked for; tied ones have one name."""

    def __init__(self, module: nn.Module):
        self._parameters = dict(module.named_parameters())
        empty = [name for name, parameter in self._parameters.items() if parameter.is_meta]
        if empty:
            names = ", ".join(empty[:5])
            raise ExportError(f"the module has no values (it is on meta): {names}. Load its weights first.")

    def __getitem__(self, name: str) -> Tensor:
        return self._parameters[name].detach().cpu()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def _model_spec(module: nn.Module, cache: CacheGeometry, vocab_size: int, context_length: int) -> ModelSpec:
    sizes = {"vocab_size": vocab_size, "context_length": context_length, **asdict(cache)}
    for name, value in sizes.items():
        least = FEWEST_TOKENS if name == "context_length" else 1
        if value < least:
            raise ExportError(f"{name} is {value}; it must be at least {least}.")
    _check_tensors(module)
    return ModelSpec(
        build=lambda dtype: _without_values(module, dtype),
        constants=lambda: {name: buffer.detach().cpu() for name, buffer in module.named_buffers()},
        cache=cache,
        vocab_size=vocab_size,
        context_length=context_length,
    )


def _check_tensors(module: nn.Module) -> None:
    """Every tensor must be a parameter or a buffer: others keep their type and device whatever the module is told."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name.startswith("_") and isinstance(value, dict):
                continue  # torch's own
            if any(isinstance(member, Tensor) for member in _members(value)):
                where = f"{path}.{name}" if path else name
                raise ExportError(
                    f"{where} of the module holds a tensor that is neither a parameter nor a buffer, so no export can "
                    f"tell its values. Register it: self.register_buffer({name!r}, …, persistent=False)"
                )


def _members(value: Any) -> Iterable[Any]:
    """What an attribute holds, one level deep."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else [value]


def _without_values(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a module whose float tensors are of `dtype`; their values are not copied."""
    replaced: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        # Made under whatever mode the caller is in: fake for a trace, on meta for a reference.
        empty = torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
        is_parameter = isinstance(tensor, nn.Parameter)
        replaced[id(tensor)] = nn.Parameter(empty, requires_grad=False) if is_parameter else empty
    try:
        # deepcopy takes what is in its memo for what it would have copied; tied parameters stay one.
        return copy.deepcopy(module, replaced)
    except Exception as error:  # somebody else's attributes may refuse in any way
        raise ExportError(
            f"the module cannot be copied: {type(error).__name__}: {error}. Keep what cannot be copied out of it."
        ) from error
