"""The tensors of a LoRA adapter, and what they make of the tensors of a checkpoint.

Adapters name the modules of transformers, and a checkpoint stores the weights of those modules. So an adapter changes
tensors as they are stored, before they are renamed, transposed or cut into parameters: packed projections and weights
that are stored [in, out] need no rules of their own.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgeformer.errors import ConfigError, WeightsError
from edgeformer.lora.adapter_config import CONFIG_FILE, LoraConfig, read_lora_config
from edgeformer.manifest.parts import AdapterOrigin, sha256

WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""The beginning of all names: PEFT wraps the model twice."""

PART = re.compile(
    r"(?P<module>.+)\.(?:lora_(?P<part>[AB])\.weight|lora_embedding_(?P<row>[AB])|lora_magnitude_vector(?:\.weight)?)"
)
"""A tensor of LoRA: A or B of a linear layer or of an embedding, or the lengths of the rows (DoRA)."""


@dataclass(frozen=True)
class LowRank:
    """The matrices that an adapter adds to one module.

    a: A [rank, in]. b: B [out, rank], without the scale. lengths: of the rows of the adapted weight, [out] (DoRA).
    """

    a: Tensor
    b: Tensor
    scale: float
    lengths: Tensor | None

    def merged(self, weight: Tensor, transposed: bool) -> Tensor:
        """Return the adapted weight; computed in float64, and in float32 at least.

        weight: [out, in]; transposed: it is [in, out], as that of an embedding.
        """
        whole = weight.mT.double() if transposed else weight.double()
        whole = whole + self.scale * (self.b.double() @ self.a.double())
        if self.lengths is not None:
            whole = whole * (self.lengths.double() / torch.linalg.vector_norm(whole, dim=1))[:, None]
        return (whole.mT if transposed else whole).to(torch.promote_types(weight.dtype, torch.float32))


@dataclass(frozen=True)
class Update:
    """The matrices that an adapter adds to one parameter: W + b a. a: [rank, in]; b: [out, rank], times the scale."""

    a: Tensor
    b: Tensor

    def to(self, dtype: torch.dtype) -> "Update":
        """Return both matrices in another type."""
        return Update(self.a.to(dtype), self.b.to(dtype))


