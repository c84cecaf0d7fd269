"""Open any `nn.Module` of the user's that keeps the forward contract of a decoder.

The module has its weights in it and is not changed: capture and verification work on copies of it without values.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.checkpoints.expert_weights import LazyWeights
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.errors import ExportError, shown
from edgeformer.export.importers.module_contract import FEWEST_TOKENS, check_contract
from edgeformer.export.importers.opened_model import OpenedModel, Origin
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provenance, SpecialTokens
from edgeformer.models.model_spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class ModuleDescription:
    """The facts that a module does not tell about itself.

    Attributes:
        context_length: positions that it can tell apart.
        num_layers, num_kv_heads, head_dim: of its caches.
        name: of the model, by default that of the output folder.
        tokenizer_folder: holds tokenizer.json and what belongs to it.
        eos: ids of the tokens that end a text.
        bos, pad: ids of the tokens that begin and pad one.
    """

    vocab_size: int
    context_length: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    name: str | None = None
    tokenizer_folder: str | Path | None = None
    eos: int | Sequence[int] = ()
    bos: int | None = None
    pad: int | None = None

    def origin(self, module: nn.Module, name: str) -> Origin:
        """Return where a bundle of this name comes from. Raises ExportError for a folder without a tokenizer."""
        folder = None if self.tokenizer_folder is None else Path(self.tokenizer_folder)
        if folder is not None and not (folder / "tokenizer.json").is_file():
            raise ExportError(
                f"{folder} has no tokenizer.json. Give the folder that has one, or leave tokenizer_folder out."
            )
        eos = (self.eos,) if isinstance(self.eos, int) else tuple(self.eos)
        return Origin(
            name=self.name or name,
            provenance=Provenance(source=f"module {type(module).__qualname__}"),
            tokens=SpecialTokens(eos=eos, bos=self.bos, pad=self.pad),
            folder=folder,
        )


def open_module(
    module: nn.Module, description: ModuleDescription, origin: Origin, dtype: torch.dtype, *, in_float64: bool
) -> OpenedModel:
    """Open a module of the user's, which must keep the forward contract in `dtype`, the precision of the graph.

    in_float64: also compare the module with itself in float64, fed in several ways. Raises ExportError where it does
    not keep the contract.
    """
    for name in ("vocab_size", "context_length", "num_layers", "num_kv_heads", "head_dim"):
        value, least = getattr(description, name), FEWEST_TOKENS if name == "context_length" else 1
        if type(value) is not int or value < least:
            raise ExportError(f"{name} is {shown(value)}; it must be at least {least}.")
    cache = CacheGeometry.of_attention(description.num_layers, description.num_kv_heads, description.head_dim)
    model_spec = _model_spec(module, cache, description.vocab_size, description.context_length)
    weights = ModuleWeights(module)
    check_contract(model_spec, weights, dtype, in_float64=in_float64)
    return OpenedModel(model_spec=model_spec, weights=weights, origin=origin)


def module_spec(module: nn.Module, manifest: Manifest) -> ModelSpec:
    """Return the model spec of a module with the sizes that a bundle's manifest gives."""
    return _model_spec(module, manifest.cache, manifest.vocab_size, manifest.context_length)


class ModuleWeights(LazyWeights):
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
    _check_tensors(module)
    return ModelSpec(
        build=lambda dtype: _without_values(module, dtype),
        constants=lambda: {name: buffer.detach().cpu() for name, buffer in module.named_buffers()},
        cache=cache,
        vocab_size=vocab_size,
        context_length=context_length,
    )


def _check_tensors(module: nn.Module) -> None:
    """Raise ExportError for a tensor that is neither a parameter nor a buffer: it would keep its type and device
    whatever the module is told.
    """
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
    """Return what an attribute holds, one level deep."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else [value]


def _without_values(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a module whose float tensors are of `dtype`; their values are not copied."""
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
