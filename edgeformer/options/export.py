"""The options of an export: the fields of `ExportOptions`, in groups.

To add one, declare it in its group here and write what it does, in a stage of `export/pipeline.py` or behind it; one
that graphs or files follow from is a field of `edgeformer.manifest.plan.ExportPlan` too, which takes it from here. Then
run `python tools/option_keywords.py`. The command line, the checks of calls and the reference follow from the
declaration. `export/plan.py` decides from the options, once, what an export does, and refuses what excludes each other.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, get_args

from edgeformer.config import Pooling
from edgeformer.documents.option import Option, check_options, option, options_of
from edgeformer.errors import ExportError, shown
from edgeformer.manifest.deployment import DEPLOYMENTS, DeploymentName
from edgeformer.manifest.parts import (
    Arithmetic,
    Backend,
    CachePrecision,
    OpSet,
    Precision,
)
from edgeformer.manifest.providers import ProviderName
from edgeformer.manifest.quantization import Quantization, QuantizationOverrides

CacheChoice = Literal["dynamic", "static"]
VerifyMode = Literal["quick", "full"]
"""`quick` is what an export runs; `full` has every length, language and batch, and the end of the context."""

ADAPTER_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of the names of adapters, which are also names of files and of models of a server."""

Folder = str | Path
Adapters = Mapping[str, str | Path]
Size = str | int
"""A number and its unit, such as 75MB, or a number of bytes."""
Calibration = str | Path | Sequence[Any]
"""A file of text in UTF-8, or texts as token ids: lists, or arrays int64; of models that see, a folder of pictures and
texts, or a file of JSON lines."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BundleOptions:
    """The bundle that is made: where it is to run, and in which precision."""

    TITLE: ClassVar[str] = "Common"

    deployment: DeploymentName | None = option(
        None,
        "Where the bundle is to run. Decides which files are written, and the options that are not given: "
        + "; ".join(str(DEPLOYMENTS[name]) for name in get_args(DeploymentName)) + ".",
        "Without one every file is written, and nothing is quantized.", cli=True,
    )  # fmt: skip
    precision: Precision | None = option(
        None, "Data type of the weights.", unset="the deployment's; fp32 without one", cli=True
    )
    calibration: Calibration | None = option(
        None, "Quantize weights by a text like those that the model is for (gptq).",
        "The scales of a quantized cache are chosen by it, too. For a model that reads pictures, a folder of pictures "
        "and texts, or a file of JSON lines.", cli=True, flag="--calibrate", metavar="PATH",
    )  # fmt: skip
    overwrite: bool = option(False, "Replace a bundle that is already there.", cli=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """How a checkpoint is read. `export_module` has none of these."""

    TITLE: ClassVar[str] = "Checkpoint"

    context_length: int | None = option(
        None, "Positions that the graph supports.", unset="all that the model has", at_least=1, cli=True
    )
    merge_adapter: Folder | None = option(
        None, "Merge this LoRA adapter into the weights first; DIR is what PEFT saved.", cli=True, metavar="DIR"
    )
    adapters: Adapters = option(
        {}, "Keep this LoRA adapter apart from a decoder's weights, for requests that name it.",
        "They are inputs of a further graph.", cli=True, flag="--adapter", metavar="NAME=DIR",
    )  # fmt: skip
    backend: Backend | None = option(
        None, "Export this library's own module.",
        unset="edgeformer's; transformers for a type without a family", cli=True,
    )  # fmt: skip
    text_only: bool = option(
        False, "Export the text model of a model that reads pictures by itself.", "Its tower is left out.", cli=True
    )
    mtp: bool = option(
        False, "Export the layer of multi-token prediction that a checkpoint has, too.",
        "It drafts tokens, which the model verifies.", cli=True,
    )  # fmt: skip
    allow_pickle: bool = option(
        False,
        "Read the tensors of a pytorch_model.bin where there are no safetensors; nothing else in it is called.",
        cli=True,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizationOptions:
    """Weights and caches in fewer bits."""

    TITLE: ClassVar[str] = QuantizationOverrides.TITLE

    quantization: Quantization | QuantizationOverrides | None = option(
        None, "How int8 and int4 weights are stored: a whole config, or overrides of the default one.",
        unset="the deployment's, or the default of the precision",
    )  # fmt: skip
    target_size: Size | None = option(
        None, "Choose the format of each matrix so that the weights take at most this size, such as 75MB, and lose the "
        "least on the calibration text.", "The graph and the tokenizer come on top.", cli=True, metavar="SIZE",
    )  # fmt: skip
    bits: float | None = option(
        None, "The same, by the bits per weight of all quantized matrices together, their scales included.", above=0,
        finite=True, cli=True,
    )  # fmt: skip
    sensitivities: Folder | None = option(
        None, "Keep what each matrix was measured to lose for a target size in this file, and read it there.",
        "An export that was interrupted goes on from there, and other sizes of the same model take no measurement.",
        cli=True, metavar="FILE",
    )  # fmt: skip
    smooth: bool = option(
        False, "Move the outliers of activations into weights (SmoothQuant), by the calibration text.", cli=True
    )
    cache_precision: CachePrecision | None = option(
        None,
        "Data type of the key/value cache: fp16, with int4 and int8 weights on a CPU, takes half of the memory of fp32 "
        "and int8 a quarter; fp8 is for CUDA.",
        unset="fp16 for the deployments server and desktop, where it can be; else that of activations", cli=True,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """The ops of the graph, and the kernels that it is made for."""

    TITLE: ClassVar[str] = "Graph"

    provider: ProviderName = option("cpu", "Execution provider whose kernels the graph is lowered for.", cli=True)
    arithmetic: Arithmetic | None = option(
        None, "Data type of activations; bf16 is for CUDA with int4 and int8 weights.",
        unset="that of the weights, or fp32 for the CPU and fp16 for CUDA", cli=True,
    )  # fmt: skip
    ops: OpSet = option(
        "ort", "Op set of the graph: onnxruntime's fused ops, standard ONNX ops, or primitive ops.", cli=True
    )
    cache: CacheChoice | None = option(
        None, "Form of the key/value cache in the op sets standard and portable; ort takes both.", unset="dynamic",
        cli=True,
    )  # fmt: skip
    functions: bool = option(
        False, "In the op set portable: keep edgeformer's ops, as functions of the model.", cli=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """How the states of an encoder become one vector. `export_module` has none of these."""

    TITLE: ClassVar[str] = "Encoders"

    pooling: Pooling | None = option(
        None, "Make a sentence embedding of the states.", unset="as modules.json says", cli=True
    )
    normalize: bool | None = option(
        None, "Scale the sentence embedding to length one, or do not.", unset="as modules.json says", cli=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerificationOptions:
    """How thoroughly the graph is compared with PyTorch before the bundle is put in place."""

    TITLE: ClassVar[str] = "Verification"

    verify: VerifyMode | None = option(
        "quick", "`full` has every length, language and batch, and the end of the context.", "None verifies nothing.",
        cli=True,
        flags=(
            ("--full-verify", "full", "Verify as thoroughly as `edgeformer verify` does."),
            ("--no-verify", None, "Do not compare the graph with PyTorch."),
        ),
    )  # fmt: skip


GROUPS = (
    BundleOptions, CheckpointOptions, QuantizationOptions, GraphOptions, EncoderOptions, VerificationOptions,
)  # fmt: skip

OPTIONS: dict[str, Option] = {each.name: each for group in GROUPS for each in options_of(group)}
"""All options by name, in the order of their groups."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(
    VerificationOptions, EncoderOptions, GraphOptions, QuantizationOptions, CheckpointOptions, BundleOptions
):
    """The options of an export. None leaves a choice to the deployment, and without one to the default.

    Raises ExportError for a value of a wrong type or range.
    """

    def __post_init__(self) -> None:
        check_options(self, ExportError)
        for name in self.adapters:
            if not isinstance(name, str) or re.fullmatch(ADAPTER_NAME, name) is None:
                raise ExportError(
                    f"an adapter is named {name!r}; a name is made of letters, digits, points, dashes and underscores, "
                    "and begins with a letter or a digit."
                )