class LoraAdapter:
    """An adapter's folder; tensors are read when they are needed.

    Opening reads the config and the names of the tensors. Raises ConfigError and WeightsError for an adapter that PEFT
    would read in another way, or not at all.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.config: LoraConfig = read_lora_config(folder)
        self._file = _open(folder)
        self._parts: dict[str, dict[str, str]] = {}
        self.replaced: dict[str, str] = {}
        """Tensors (biases, `modules_to_save`) by the tensors of transformers' module that they replace."""
        for name in self._file.keys():  # noqa: SIM118 - safe_open is not a mapping
            path = name.removeprefix(PREFIX)
            found = PART.fullmatch(path)
            if found is None:
                self._add_replaced(path, name)
            else:
                part = found["part"] or found["row"] or "lengths"
                self._parts.setdefault(found["module"], {})[part] = name
                if found["row"]:
                    self._parts[found["module"]]["embedding"] = name
        self._check_names()

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the adapted modules."""
        return tuple(self._parts)

    def origin(self) -> AdapterOrigin:
        """Return what a manifest says about the adapter; hashes its files."""
        return AdapterOrigin(
            name=self.name,
            kind=str(self.config),
            base=self.config.base,
            config_sha256=sha256(self.folder / CONFIG_FILE),
            weights_sha256=sha256(self.folder / WEIGHTS_FILE),
        )

    def low_rank(self, module: str) -> LowRank:
        """Read the tensors of one module. Raises WeightsError where their shapes do not fit the config."""
        parts, rank = self._parts[module], self.config.rank_of(module)
        a, b = self._read(parts["A"]), self._read(parts["B"])
        lengths = self._read(parts["lengths"]).flatten() if "lengths" in parts else None
        fits = a.dim() == b.dim() == 2 and a.shape[0] == b.shape[1] == rank
        if not fits or (lengths is not None and lengths.shape[0] != b.shape[0]):
            raise WeightsError(
                f"{self.folder / WEIGHTS_FILE} has A {list(a.shape)} and B {list(b.shape)} of {module}, and the config "
                f"says rank {rank}: A must be [{rank}, in], B [out, {rank}]. Save or download the adapter again."
            )
        return LowRank(a, b, self.config.scale_of(module), lengths)

    def of_embedding(self, module: str) -> bool:
        """Return whether a module is an embedding, whose weight is [in, out]."""
        return "embedding" in self._parts[module]

    def require_low_rank(self) -> None:
        """Raise ConfigError for an adapter that does more than to add products of narrow matrices to linear layers."""
        more = sorted(self.replaced) + [name for name, parts in self._parts.items() if "embedding" in parts]
        if self.config.decomposed or more:
            listed = ", ".join([*(["use_dora"] if self.config.decomposed else []), *more[:5]])
            raise ConfigError(
                f"the adapter {self.folder} does more than to add low-rank products to linear layers ({listed}), so it "
                "cannot be kept apart from the weights. Merge it: --merge-adapter instead of --adapter."
            )

    def replacement(self, tensor: str) -> Tensor:
        """Read the adapter's tensor that replaces one of the checkpoint."""
        return self._read(self.replaced[tensor])

    def replaced_shape(self, tensor: str) -> list[int]:
        """Return the shape of the adapter's tensor that replaces one of the checkpoint."""
        shape: list[int] = self._file.get_slice(self.replaced[tensor]).get_shape()
        return shape

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the tensors of transformers' module that the adapter changes or replaces."""
        return tuple(dict.fromkeys((*(f"{module}.weight" for module in self._parts), *self.replaced)))

    def places(self, find: Callable[[str], str | None], ignores: Callable[[str], bool]) -> dict[str, str]:
        """Return the changed tensor of transformers' module by the checkpoint's tensor that has its values.

        find: returns the checkpoint's name of a tensor that the exported model has. ignores: returns whether the model
        lacks a tensor on purpose, such as that of another head. Raises one WeightsError that names all other tensors.
        """
        found = {name: find(name) for name in self.changed}
        unknown = [name for name, place in found.items() if place is None and not ignores(name)]
        if unknown:
            trained_on = f" (its config names {self.config.base})" if self.config.base else ""
            raise WeightsError(
                f"the adapter {self.folder} changes tensors that the model does not have:{_listed(unknown)}"
                f"Check that it was trained on this model{trained_on}."
            )
        return {place: name for name, place in found.items() if place is not None}

    def _add_replaced(self, path: str, name: str) -> None:
        """Note a tensor that replaces one of the model; `path` is its name without PEFT's prefix.

        Of a resized table in modules_to_save PEFT stores the wrapped module, too, and the trained one by two names.
        """
        if ".original_module." in path:
            return
        for wrapper in (".base_layer.", ".modules_to_save."):
            path = path.replace(wrapper, ".")
        self.replaced[path] = name

    def _check_names(self) -> None:
        wanted = {"A", "B"} | ({"lengths"} if self.config.decomposed else set())
        problems = [
            f"{module} has {', '.join(sorted(parts.keys() - {'embedding'}))} instead of {', '.join(sorted(wanted))}"
            for module, parts in self._parts.items()
            if parts.keys() - {"embedding"} != wanted
        ]
        problems += [
            f"{module} is adapted, and target_modules does not name it"
            for module in self._parts
            if not self.config.targets_module(module)
        ]
        problems += [
            f"{name} of target_modules is adapted nowhere"
            for name in self.config.targets or ()
            if not any(module == name or module.endswith(f".{name}") for module in self._parts)
            and not self.config.may_exclude(name)
        ]
        if not self._parts and not self.replaced:
            problems.append("it has no tensors")
        if problems:
            raise WeightsError(
                f"{self.folder / WEIGHTS_FILE} does not fit its {CONFIG_FILE}:{_listed(problems)}"
                "Save the adapter with save_pretrained of PEFT, or download it again."
            )

    def _read(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor


class ChangedSlice:
    """A tensor of a checkpoint as an adapter changes it; like a slice of safetensors, it is read when it is indexed.

    base: the checkpoint's slice. name: of the tensor in transformers' module. transposed: whether a weight is stored
    [in, out]. resized: whether the adapter has a row more or less of it for each token, and these count.
    """

    def __init__(self, base: Any, adapter: LoraAdapter, name: str, transposed: bool, resized: bool = False):
        self._base, self._adapter, self._name, self._transposed = base, adapter, name, transposed
        self._resized = resized

    def get_shape(self) -> list[int]:
        """Return the shape of the tensor: the checkpoint's, which an adapter changes only with the vocabulary."""
        shape: list[int] = self._adapter.replaced_shape(self._name) if self._resized else self._base.get_shape()
        return shape

    def __getitem__(self, index: Any) -> Tensor:
        return self._changed()[index]

    def _changed(self) -> Tensor:
        adapter, shape = self._adapter, list(self.get_shape())
        tensor: Tensor = adapter.replacement(self._name) if self._name in adapter.replaced else self._base[...]
        if list(tensor.shape) != shape:
            raise WeightsError(
                f"the adapter {adapter.folder} replaces {self._name} {shape} by a tensor {list(tensor.shape)}. "
                "Check that it was trained on this model."
            )
        module = self._name.removesuffix(".weight")
        if module not in adapter.modules or module == self._name:
            return tensor
        return self._low_rank(module).merged(tensor, self._is_transposed(module))

    def added(self) -> tuple[Tensor, Tensor]:
        """Return a [rank, in] and b [out, rank], times the scale, of what the adapter adds to a weight."""
        low_rank = self._low_rank(self._name.removesuffix(".weight"))
        return low_rank.a, low_rank.scale * low_rank.b

    def _is_transposed(self, module: str) -> bool:
        return self._transposed or self._adapter.of_embedding(module)

    def _low_rank(self, module: str) -> LowRank:
        """Read what is added to the tensor. Raises WeightsError where it has another shape."""
        low_rank, shape = self._adapter.low_rank(module), list(self.get_shape())
        added = [low_rank.b.shape[0], low_rank.a.shape[1]]
        if added != (shape[::-1] if self._is_transposed(module) else shape):
            raise WeightsError(
                f"the adapter {self._adapter.folder} adds {added} to {self._name}, which is {shape} in the model. "
                "Check that it was trained on this model."
            )
        return low_rank


def open_adapter(folder: str | Path) -> LoraAdapter:
    """Open the folder of an adapter. Raises ConfigError where there is none."""
    path = Path(folder).expanduser()
    if not os.path.isdir(path):
        raise ConfigError(
            f"there is no folder {path}. An adapter is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}; download one "
            "with: hf download ID --local-dir DIR"
        )
    return LoraAdapter(path)


def _open(folder: Path) -> Any:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickled = folder / "adapter_model.bin"
        hint = f" ({pickled.name} is a pickle, which is not read: save it as safetensors)" if pickled.exists() else ""
        raise WeightsError(f"{folder} has no {WEIGHTS_FILE}{hint}.")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is not a whole safetensors file ({error}). Download it again.") from None


def _listed(lines: Sequence[str], most: int = 20) -> str:
    shown = [*lines[:most], *([f"… and {len(lines) - most} more"] if len(lines) > most else [])]
    return "".join(f"\n  {line}" for line in shown) + "\n"
