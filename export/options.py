"""The options of an export: plain data, the same from the command line and from Python.

`ExportOptions` says what a user wants; `plan.make_plan` decides from it, once, what an export does.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import Pooling
from edgeformer.errors import ExportError
from edgeformer.manifest.parts import (
    Arithmetic,
    Backend,
    CachePrecision,
    DeploymentName,
    OpSet,
    Precision,
    PrefillChoice,
)
from edgeformer.manifest.providers import ProviderName
from edgeformer.manifest.quantization import Quantization, QuantizationOverrides

CacheChoice = Literal["dynamic", "static"]
"""How a graph of the op sets `standard` and `portable` keeps its cache; graphs of `ort` take both."""

VerifyMode = Literal["quick", "full"]
"""`quick` is what an export runs; `full` has every length, language and batch, and the end of the context."""

ADAPTER_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of the names of adapters, which are also names of files and of models of a server."""

Calibration = str | Path | Sequence[Sequence[int] | NDArray[np.int64]]
"""A file of text in UTF-8, or texts as token ids."""


class ModuleOptionKeywords(TypedDict, total=False):
    """The fields of `ExportOptions` that any module takes, as keyword arguments."""

    deployment: DeploymentName | None
    precision: Precision | None
    arithmetic: Arithmetic | None
    provider: ProviderName
    ops: OpSet
    cache: CacheChoice | None
    cache_precision: CachePrecision | None
    functions: bool
    quantization: Quantization | QuantizationOverrides | None
    calibration: Calibration | None
    smooth: bool
    prefill: PrefillChoice | None
    verify: VerifyMode | None
    overwrite: bool


class OptionKeywords(ModuleOptionKeywords, total=False):
    """All fields of `ExportOptions` as keyword arguments; a test holds the two equal."""

    context_length: int | None
    pooling: Pooling | None
    normalize: bool | None
    backend: Backend | None
    merge_adapter: str | Path | None
    adapters: Mapping[str, str | Path]
    allow_pickle: bool


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of an export. None leaves a choice to the deployment, and without one to the default.

    deployment: where the bundle is to run. It decides which files are written, and proposes precision, quantization and
    prefill graph; by default every file is written and weights stay float32. precision: of weights. arithmetic: of
    activations; for a CPU it is float32 but with fp16 weights, for CUDA that of the weights, and fp16 with int4 and
    int8 weights, which `bf16` can replace. provider: whose kernels the graph must find.
    ops: the op set that the graph is written in. cache: how graphs of `standard` and `portable` keep their cache.
    cache_precision: `int8` for a decoder's cache in a quarter of the memory, or `fp8` in as much, for CUDA.
    functions: keep our ops in a `portable` graph, as functions of the model.

    quantization: how int8 and int4 weights are stored, as a whole config or as overrides of the default one.
    calibration: a text of what the model is for, by which int8 and int4 weights are rounded (`gptq`) and the scales of
    a quantized cache are chosen. smooth: use that text to even out channels whose activations are quantized per token.
    prefill: add a prefill graph over int8 weights to a decoder, or `none` although the deployment proposes one.

    context_length: positions to provide for, by default all that the model has. pooling, normalize: make one vector of
    an encoder's states (see `edgeformer.checkpoints.source.open_source`). backend: the library whose own module is
    exported, for architectures without a family file. merge_adapter: folder of a LoRA adapter whose changes are added
    to the weights before anything else is done with them. adapters: folders of LoRA adapters by the names that
    requests choose them by; they are kept apart from the weights, as inputs of a further graph of a decoder.
    allow_pickle: read the tensors of a pytorch_model.bin where there are no safetensors; nothing else in it is called.
    verify: how thoroughly the graph is compared with PyTorch before the bundle is put in place, None for not at all.
    overwrite: replace a bundle that is already there.

    Raises ExportError for a value that does not exist.
    """

    deployment: DeploymentName | None = None
    precision: Precision | None = None
    arithmetic: Arithmetic | None = None
    provider: ProviderName = "cpu"
    ops: OpSet = "ort"
    cache: CacheChoice | None = None
    cache_precision: CachePrecision | None = None
    functions: bool = False
    quantization: Quantization | QuantizationOverrides | None = None
    calibration: Calibration | None = None
    smooth: bool = False
    prefill: PrefillChoice | None = None
    context_length: int | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    backend: Backend | None = None
    merge_adapter: str | Path | None = None
    adapters: Mapping[str, str | Path] = field(default_factory=dict)
    allow_pickle: bool = False
    verify: VerifyMode | None = "quick"
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name, choices, optional in (
            ("provider", ProviderName, False),
            ("ops", OpSet, False),
            ("deployment", DeploymentName, True),
            ("precision", Precision, True),
            ("arithmetic", Arithmetic, True),
            ("cache", CacheChoice, True),
            ("cache_precision", CachePrecision, True),
            ("prefill", PrefillChoice, True),
            ("backend", Backend, True),
            ("verify", VerifyMode, True),
        ):
            value = getattr(self, name)
            if value not in get_args(choices) and not (optional and value is None):
                listed = ", ".join(get_args(choices)) + (", or None" if optional else "")
                raise ExportError(f"{name} is {value!r}; it must be one of {listed}.")
        for name in self.adapters:
            if re.fullmatch(ADAPTER_NAME, name) is None:
                raise ExportError(
                    f"an adapter is named {name!r}; a name is made of letters, digits, points, dashes and underscores, "
                    "and begins with a letter or a digit."
                )


def with_changes(options: ExportOptions | None, changes: OptionKeywords | ModuleOptionKeywords) -> ExportOptions:
    """Return the options, by default the default ones, with keyword arguments in place of their fields.

    Raises TypeError for a keyword that is no option.
    """
    known = [field.name for field in fields(ExportOptions)]
    for name in changes.keys() - known:
        nearest = get_close_matches(name, known, 1) or known
        raise TypeError(f"an export has no option {name!r}; did you mean {' or '.join(nearest)}?")
    return replace(options or ExportOptions(), **changes)
