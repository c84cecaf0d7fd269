"""`edgeformer.json`, the manifest of a bundle: what the folder holds, what it computes, and how it was made.

The exporter writes it last, so a folder without one is no bundle. Names of files in it are relative and may not leave
the folder.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from edgeformer import schema
from edgeformer.cache_scales import CacheScales
from edgeformer.config import ModelConfig
from edgeformer.contract import CacheForm, CacheGeometry
from edgeformer.errors import BundleError, ConfigError
from edgeformer.quantization import Quantization, Smoothing, WeightFormat

FILE_NAME = "edgeformer.json"
SCHEMA_VERSION = 4

Arithmetic = Literal["fp32", "fp16"]
"""Of activations, and of caches and weights that are not quantized."""
Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]
"""Of weights; with bf16 all arithmetic is float32, and int8 and int4 are a recipe's."""
Prefill = Literal["int8"]
PrefillChoice = Literal["int8", "none"]
CachePrecision = Literal["int8"]
Provider = Literal["cpu", "cuda"]
OpSet = Literal["ort", "standard", "portable"]
Task = Literal["causal-lm", "seq2seq-lm", "encoder"]
DeploymentName = Literal["server", "desktop", "web", "mobile"]
"""Targets that a bundle can be made for."""
Backend = Literal["transformers"]
"""Libraries whose own modules can be exported."""


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


def sha256(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, kw_only=True)
class ScaledOutputs:
    """The first outputs of a product, which it makes times a factor."""

    outputs: int
    factor: float


@dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """How one tensor of the graph was made: parameters joined along its last axis, each transposed or not.

    scaled: what it was multiplied with then. quantized: the matrix made so is stored in this format, by its rows or by
    its columns, and the tensor is one part of it: integers, scales or zero_points.
    """

    parameters: tuple[str, ...]
    transposed: bool
    scaled: ScaledOutputs | None = None
    quantized: WeightFormat | None = None
    part: str | None = None
    columns: bool = False


