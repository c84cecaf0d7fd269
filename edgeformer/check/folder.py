"""Facts about a folder: files and their sizes, JSON documents, graphs. Any exporter may have written it."""

import os
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from edgeformer.check.graph_facts import GraphFacts, read_graph
from edgeformer.config.models import Form
from edgeformer.documents.json_document import read_object
from edgeformer.errors import BundleError
from edgeformer.manifest.graph_forms import DECODER_GRAPH, ENCODER_GRAPH, GRAPH, MERGED_GRAPH
from edgeformer.manifest.manifest import FILE_NAME, MODELS, Manifest

CONFIG, GENAI_CONFIG = "config.json", "genai_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
DOCUMENTS = (FILE_NAME, CONFIG, GENAI_CONFIG, "generation_config.json", TOKENIZER, TOKENIZER_CONFIG)

ORT_SUFFIX = ".ort"


# Kind of model by the task of a manifest.
_KINDS: dict[str, Form] = {task: config.form for task, config in MODELS.items()}


@dataclass(frozen=True)
class Folder:
    """Facts about a folder.

    Attributes:
        path: the folder.
        files: size in bytes of every file, by relative path.
        documents: JSON objects by file name.
        graphs: facts about graphs by relative path.
        unreadable: why a document or a graph cannot be read, by file name.
    """

    path: Path
    files: dict[str, int]
    documents: dict[str, dict[str, Any]]
    graphs: dict[str, GraphFacts]
    unreadable: dict[str, str]

    def document(self, name: str) -> dict[str, Any]:
        """Return a JSON object; empty if there is none."""
        return self.documents.get(name, {})

    def manifest(self) -> Manifest:
        """Return the manifest. Raises BundleError if there is none, or if files have other sizes than it lists."""
        manifest = Manifest.read(self.path)
        manifest.check_sizes(self.path)
        return manifest

    def graph(self, file: str) -> GraphFacts | None:
        """Return a graph by its place in a bundle, or else one of this name in any folder; None if there is none."""
        name = PurePosixPath(file).name
        found = [graph for graph in self.graphs.values() if graph.name == name]
        return self.graphs.get(file) or next(iter(found), None)

    @property
    def ort_graphs(self) -> tuple[str, ...]:
        """Return the files in ORT format, which the package onnx cannot read."""
        return tuple(name for name in self.files if name.endswith(ORT_SUFFIX))

    @cached_property
    def main(self) -> GraphFacts | None:
        """Return the graph that most clients open; that of the decoder for an encoder-decoder."""
        model = self.document(GENAI_CONFIG).get("model")
        decoder = model.get("decoder") if isinstance(model, dict) else None
        named = decoder.get("filename") if isinstance(decoder, dict) else None
        names = (DECODER_GRAPH, MERGED_GRAPH) if self.graph(ENCODER_GRAPH) else ()
        choices = (*map(self.graph, (*names, GRAPH)), self.graphs.get(str(named)), *self.graphs.values())
        return next((graph for graph in choices if graph is not None), None)

    @property
    def kind(self) -> Form:
        """Return the kind of model in the folder."""
        if self.graph(ENCODER_GRAPH) is not None:
            return "encoder-decoder"
        config = self.document(CONFIG)
        if config.get("is_encoder_decoder") and self.graph(GRAPH) is None:
            return "encoder-decoder"
        if self.main is None:
            return _KINDS.get(str(self.document(FILE_NAME).get("task")), "decoder")
        return "decoder" if self.main.pasts else "encoder"


MOST_FILES = 10_000
"""Files in a folder at most; a bundle has about thirty."""


def read_folder(path: Path) -> Folder:
    """Return the facts about a folder.

    Raises BundleError if there is no folder with graphs, and MissingDependencyError if onnx is not installed.
    """
    if not os.path.isdir(path):
        raise BundleError(
            f"there is no folder {path}. Make a bundle with: edgeformer export --model MODEL --output {path}"
        )
    try:
        found = sorted(islice(path.rglob("*"), MOST_FILES + 1))
        if len(found) > MOST_FILES:
            raise BundleError(f"{path} has more than {MOST_FILES:,} files in it. Give the folder of one model.")
        files = {file.relative_to(path).as_posix(): file.stat().st_size for file in found if file.is_file()}
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.filename}: {error.strerror}.") from None
    names = [name for name in files if name.endswith(".onnx")]
    if not names and not any(name.endswith(ORT_SUFFIX) for name in files):
        raise BundleError(f"{path} has no ONNX graph (*.onnx) in it. Make a bundle with: edgeformer export")
    documents, graphs, unreadable = {}, {}, {}
    for name in DOCUMENTS:
        if name in files:
            try:
                documents[name] = read_object(path / name, BundleError)
            except BundleError as problem:
                unreadable[name] = str(problem).removeprefix(f"{path / name} cannot be read: ")
    for name in names:
        try:
            graphs[name] = read_graph(path, name)
        except ValueError as problem:
            unreadable[name] = f"it is not an ONNX graph: {problem}"
    return Folder(path, files, documents, graphs, unreadable)
