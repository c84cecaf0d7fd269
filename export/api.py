"""The functions that export: they read options, open a model, and hand both to the pipeline.

Importing this module imports no torch, so that options and configs that cannot be exported are refused at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required, Unpack

from edgeformer.checkpoints.found_model import FoundModel, find_model
from edgeformer.checkpoints.source import ModelSource, lacks_family, open_source
from edgeformer.errors import ConfigError, ExportError, MissingDependencyError, require, shown
from edgeformer.export.plan import make_plan
from edgeformer.export.progress import Progress, no_progress
from edgeformer.export.worker_process import WorkerProcess, sharing_cores
from edgeformer.manifest.accounting import account
from edgeformer.options.export import ExportOptions, ModuleOptionKeywords, OptionKeywords, with_changes

if TYPE_CHECKING:
    from torch import nn

    from edgeformer.export.pipeline import Compared, ExportResult

LARGEST_APART = 2**29
"""Parameters of a model that is compared in a process of its own. That takes 0.9 GB for 135M parameters in safetensors,
and 1.4 GB in a GGUF file, which transformers dequantizes at once; larger models would need it beside this process."""


def export_model(
    model: str | Path,
    output: str | Path | None = None,
    options: ExportOptions | None = None,
    *,
    progress: Progress = no_progress,
    **changes: Unpack[OptionKeywords],
) -> "ExportResult":
    """Export a model to a bundle folder, and verify it.

    model: a preset, a folder with config.json and safetensors, a GGUF file, or a hub id. output: by default ./ and the
    model's name.
    options, changes: what is asked for; `export_model(m, o, precision="int4")` is short for
    `export_model(m, o, ExportOptions(precision="int4"))`.

    A model_type without a family is exported with the backend `transformers`, where that is installed; the manifest's
    `backend` says so.

    Raises ParityError, and leaves nothing behind, where the graph does not compute what PyTorch computes, and another
    EdgeformerError for anything else that the user can mend.
    """
    return _export(model, output, with_changes(options, changes), progress, apart=False)


def export_comparing_apart(
    model: str | Path, output: str | Path | None, options: ExportOptions, progress: Progress
) -> "ExportResult":
    """Do the same as `export_model`, and compare with transformers in a process of its own where that saves time.

    This is for a program of ours: sys.executable must be the Python that runs it.
    """
    return _export(model, output, options, progress, apart=True)


def _export(
    model: str | Path, output: str | Path | None, options: ExportOptions, progress: Progress, *, apart: bool
) -> "ExportResult":
    if not isinstance(model, str | Path):
        raise ExportError(
            f"model is {shown(model)}; it must be a preset, the path of a folder or a GGUF file, or a hub id."
        )
    if not isinstance(output, str | Path | None):
        raise ExportError(f"output is {shown(output)}; it must be the path of a folder, as a text or a Path.")
    found = find_model(model, options.allow_pickle)
    if options.backend is not None:
        return _export_with_transformers(found, options, output, progress)
    if lacks_family(found):
        with _no_family(found):
            return _export_with_transformers(found, replace(options, backend="transformers"), output, progress)
    base = _open_base(found, options)
    plan = make_plan(options, base.config)
    with _start_comparison(model, base, options) if apart else nullcontext() as comparing:
        require_packages()
        from edgeformer.export.importers.checkpoint import open_checkpoint
        from edgeformer.export.pipeline import run_export

        source = _with_merged(base, options)
        compared = None if options.verify is None or comparing is not None else base
        opened = open_checkpoint(source, progress, compared=compared, adapters=options.adapters)
        return run_export(opened, plan, options, _destination(source, output), progress, comparing)


def _open_base(found: FoundModel, options: ExportOptions) -> ModelSource:
    return open_source(
        found, options.context_length, options.pooling, options.normalize, text_only=options.text_only, mtp=options.mtp
    )


def _with_merged(base: ModelSource, options: ExportOptions) -> ModelSource:
    if options.merge_adapter is None:
        return base
    from edgeformer.checkpoints.merged_source import merge_adapter

    return merge_adapter(base, options.merge_adapter)


def _start_comparison(
    model: str | Path, base: ModelSource, options: ExportOptions
) -> "AbstractContextManager[WorkerProcess[Compared] | None]":
    """Start the comparison with transformers in a process of its own, where there is one to make and cores to make it.

    It opens the model by itself, before this process imports torch; what is on the hub is downloaded first.
    """
    from edgeformer.runtime.sessions.session import usable_cores

    if (
        options.verify is None
        or base.random_weights is not None
        or find_spec("transformers") is None
        or usable_cores() == 1
        or account(base.config).parameters > LARGEST_APART
    ):
        return nullcontext()
    base.fetch_weights()
    downloaded = {} if Path(model).expanduser().exists() else {"HF_HUB_OFFLINE": "1"}
    return WorkerProcess("the comparison with transformers", _compare, model, options, environment=downloaded)


def _compare(model: str | Path, options: ExportOptions) -> "Compared":
    """Return the comparison of a checkpoint with transformers, and all warnings about its files."""
    require_packages()
    from edgeformer.export.importers.checkpoint import open_checkpoint

    base = _open_base(find_model(model, options.allow_pickle), options)
    with sharing_cores():
        opened = open_checkpoint(_with_merged(base, options), compared=base)
    return opened.comparison, opened.warnings


def _export_with_transformers(
    found: FoundModel, options: ExportOptions, output: str | Path | None, progress: Progress
) -> "ExportResult":
    """Export the module that transformers has for a checkpoint."""
    if options.merge_adapter is not None or options.adapters:
        raise ExportError(
            f"adapters are for models that edgeformer has a family of, and {found.origin} is exported via "
            "transformers. Merge it with PEFT (merge_and_unload), save the model, and export that folder."
        )
    plan = make_plan(options, None)
    require_packages()
    from edgeformer.export.importers.from_transformers import open_with_transformers
    from edgeformer.export.pipeline import run_export

    opened = open_with_transformers(found, options.context_length, progress)
    return run_export(opened, plan, options, _destination(found, output), progress)


@contextmanager
def _no_family(found: FoundModel) -> Iterator[None]:
    """Say in errors of configs and packages that transformers was tried because edgeformer has no family."""
    try:
        yield
    except (ConfigError, ExportError, MissingDependencyError) as error:
        raise type(error)(
            f"edgeformer has no family of model_type {found.hf_config['model_type']!r} (edgeformer models lists them), "
            f"so that its module of transformers is the only way. {error}"
        ) from error


class ModuleKeywords(ModuleOptionKeywords, total=False):
    """The keyword arguments of `export_module`: what describes the module (`ModuleDescription`), and options."""

    vocab_size: Required[int]
    context_length: Required[int]
    num_layers: Required[int]
    num_kv_heads: Required[int]
    head_dim: Required[int]
    name: str | None
    tokenizer_folder: str | Path | None
    eos: int | Sequence[int]
    bos: int | None
    pad: int | None


def export_module(
    module: "nn.Module",
    output: str | Path,
    options: ExportOptions | None = None,
    *,
    progress: Progress = no_progress,
    **keywords: Unpack[ModuleKeywords],
) -> "ExportResult":
    """Export a module of your own to a bundle folder, and verify it.

    module: forward(input_ids int64 [B, S], attention_mask int64 [B, T], caches: a list of one (key, value) for each
    layer, [B, K, P, D]) → (logits [B, S, V], such a list with [B, K, T, D]), its attention computed by
    `edgeformer.ops.group_query_attention`. Its weights may be of any float type; it is not changed. keywords:
    vocab_size, context_length, num_layers, num_kv_heads and head_dim, which no module says about itself; the other
    fields of `ModuleDescription` (name, tokenizer_folder, eos, bos, pad); and fields of `ExportOptions`.

    Raises ExportError, before anything is written, where the module does not keep the contract, and ParityError where
    its graph computes something else.
    """
    require_packages()
    from edgeformer.export.bundle.staging import check_destination
    from edgeformer.export.graph.tensors import TORCH_PRECISIONS
    from edgeformer.export.importers.own_module import ModuleDescription, open_module
    from edgeformer.export.pipeline import run_export

    described = {field.name for field in fields(ModuleDescription)}
    description = ModuleDescription(**{name: value for name, value in keywords.items() if name in described})  # type: ignore[arg-type]
    changes: Any = {name: value for name, value in keywords.items() if name not in described}
    options = with_changes(options, changes)
    plan = make_plan(options, None)
    destination = Path(output)
    check_destination(destination, options.overwrite)
    progress("running the module", 0)
    opened = open_module(
        module,
        description,
        description.origin(module, destination.resolve().name),
        TORCH_PRECISIONS[plan.arithmetic],
        in_float64=options.verify is not None,
    )
    return run_export(opened, plan, options, destination, progress)


def require_packages() -> None:
    """Raise MissingDependencyError unless every package that an export needs is installed."""
    for package in ("torch", "onnx", "onnx_ir", "onnxscript", "safetensors"):
        require(package, "export")


def _destination(source: FoundModel, output: str | Path | None) -> Path:
    if output is not None:
        return Path(output)
    destination = Path(source.name)
    # A checkpoint in the current folder keeps its name to itself.
    folder = source.folder if source.gguf is None else source.gguf.file.paths[0].parent
    return Path(f"{source.name}-onnx") if destination.resolve() == folder.resolve() else destination
