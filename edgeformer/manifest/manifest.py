"""`edgeformer.json`, the manifest of a bundle: its files, its model, and the options of its export.

The exporter writes it last, so that a folder without one is no bundle. File names in it are relative to the folder and
may not point outside. `parts.py` has what its fields are made of.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from edgeformer.config import ModelConfig, Task
from edgeformer.contract.tensors import CacheForm, CacheGeometry
from edgeformer.documents import schema
from edgeformer.documents.json_document import is_contained, is_inside, read_object
from edgeformer.errors import BundleError, ConfigError, shown
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.parts import (
    AdapterGraph,
    AdapterOrigin,
    AlignmentGraph,
    Arithmetic,
    Backend,
    BundledAdapter,
    DeploymentName,
    FileEntry,
    OpSet,
    Precision,
    PrefillGraph,
    Provider,
    SpecialTokens,
    StoredWeight,
    TextModelOf,
    TextPrompts,
    default_arithmetic,
    sha256,
)
from edgeformer.manifest.quantization import Quantization, Smoothing

FILE_NAME = "edgeformer.json"
SCHEMA_VERSION = 6
"""Version of the fields that are written; manifests of versions 3 to 5 are still read."""

MODELS: dict[Task, type[Any]] = {kind.task: kind for kind in get_args(ModelConfig)}
"""The config of each task's model."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of `edgeformer.json`.

    Attributes:
        schema_version: `SCHEMA_VERSION`.
        task: what the model does; it selects the class of the runtime.
        name: name of the model, from its folder, hub id or preset.
        source: origin of the model, for people.
        random_weights: seed of a model without trained weights; None with a checkpoint.
        ops: op set of the graphs.
        precision: data type of the weights.
        arithmetic: data type of activations, and of caches and weights that are not quantized.
        provider: execution provider that the graphs were lowered for.
        graph: path of the graph, of an encoder-decoder that of the decoder.
        vocab_size, context_length, cache: sizes that clients need; the cache of an encoder has no layers.
        model: the model config; None for a module that is not edgeformer's.
        tokens: special tokens of generation.
        files: size and hash of every other file in the folder, by path.
        weights: how each initializer of the graphs was made, by name.
        versions: versions of the packages that the export used.
        parity: summary of the certificate, with the hashes that it covers; None if the export was not verified.
        cache_form: how the graphs keep their caches.
        functions: whether edgeformer's ops are functions in the graphs.
        backend: library that has the module of an export without model config; None for a module of the user.
        encoder_graph: of an encoder-decoder, path of the encoder, over the same weights.
        merged_graph: path of the merged decoder for other clients, over the same weights, if there is one.
        quantization: the quantization config of a quantized bundle.
        generation: defaults of generation of an encoder-decoder, with the keys of generation_config.json.
        prefill: the prefill graph, if there is one.
        windowed_graph: path of the same graph with caches as long as each layer's window, if there is one.
        windows: per layer, the length of that cache; None for the whole context.
        cache_scales: scales of keys and values that are cached as int8 or fp8.
        smoothing: how the weights of all graphs were smoothed before they were quantized.
        deployment: the deployment that options and files were chosen for, if there was one.
        text_model_of: the bigger model that this is the text model of, if it is one.
        merged_adapter: the LoRA adapter that was merged into the weights, if there was one.
        adapter_graph: the graph that takes adapters as inputs, if there is one.
        adapters: the LoRA adapters of that graph.
        prompts: of a sentence encoder, what it was trained to find before texts.
        alignment: the alignment graph of a speech model, if there is one.
        pickled_weights: SHA-256 of each pickle that the weights were read from, by name; empty for safetensors.
    """

    schema_version: int
    task: Task
    name: str
    source: str
    random_weights: int | None
    ops: OpSet
    precision: Precision
    arithmetic: Arithmetic
    provider: Provider
    graph: str
    vocab_size: int
    context_length: int
    cache: CacheGeometry
    model: ModelConfig | None
    tokens: SpecialTokens
    files: dict[str, FileEntry]
    weights: dict[str, StoredWeight]
    versions: dict[str, str]
    parity: dict[str, Any] | None
    cache_form: CacheForm = "any"
    functions: bool = False
    backend: Backend | None = None
    encoder_graph: str | None = None
    merged_graph: str | None = None
    quantization: Quantization | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    prefill: PrefillGraph | None = None
    windowed_graph: str | None = None
    windows: tuple[int | None, ...] = ()
    cache_scales: CacheScales | None = None
    smoothing: Smoothing | None = None
    deployment: DeploymentName | None = None
    text_model_of: TextModelOf | None = None
    merged_adapter: AdapterOrigin | None = None
    adapter_graph: AdapterGraph | None = None
    adapters: tuple[BundledAdapter, ...] = ()
    prompts: TextPrompts | None = None
    pickled_weights: dict[str, str] = field(default_factory=dict)
    alignment: AlignmentGraph | None = None

    def __post_init__(self) -> None:
        for name in (*self.all_graphs, *self.files, *(adapter.file for adapter in self.adapters)):
            if not is_inside(name):
                raise BundleError(
                    f"{FILE_NAME} names the file {shown(name)}, which is outside the bundle. Do not trust it."
                )
        # A module that is not edgeformer's is a decoder; the runtime reads the config of the other kinds.
        if not isinstance(self.model, MODELS[self.task]) and (self.model is not None or self.task != "causal-lm"):
            has = "there is no model" if self.model is None else "the model is one of another task"
            raise ConfigError(f"the task is {self.task}, and {has}.")
        # An encoder of recordings has no vocabulary.
        for name, least in (("vocab_size", 0 if self.task == "encoder" else 1), ("context_length", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be {least} or larger.")

    @classmethod
    def read(cls, folder: str | Path) -> "Manifest":
        """Return the manifest of a bundle folder. Raises BundleError if there is none that this version can read."""
        if not isinstance(folder, str | os.PathLike):
            raise BundleError(f"folder is {shown(folder)}; it must be the path of a bundle, as a text or a Path.")
        folder = Path(folder)
        path = folder / FILE_NAME
        if not os.path.isdir(folder):
            raise BundleError(
                f"there is no folder {folder}. Make a bundle with: edgeformer export --model MODEL --output {folder}"
            )
        if not os.path.isfile(path):
            raise BundleError(f"{folder} is not a bundle: it has no {FILE_NAME}. Make one with: edgeformer export")
        data = read_object(path, BundleError)
        try:
            data = _upgraded(data)
            version = data["schema_version"]
        except (ValueError, KeyError, TypeError):
            raise BundleError(f"{path} is not a manifest of edgeformer. Export the model again.") from None
        if version != SCHEMA_VERSION:
            raise BundleError(
                f"{path} has schema version {shown(version)}, and this edgeformer reads {SCHEMA_VERSION}. "
                "Export the model again, or use the edgeformer that wrote it."
            )
        try:
            manifest = schema.from_json(cls, data)
        except ConfigError as error:
            raise BundleError(f"{path} is damaged: {error} Export the model again.") from None
        for graph in (*manifest.all_graphs, *(adapter.file for adapter in manifest.adapters)):
            if graph not in manifest.files:
                raise BundleError(f"{path} is damaged: it does not list {shown(graph)}. Export the model again.")
        return manifest

    def write(self, folder: Path) -> None:
        """Write `edgeformer.json` into a folder."""
        text = json.dumps(schema.to_json(self), indent=1, ensure_ascii=False)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @property
    def graphs(self) -> tuple[str, ...]:
        """Return the graphs that edgeformer's runtime uses, in the order in which they run.

        Of a decode graph and its windowed graph, which compute the same, the runtime opens the last.
        """
        return tuple(name for name in (self.encoder_graph, self.graph, self.windowed_graph) if name is not None)

    @property
    def all_graphs(self) -> tuple[str, ...]:
        """Return `graphs`, the merged decoder for other clients, and the graphs for prefill, adapters and alignment."""
        parts = (self.prefill, self.adapter_graph, self.alignment)
        more = (self.merged_graph, *(None if part is None else part.graph for part in parts))
        return (*self.graphs, *(name for name in more if name is not None))

    @property
    def written_in(self) -> str:
        """Return a description of the op set of the graphs."""
        if self.ops == "ort":
            return f"op set ort for {self.provider.upper()}"
        cache = f" with a {self.cache_form} cache" if self.cache.num_layers else ""
        return f"op set {self.ops}{cache}{', with edgeformer ops as functions' if self.functions else ''}"

    def graph_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of all graphs, weights and adapters by file name; a certificate covers these."""
        folder, adapters = PurePosixPath(self.graph).parent, {adapter.file for adapter in self.adapters}
        return {
            name: entry.sha256
            for name, entry in self.files.items()
            if PurePosixPath(name).parent == folder or name in adapters
        }

    def certifies(self, folder: Path) -> bool:
        """Return whether the graphs in `folder` are still those that the export verified; weights are not read."""
        if self.parity is None:
            return False
        unchanged = all(sha256(folder / graph) == self.files[graph].sha256 for graph in self.all_graphs)
        return unchanged and self.parity["hashes"] == self.graph_hashes()

    def check_sizes(self, folder: Path) -> None:
        """Raise BundleError that names every file that is missing or has another size. Reads no file."""
        problems = []
        for name, entry in self.files.items():
            path = folder / name
            size = path.stat().st_size if os.path.isfile(path) else None
            if size is None:
                problems.append(f"{name} is missing")
            elif not is_contained(path, folder):
                problems.append(f"{name} is a link to a file outside the folder")
            elif size != entry.bytes:
                problems.append(f"{name} has {size:,} bytes instead of {entry.bytes:,}")
        if problems:
            raise BundleError(f"the bundle {folder} is damaged: {'; '.join(problems)}. Copy or export it again.")


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of schema versions 3 to 5 as one of version 6; every other version is returned as it is.

    Version 4 renamed the field `via` to `backend` and the cache form `growing` to `dynamic`. In version 5 the cache is
    a list of what each layer keeps, and no longer one number of heads and one head_dim. In version 6 the arithmetic is
    a choice, and no longer what follows from precision and provider.
    """
    if data["schema_version"] == 3:
        data = {"backend" if name == "via" else name: value for name, value in data.items()} | {"schema_version": 4}
        if data.get("cache_form") == "growing":
            data["cache_form"] = "dynamic"
    if data["schema_version"] == 4:
        cache = CacheGeometry.of_attention(**data["cache"])
        data = data | {"cache": cache.to_json(), "schema_version": 5}
    if data["schema_version"] == 5:
        arithmetic = default_arithmetic(data["precision"], data["provider"])
        data = data | {"arithmetic": arithmetic, "schema_version": SCHEMA_VERSION}
    return data