@dataclass(frozen=True, kw_only=True)
class PrefillGraph:
    """A second graph of a decoder, over weights for which products of many tokens are faster.

    It gives logits of the last token alone, [B, 1, V]; its embedding and head are those of the other graph.
    from_tokens: how many tokens, of all rows together, a run must have to be faster than with the other graph; measured
    where the model was exported.
    """

    graph: str
    from_tokens: int
    quantization: Quantization


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Token ids that generation needs: any of `eos` ends a text; `bos` and `pad` may be absent."""

    eos: tuple[int, ...]
    bos: int | None
    pad: int | None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that a reader of the bundle may rely on.

    ops: what the graphs are written in. provider: whose kernels they were lowered for. cache_form: how they keep
    their caches. functions: whether our ops are functions in them. graph: of an encoder-decoder, that of the
    decoder; encoder_graph: of the encoder, over the same weights; merged_graph: of the decoder once more, over the
    same weights, as other clients want it, where there is one. windowed_graph: the same graph over caches as
    long as each layer's window (`windows`), where there is one. random_weights: the seed, where no checkpoint
    stands behind the bundle. vocab_size, context_length, cache: what clients must know of any decoder; an encoder's
    cache has no layers. model: None where the module is not ours, so that the bundle does not tell what it
    computes. via: which library has the module then; None for a module of the user. quantization: the recipe of a
    quantized bundle. prefill: a view for prompts. cache_scales: what keys and values are cached as int8 by, if they
    are. smoothing: what was done to the weights of all graphs before they were quantized. deployment: the target that
    options and files were chosen for, if there was one. generation: how the makers of an encoder-decoder want it to
    generate, in the words of generation_config.json. files: every other file of the folder. weights: graph initializers
    by name. parity: the summary of the certificate, with the hashes that it speaks of; None where nothing was verified.
    """

    schema_version: int
    task: Task
    name: str
    source: str
    random_weights: int | None
    ops: OpSet
    precision: Precision
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

    def __post_init__(self) -> None:
        for name in (*self.all_graphs, *self.files):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
                raise BundleError(f"{FILE_NAME} names the file {name!r}, which is outside the bundle. Do not trust it.")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a bundle folder. Raises BundleError where there is none that this version can read."""
        path = folder / FILE_NAME
        if not folder.is_dir():
            raise BundleError(
                f"there is no folder {folder}. Make a bundle with: edgeformer export --model MODEL --output {folder}"
            )
        if not path.is_file():
            raise BundleError(f"{folder} is not a bundle: it has no {FILE_NAME}. Make one with: edgeformer export")
        try:
            data = _upgraded(json.loads(path.read_text(encoding="utf-8")))
            version = data["schema_version"]
        except (ValueError, KeyError, TypeError):
            raise BundleError(f"{path} is not a manifest of edgeformer. Export the model again.") from None
        if version != SCHEMA_VERSION:
            raise BundleError(
                f"{path} has schema version {version}, and this edgeformer reads {SCHEMA_VERSION}. "
                "Export the model again, or use the edgeformer that wrote it."
            )
        try:
            manifest = schema.from_json(cls, data)
        except ConfigError as error:
            raise BundleError(f"{path} is damaged: {error} Export the model again.") from None
        for graph in manifest.all_graphs:
            if graph not in manifest.files:
                raise BundleError(f"{path} is damaged: it does not list {graph}. Export the model again.")
        return manifest

    def write(self, folder: Path) -> None:
        """Write the manifest into a folder."""
        text = json.dumps(schema.to_json(self), indent=1, ensure_ascii=False)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @property
    def graphs(self) -> tuple[str, ...]:
        """The graphs of the bundle, in the order in which they run; of two views of a decoder our runtime opens the
        last.
        """
        return tuple(name for name in (self.encoder_graph, self.graph, self.windowed_graph) if name is not None)

    @property
    def all_graphs(self) -> tuple[str, ...]:
        """Those, the decoder for other clients, and the view for prompts."""
        more = (self.merged_graph, None if self.prefill is None else self.prefill.graph)
        return (*self.graphs, *(name for name in more if name is not None))

    @property
    def arithmetic(self) -> Arithmetic:
        """The precision of activations, of caches that are not quantized, and of weights that are not quantized."""
        return arithmetic_of(self.precision, self.provider)

    @property
    def written_in(self) -> str:
        """The op set of the graphs, in words."""
        if self.ops == "ort":
            return f"op set ort for {self.provider.upper()}"
        cache = f" with a {self.cache_form} cache" if self.cache.num_layers else ""
        return f"op set {self.ops}{cache}{', our ops as functions of it' if self.functions else ''}"

    def graph_hashes(self) -> dict[str, str]:
        """SHA-256 of the graph and its weights, by file name: what a certificate speaks of."""
        folder = PurePosixPath(self.graph).parent
        return {name: entry.sha256 for name, entry in self.files.items() if PurePosixPath(name).parent == folder}

    def certifies(self, folder: Path) -> bool:
        """Whether the graph in `folder` is still the one that was verified on export; weights are not read."""
        if self.parity is None:
            return False
        unchanged = all(sha256(folder / graph) == self.files[graph].sha256 for graph in self.all_graphs)
        return unchanged and self.parity["hashes"] == self.graph_hashes()

    def check_sizes(self, folder: Path) -> None:
        """Raise BundleError naming every file that is missing or not of its size. Reads no file."""
        problems = []
        for name, entry in self.files.items():
            path = folder / name
            size = path.stat().st_size if path.is_file() else None
            if size is None:
                problems.append(f"{name} is missing")
            elif size != entry.bytes:
                problems.append(f"{name} has {size:,} bytes instead of {entry.bytes:,}")
        if problems:
            raise BundleError(f"the bundle {folder} is damaged: {'; '.join(problems)}. Copy or export it again.")


def arithmetic_of(precision: Precision, provider: Provider) -> Arithmetic:
    """Return the precision that a graph computes in: where only its weights are stored in fewer bits, the fastest that
    the provider has.
    """
    if precision in ("fp32", "fp16"):
        return precision
    return "fp16" if provider == "cuda" else "fp32"


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of schema version 3 in the words of version 4, which renamed a field and a value; nothing else
    changed. Every other version is returned as it is.
    """
    if data["schema_version"] != 3:
        return data
    upgraded = {"backend" if name == "via" else name: value for name, value in data.items()}
    if upgraded.get("cache_form") == "growing":
        upgraded["cache_form"] = "dynamic"
    return upgraded | {"schema_version": SCHEMA_VERSION}
