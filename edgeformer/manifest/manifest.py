"""`edgeformer.json`, the manifest of a bundle: its files, its model, and the options of its export.

The exporter writes it last, so that a folder without one is no bundle. File names in it are relative to the folder and
may not point outside. `parts.py` has what its fields are made of.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, get_args

from edgeformer.config import Form, ModelConfig, Task
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.documents import schema
from edgeformer.documents.json_document import is_contained, is_inside, read_object
from edgeformer.errors import BundleError, ConfigError, shown
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.graph_forms import (
    EDGEFORMER,
    FORMS,
    AdapterGraph,
    AlignmentGraph,
    BundledGraph,
    BundledGraphs,
    WindowedGraph,
)
from edgeformer.manifest.parts import (
    BundledAdapter,
    FileEntry,
    Provenance,
    Similarity,
    SpecialTokens,
    StoredWeight,
    TextPrompts,
    sha256,
)
from edgeformer.manifest.pictures.processor import WHOLE_PICTURES, PictureProcessor
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.manifest.plan import ExportPlan
from edgeformer.manifest.quantization import Smoothing

FILE_NAME = "edgeformer.json"
SCHEMA_VERSION = 7
"""Version of the fields, the only one that is read."""

MODELS: dict[Task, type[Any]] = {kind.task: kind for kind in get_args(ModelConfig)}
"""A config of each task's models, all of which have the same form and read the same."""

TOWER_TASKS = ("image-text-encoder", "image-text-to-text", "audio-text-to-text")
"""The tasks of models with a tower whose states stand between the tokens of a text."""

