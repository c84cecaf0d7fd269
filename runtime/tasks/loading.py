"""Open a bundle: `load` for any task, and one loader for each task, whose result a type checker knows."""

import warnings
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from edgeformer.config import Task
from edgeformer.errors import BundleError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import ProviderChoice
from edgeformer.runtime import request_values
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions
from edgeformer.runtime.sessions.session import SessionSettings
from edgeformer.runtime.tasks.causal_lm import MTP, CausalLM
from edgeformer.runtime.tasks.encoders.encoder import Encoder
from edgeformer.runtime.tasks.model import Model
from edgeformer.runtime.tasks.seq2seq import Seq2SeqLM
from edgeformer.runtime.tasks.sound_text import SoundTextLM
from edgeformer.runtime.tasks.vision.dual_encoder import DualEncoder
from edgeformer.runtime.tasks.vision.picture_encoder import PictureEncoder
from edgeformer.runtime.tasks.vision.picture_text import PictureTextLM
from edgeformer.runtime.tasks.vision.vision_encoder import VisionEncoder

M = TypeVar("M", bound=Model)


class Kind(NamedTuple):
    """The class of the models of a task, and the name of the loader that says so to a type checker."""

    model: (
        type[CausalLM]
        | type[Seq2SeqLM]
        | type[Encoder]
        | type[VisionEncoder]
        | type[DualEncoder]
        | type[PictureEncoder]
        | type[PictureTextLM]
        | type[SoundTextLM]
    )
    loader: str


KINDS: dict[Task, Kind] = {
    "causal-lm": Kind(CausalLM, "load_causal_lm"),
    "seq2seq-lm": Kind(Seq2SeqLM, "load_seq2seq"),
    "encoder": Kind(Encoder, "load_encoder"),
    "vision-encoder": Kind(VisionEncoder, "load_vision_encoder"),
    "dual-encoder": Kind(DualEncoder, "load_dual_encoder"),
    "image-text-encoder": Kind(PictureEncoder, "load_picture_encoder"),
    "image-text-to-text": Kind(PictureTextLM, "load_picture_text"),
    "audio-text-to-text": Kind(SoundTextLM, "load_sound_text"),
}
"""The classes and loaders of the bundles of every task."""


def load(
    path: str | Path,
    provider: ProviderChoice | str = "auto",
    threads: int | None = None,
    *,
    kernels: bool = True,
    provider_options: ProviderOptions | None = None,
    draft: str | Path | None = None,
    cache_precision: Literal["int8"] | None = None,
) -> CausalLM | Seq2SeqLM | Encoder | VisionEncoder | DualEncoder:
    """Open the bundle in a folder; its task decides about the class.

    Args:
        provider: `auto` takes CUDA where onnxruntime has it, the bundle runs on it and there is a GPU; else WebGPU
            where its plugin is installed, the bundle was exported for it and there is a GPU; else the CPU. It warns
            where it leaves a GPU, or finds none for a CUDA build.
            onnxruntime's name of another provider (`OpenVINOExecutionProvider`), of its build or a registered plugin,
            runs bundles for the CPU there, and warns that nothing was proven.
        threads: None for all usable cores.
        kernels: run edgeformer's own kernels on the CPU, where the package edgeformer-kernels is installed.
        provider_options: a CudaOptions or a WebGpuOptions, which has no effect on another provider; None for their
            defaults.
        draft: bundle of a smaller decoder-only model with the same tokenizer, which drafts tokens for a decoder-only
            model; `mtp` for the model's own layer of multi-token prediction, where it was exported.
        cache_precision: `int8` for a decoder whose keys and values edgeformer's kernels keep in int8, whatever the
            bundle was exported with, each with its own scale; None for the cache of the bundle.

    Raises BundleError for a damaged folder (sizes are checked; `edgeformer verify` checks contents) and RequestError
    for a provider that is not available, for a draft model that does not fit, and for a cache that no kernel keeps.
    """
    manifest, folder = _open(path, None), request_values.path("path", path)
    kind = KINDS[manifest.task].model
    settings = SessionSettings(provider, threads, kernels, provider_options, cache_precision)
    if draft is not None and not issubclass(kind, CausalLM):
        raise RequestError(f"a draft model is for a decoder-only model; {folder} holds one for {manifest.task}.")
    model = kind(folder, manifest, settings)
    if draft is not None and isinstance(model, CausalLM):
        by_mtp = isinstance(draft, str) and draft == MTP
        model.use_draft(MTP if by_mtp else _load_draft(draft, settings))
    return model


def load_causal_lm(
    path: str | Path,
    provider: ProviderChoice | str = "auto",
    threads: int | None = None,
    *,
    kernels: bool = True,
    provider_options: ProviderOptions | None = None,
    draft: str | Path | None = None,
    cache_precision: Literal["int8"] | None = None,
) -> CausalLM:
    """Open the bundle of a decoder-only model, as `load` does. Raises BundleError for a bundle of another task."""
    settings = SessionSettings(provider, threads, kernels, provider_options, cache_precision)
    model = _load(path, "causal-lm", CausalLM, settings)
    if draft is not None:
        by_mtp = isinstance(draft, str) and draft == MTP
        model.use_draft(MTP if by_mtp else _load_draft(draft, settings))
    return model


