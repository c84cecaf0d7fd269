"""The kernels of onnxruntime's providers: as CUDA and the CPU list them, and as the plugin for WebGPU takes nodes.

`kernels.json` is written by tools/verification/cuda/cuda_kernels.py from a wheel of onnxruntime-gpu. It also has the
schemas of onnxruntime's own ops: their inputs and outputs by type variable, which ONNX does not know. `webgpu.json` is
written by tools/verification/webgpu/webgpu_kernels.py, which asks the plugin for one node after the other.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edgeformer.errors import require
from edgeformer.manifest.providers import CPU, ProviderName

TABLE = Path(__file__).parent / "kernels.json"

PROBED: Mapping[ProviderName, Path] = {"webgpu": TABLE.with_name("webgpu.json")}
"""Tables of providers that list no kernels."""


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
    """The kernels of a device's provider and of the CPU.

    Attributes:
        provider: the device's.
        onnxruntime: its version.
        package: the wheel or the plugin that has them, with its version.
        kernels: by provider and op.
        schemas: of ops that ONNX does not know.
    """

    provider: ProviderName
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
def kernel_table(provider: ProviderName = "cuda") -> KernelTable:
    """Return the table of a device that this package carries."""
    listed = json.loads(TABLE.read_text(encoding="utf-8"))
    data = listed if provider in listed else json.loads(PROBED[provider].read_text(encoding="utf-8"))
    schemas = {
        op: Schema(1, tuple(map(tuple, each["inputs"])), tuple(map(tuple, each["outputs"])), each["only"])
        for op, each in listed["schemas"].items()
    }
    kernels = {provider: _kernels(data[provider]), CPU.name: _kernels(listed[CPU.name])}
    return KernelTable(provider, data["onnxruntime"], data["package"], kernels, schemas)


def _kernels(ops: Mapping[str, Any]) -> dict[str, tuple[Kernel, ...]]:
    """Return kernels by op, of their rows in a file."""
    return {
        op: tuple(
            Kernel(first, last, {name: frozenset(kinds) for name, kinds in types.items()})
            for first, last, types in rows
        )
        for op, rows in ops.items()
    }