G = TypeVar("G", bound=BundledGraph)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of `edgeformer.json`.

    Attributes:
        schema_version: `SCHEMA_VERSION`.
        task: what the model does; it selects the class of the runtime.
        name: name of the model, from its folder, hub id or preset.
        provenance: where the model comes from.
        plan: the choices of its export; the quantization config names the text of its calibration.
        graphs: the graphs by the names of their forms (`edgeformer.manifest.graph_forms.FORMS`).
        vocab_size, context_length, cache: sizes that clients need; the cache of an encoder has no layers.
        model: the model config; None for a module that is not edgeformer's.
        tokens: special tokens of generation.
        generation: defaults of generation of an encoder-decoder, with the keys of generation_config.json.
        prompts: of a sentence encoder, what it was trained to find before texts.
        pictures: what is done to a picture before a graph reads it; None for models that read none.
        placeholder: what stands for a picture or a recording in a prompt; None for models that read none in texts.
        similarity: how a dual encoder compares texts and pictures; None for other models.
        adapters: the LoRA adapters of the adapter graph.
        cache_scales: scales of keys and values that are cached as int8 or fp8.
        smoothing: how the weights of all graphs were smoothed before they were quantized.
        files: size and hash of every other file in the folder, by path.
        weights: how each initializer of the graphs was made, by name.
        versions: versions of the packages that the export used.
        parity: summary of the certificate, with the hashes that it covers; None if the export was not verified.
    """

    schema_version: int = SCHEMA_VERSION
    task: Task
    name: str
    provenance: Provenance
    plan: ExportPlan
    graphs: BundledGraphs
    vocab_size: int
    context_length: int
    cache: CacheGeometry
    model: ModelConfig | None
    tokens: SpecialTokens
    generation: dict[str, Any] = field(default_factory=dict)
    prompts: TextPrompts | None = None
    pictures: PictureProcessor | None = None
    placeholder: Placeholder | None = None
    similarity: Similarity | None = None
    adapters: tuple[BundledAdapter, ...] = ()
    cache_scales: CacheScales | None = None
    smoothing: Smoothing | None = None
    files: dict[str, FileEntry]
    weights: dict[str, StoredWeight]
    versions: dict[str, str]
    parity: dict[str, Any] | None

    def __post_init__(self) -> None:
        for name in (*self.graph_files, *self.files, *(adapter.file for adapter in self.adapters)):
            if not is_inside(name):
                raise BundleError(
                    f"{FILE_NAME} names the file {shown(name)}, which is outside the bundle. Do not trust it."
                )
        # A module that is not edgeformer's is a decoder; the runtime reads the config of the other kinds.
        if self.task != ("causal-lm" if self.model is None else self.model.task):
            has = "there is no model" if self.model is None else "the model is one of another task"
            raise ConfigError(f"the task is {self.task}, and {has}.")
        if self.model is not None and self.model.sees_pictures and self.pictures is None:
            raise ConfigError(f"the task is {self.task}, and there is no processor of pictures.")
        if self.task in ("vision-encoder", "dual-encoder") and self.model is not None and self.pictures is not None:
            tower, processor = self.model.input_stack.kind, self.pictures.kind
            if WHOLE_PICTURES[tower] != processor:
                raise ConfigError(f"the task is {self.task}, and its tower ({tower}) has a processor of {processor}.")
        if (self.task in TOWER_TASKS) != (self.placeholder is not None):
            raise ConfigError(f"the task is {self.task}, and placeholder is {shown(self.placeholder)}.")
        if ("mtp" in self.graphs) != (getattr(self.model, "mtp", None) is not None):
            raise ConfigError("there is a graph of drafts or a layer of the model for it (mtp), and not both.")
        if self.task == "dual-encoder" and self.similarity is None:
            raise ConfigError(f"the task is {self.task}, and there is no similarity.")
        # An encoder of recordings or pictures has no vocabulary.
        least_tokens = 0 if MODELS[self.task].form == "encoder" else 1
        for name, least in (("vocab_size", least_tokens), ("context_length", 1)):
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
        if "schema_version" not in data:
            raise BundleError(f"{path} is not a manifest of edgeformer. Export the model again.")
        if data["schema_version"] != SCHEMA_VERSION:
            raise BundleError(
                f"{path} has schema version {shown(data['schema_version'])}, and this edgeformer reads "
                f"{SCHEMA_VERSION}. Export the model again, or use the edgeformer that wrote it."
            )
        if isinstance(data.get("graphs"), dict) and "prefill" in data["graphs"]:
            raise BundleError(
                f"{path} lists a prefill graph, which edgeformer no longer runs: with edgeformer-kernels the decode "
                "graph reads prompts as fast. Export the model again, without --prefill."
            )
        try:
            manifest = schema.from_json(cls, data)
        except ConfigError as error:
            raise BundleError(f"{path} is damaged: {error} Export the model again.") from None
        for graph in (*manifest.graph_files, *(adapter.file for adapter in manifest.adapters)):
            if graph not in manifest.files:
                raise BundleError(f"{path} is damaged: it does not list {shown(graph)}. Export the model again.")
        return manifest

    def write(self, folder: Path) -> None:
        """Write `edgeformer.json` into a folder."""
        text = json.dumps(schema.to_json(self), indent=1, ensure_ascii=False)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @property
    def has_scales_per_token(self) -> bool:
        """Whether keys and values are int8 with a scale behind each, as the runtime keeps them where it is asked to."""
        return self.plan.cache_precision == "int8" and self.cache_scales is None

    @property
    def form(self) -> Form:
        """Return what clients call this kind of model."""
        form: Form = MODELS[self.task].form
        return form

    @property
    def transcribes_pictures(self) -> bool:
        """Return whether it is an encoder-decoder whose sources are pictures."""
        return self.task == "seq2seq-lm" and self.pictures is not None

    @property
    def graph(self) -> str:
        """Return the path of the decode graph or of an encoder; of an encoder-decoder, that of the decoder."""
        return self.graphs["model"].file

    @property
    def graph_files(self) -> tuple[str, ...]:
        """Return the paths of all graphs."""
        return tuple(graph.file for graph in self.graphs.values())

    @property
    def step_graphs(self) -> tuple[str, ...]:
        """Return the graphs that run the model, in the order in which they run.

        Of a decode graph and its windowed graph, which compute the same, the runtime opens the last.
        """
        return tuple(graph.file for name, graph in self.graphs.items() if FORMS[name].steps)

    @property
    def prepacked_graphs(self) -> tuple[str, ...]:
        """Return the graphs that edgeformer's runtime opens and `optimize` prepacks."""
        return tuple(graph.file for name, graph in self.graphs.read_by(EDGEFORMER).items() if FORMS[name].prepacked)

    @property
    def encoder_graph(self) -> str | None:
        """Return the path of the encoder of an encoder-decoder."""
        return None if "encoder" not in self.graphs else self.graphs["encoder"].file

    @property
    def short_context(self) -> int | None:
        """Return the most tokens of a request with other rotary factors than longer ones; None where all are alike."""
        return None if self.model is None else self.model.output_stack.short_context

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Return the lengths of the caches of the windowed graph, per layer; () without one."""
        windowed = self._graph("windowed", WindowedGraph)
        return () if windowed is None else windowed.windows

    @property
    def adapter_graph(self) -> AdapterGraph | None:
        """Return the graph that takes adapters as inputs, if there is one."""
        return self._graph("adapters", AdapterGraph)

    @property
    def alignment(self) -> AlignmentGraph | None:
        """Return the alignment graph of a speech model, if there is one."""
        return self._graph("alignment", AlignmentGraph)

    def _graph(self, name: str, kind: type[G]) -> G | None:
        found = self.graphs.get(name)
        assert found is None or isinstance(found, kind)
        return found

    @property
    def written_in(self) -> str:
        """Return a description of the op set of the graphs."""
        plan = self.plan
        if plan.ops == "ort":
            return f"op set ort for {plan.runs_on.title}"
        cache = f" with a {plan.cache_form} cache" if self.cache.num_layers else ""
        return f"op set {plan.ops}{cache}{', with edgeformer ops as functions' if plan.functions else ''}"

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
        unchanged = all(sha256(folder / graph) == self.files[graph].sha256 for graph in self.graph_files)
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