def load_picture_text(
    path: str | Path,
    provider: ProviderChoice | str = "auto",
    threads: int | None = None,
    *,
    kernels: bool = True,
    provider_options: ProviderOptions | None = None,
    cache_precision: Literal["int8"] | None = None,
) -> PictureTextLM:
    """Open the bundle of a model that reads pictures and text, as `load` does. Raises BundleError for another task."""
    settings = SessionSettings(provider, threads, kernels, provider_options, cache_precision)
    return _load(path, "image-text-to-text", PictureTextLM, settings)


def load_sound_text(
    path: str | Path,
    provider: ProviderChoice = "auto",
    threads: int | None = None,
    *,
    kernels: bool = True,
    provider_options: ProviderOptions | None = None,
    cache_precision: Literal["int8"] | None = None,
) -> SoundTextLM:
    """Open the bundle of a model that reads sound and text, as `load` does. Raises BundleError for another task."""
    settings = SessionSettings(provider, threads, kernels, provider_options, cache_precision)
    return _load(path, "audio-text-to-text", SoundTextLM, settings)


def load_seq2seq(
    path: str | Path,
    provider: ProviderChoice | str = "auto",
    threads: int | None = None,
    *,
    kernels: bool = True,
    provider_options: ProviderOptions | None = None,
) -> Seq2SeqLM:
    """Open the bundle of an encoder-decoder, as `load` does. Raises BundleError for a bundle of another task."""
    return _load(path, "seq2seq-lm", Seq2SeqLM, SessionSettings(provider, threads, kernels, provider_options))


def load_encoder(
    path: str | Path,
    provider: ProviderChoice | str = "auto",
    threads: int | None = None,
    *,
    kernels: bool = True,
    provider_options: ProviderOptions | None = None,
) -> Encoder:
    """Open the bundle of an encoder, as `load` does. Raises BundleError for a bundle of another task."""
    return _load(path, "encoder", Encoder, SessionSettings(provider, threads, kernels, provider_options))


def load_picture_encoder(
    path: str | Path,
    provider: ProviderChoice | str = "auto",
    threads: int | None = None,
    *,
    kernels: bool = True,
    provider_options: ProviderOptions | None = None,
) -> PictureEncoder:
    """Open the bundle of an encoder of pictures and texts, as `load` does. Raises BundleError for another task."""
    return _load(
        path, "image-text-encoder", PictureEncoder, SessionSettings(provider, threads, kernels, provider_options)
    )


def load_vision_encoder(
    path: str | Path,
    provider: ProviderChoice | str = "auto",
    threads: int | None = None,
    *,
    kernels: bool = True,
    provider_options: ProviderOptions | None = None,
) -> VisionEncoder:
    """Open the bundle of a tower of pictures, as `load` does. Raises BundleError for a bundle of another task."""
    return _load(path, "vision-encoder", VisionEncoder, SessionSettings(provider, threads, kernels, provider_options))


def load_dual_encoder(
    path: str | Path,
    provider: ProviderChoice | str = "auto",
    threads: int | None = None,
    *,
    kernels: bool = True,
    provider_options: ProviderOptions | None = None,
) -> DualEncoder:
    """Open the bundle of a dual encoder, as `load` does. Raises BundleError for a bundle of another task."""
    return _load(path, "dual-encoder", DualEncoder, SessionSettings(provider, threads, kernels, provider_options))


def _load_draft(draft: str | Path, settings: SessionSettings) -> CausalLM:
    """Open a model that drafts tokens; it keeps the cache that it was exported with."""
    return _load(draft, "causal-lm", CausalLM, settings._replace(cache_precision=None), "draft")


def _load(path: str | Path, task: Task, model: type[M], settings: SessionSettings, name: str = "path") -> M:
    """Open a bundle of one task. name: the argument of the call that its path is, for errors."""
    return model(request_values.path(name, path), _open(path, task, name), settings)


def _open(path: str | Path, task: Task | None, name: str = "path") -> Manifest:
    """Read and check the manifest of a bundle, and the sizes of its files; task: None for any."""
    folder = request_values.path(name, path)
    manifest = Manifest.read(folder)
    if task is not None and manifest.task != task:
        raise BundleError(
            f"{folder} holds a model for the task {manifest.task}, not {task}; open it with "
            f"{KINDS[manifest.task].loader}, or with load."
        )
    manifest.check_sizes(folder)
    if manifest.parity is not None and not manifest.certifies(folder):
        warnings.warn(
            f"the graph in {folder} is not the one that its parity certificate is about; it was changed after the "
            "export. Check it with: edgeformer verify",
            stacklevel=3,
        )
    return manifest