ExportOptions.__doc__ = f"{ExportOptions.__doc__}\n\n" + "\n".join(
    f"    {name}: {each.help} {each.more}".rstrip() for name, each in OPTIONS.items()
)


class ModuleOptionKeywords(TypedDict, total=False):
    """Keywords of `export_module`: the fields of `ExportOptions` that any module takes."""

    # Written by tools/option_keywords.py but for CheckpointOptions, EncoderOptions:
    deployment: DeploymentName | None
    precision: Precision | None
    calibration: Calibration | None
    overwrite: bool
    quantization: Quantization | QuantizationOverrides | None
    target_size: Size | None
    bits: float | None
    sensitivities: Folder | None
    smooth: bool
    cache_precision: CachePrecision | None
    provider: ProviderName
    arithmetic: Arithmetic | None
    ops: OpSet
    cache: CacheChoice | None
    functions: bool
    verify: VerifyMode | None


class OptionKeywords(ModuleOptionKeywords, total=False):
    """Keywords of `export_model`: all fields of `ExportOptions`."""

    # Written by tools/option_keywords.py of CheckpointOptions, EncoderOptions:
    context_length: int | None
    merge_adapter: Folder | None
    adapters: Adapters
    backend: Backend | None
    text_only: bool
    mtp: bool
    allow_pickle: bool
    pooling: Pooling | None
    normalize: bool | None


def with_changes(options: Any, changes: OptionKeywords | ModuleOptionKeywords) -> ExportOptions:
    """Return the options, by default the default ones, with keyword arguments in place of their fields.

    Raises TypeError for a keyword that is no option, and ExportError for `options` that are none.
    """
    if options is not None and not isinstance(options, ExportOptions):
        raise ExportError(f"options is {shown(options)}; it must be an ExportOptions, or None.")
    for name in changes.keys() - OPTIONS.keys():
        nearest = get_close_matches(name, OPTIONS, 1) or OPTIONS
        raise TypeError(f"an export has no option {name!r}; did you mean {' or '.join(nearest)}?")
    return dataclasses.replace(options or ExportOptions(), **changes)
