"""The kernels of onnxruntime's CUDA and CPU providers, as the providers list them.

`kernels.json` is written by tools/verification/cuda/cuda_kernels.py from a wheel of onnxruntime-gpu. It also has the
schemas of onnxruntime's own ops: their inputs and outputs by type variable, which ONNX does not know.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgeformer.errors import require
from edgeformer.manifest.providers import PROVIDERS, ProviderName

TABLE = Path(__file__).parent / "kernels.json"


@dataclass(frozen=True)
class Kernel:
    """A kernel: versions of the op that it is for (last: None if no end is known), and types by type variable."""

    first: int
    last: int | None
    types: Mapping[str, frozenset[str]]

    def is_for(self, version: int) -> bool:
        """Return whether it is for a version of the op, by the rule of onnxruntime's kernel registry.

        A kernel whose end is not known is for the version that it was written for only: there may be a later one that
        nobody wrote a kernel for.
        """
        return version == self.first or (self.last is not None and self.first <= version <= self.last)


@dataclass(frozen=True)
class Schema:
    """An op: since which version it is as it is, and its inputs and outputs as (name, type or type variable).

    only: type variables that stand for a single type. body: whether ONNX defines it as a function, which onnxruntime
    inlines where no kernel exists.
    """

    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    only: Mapping[str, str]
    body: bool = False

    def variables(self, given: tuple[str | None, ...], made: tuple[str | None, ...] = ()) -> dict[str, str]:
        """Return the type of each type variable, and of each input and output by its name, of what is known."""
        found: dict[str, str] = dict(self.only)
        for formal, actual in ((self.inputs, given), (self.outputs, made)):
            for place, kind in enumerate(actual):
                if kind is not None and formal:
                    name, variable = formal[min(place, len(formal) - 1)]  # the last one may be variadic
                    found.setdefault(variable, kind)
                    found.setdefault(name, kind)
        return found


@dataclass(frozen=True)
class KernelTable:
    """The kernels of one version of onnxruntime. package: the wheel that they were read from."""

    onnxruntime: str
    package: str
    kernels: Mapping[ProviderName, Mapping[str, tuple[Kernel, ...]]]
    schemas: Mapping[str, Schema]

    def schema(self, domain: str, op: str, opset: int) -> Schema | None:
        """Return the schema of an op in an op set of its domain, or None if neither ONNX nor onnxruntime has it."""
        return self.schemas.get(_key(domain, op)) or _onnx_schema(domain, op, opset)

    def knows(self, domain: str, op: str) -> bool:
        """Return whether a provider has a kernel of an op for any types; onnxruntime does not open its body then."""
        return any(_key(domain, op) in kernels for kernels in self.kernels.values())

    def why_not(
        self, provider: ProviderName, domain: str, op: str, version: int, types: Mapping[str, str]
    ) -> str | None:
        """Return why a provider has no kernel for an op with these types by type variable; None if it has one."""
        known = self.kernels[provider].get(_key(domain, op), ())
        if not known:
            return "there is no kernel of this op"
        fitting = [kernel for kernel in known if kernel.is_for(version)]
        if not fitting:
            return f"there is no kernel of version {version} of this op"
        for kernel in fitting:
            if all(types[name] in allowed for name, allowed in kernel.types.items() if name in types):
                return None
        return f"there is no kernel for {_wrong(fitting, types)}"


def _wrong(kernels: list[Kernel], types: Mapping[str, str]) -> str:
    """The types that no kernel takes, or all of them if only their combination is the reason."""
    names = {name: kind for name, kind in types.items() if any(name in kernel.types for kernel in kernels)}
    wrong = {
        name: kind
        for name, kind in names.items()
        if not any(kind in kernel.types.get(name, frozenset({kind})) for kernel in kernels)
    }
    return ", ".join(f"{name} = {kind}" for name, kind in sorted((wrong or names).items()))


def _key(domain: str, op: str) -> str:
    return f"{domain}::{op}" if domain else op


@cache
def _onnx_schema(domain: str, op: str, opset: int) -> Schema | None:
    onnx = require("onnx", "check")
    try:
        found = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    inputs, outputs = (
        tuple((each.name, _plain(each.type_str)) for each in part) for part in (found.inputs, found.outputs)
    )
    single = {
        each.type_param_str: _plain(each.allowed_type_strs[0])
        for each in found.type_constraints
        if len(each.allowed_type_strs) == 1
    }
    body = found.has_function or found.has_context_dependent_function
    return Schema(found.since_version, inputs, outputs, single, body)


def _plain(kind: str) -> str:
    return kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else kind


@cache
def kernel_table() -> KernelTable:
    """Return the table that this package carries."""
    data = json.loads(TABLE.read_text(encoding="utf-8"))
    kernels: dict[ProviderName, dict[str, tuple[Kernel, ...]]] = {
        provider: {
            op: tuple(
                Kernel(first, last, {name: frozenset(kinds) for name, kinds in types.items()})
                for first, last, types in rows
            )
            for op, rows in data[provider].items()
        }
        for provider in PROVIDERS
        if provider in data
    }
    schemas = {
        op: Schema(1, tuple(map(tuple, each["inputs"])), tuple(map(tuple, each["outputs"])), each["only"])
        for op, each in data["schemas"].items()
    }
    return KernelTable(data["onnxruntime"], data["package"], kernels, schemas)
