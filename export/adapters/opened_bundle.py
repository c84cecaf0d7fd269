"""Open a bundle, or a graph that somebody else exported, together with the model that it should compute."""

from dataclasses import dataclass
from pathlib import Path

from edgeformer.config import PoolingHead
from edgeformer.errors import BundleError, ConfigError
from edgeformer.export.adapters.foreign_graph import open_foreign
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.progress import Progress, no_progress
from edgeformer.manifest import FILE_NAME, Manifest, sha256
from edgeformer.model_spec import ModelSpec, model_spec_of
from edgeformer.source import find_model, open_source
from edgeformer.weights import Weights


@dataclass(frozen=True)
class Subject:
    """A graph to compare with PyTorch.

    folder, manifest: where the graph is, and how it was made. model_spec, weights: what it should compute. reference:
    whose weights they are, for people.
    """

    folder: Path
    manifest: Manifest
    model_spec: ModelSpec
    weights: Weights
    reference: str


def open_subject(bundle: str | Path, against: str | Path | None = None, progress: Progress = no_progress) -> Subject:
    """Open a bundle, whose files must have their hashes, or a folder or ONNX file that somebody else made.

    against: the model that it was exported from (preset, folder or hub id); by default the weights stored in the bundle
    itself. Raises BundleError for files that are not what the manifest says, and ConfigError where `against` is another
    model.
    """
    folder = Path(bundle)
    if folder.exists() and not (folder / FILE_NAME).is_file():
        return _open_foreign(folder, against)
    manifest = open_bundle(folder, progress)
    if against is None:
        model_spec = model_spec_of_bundle(folder, manifest)
        stored = StoredWeights(folder, manifest, model_spec)
        return Subject(folder, manifest, model_spec, stored, "the bundle's own weights")
    if manifest.backend is not None:
        from edgeformer.export.adapters.from_transformers import open_checkpoint

        found = find_model(against)
        model_spec, weights = open_checkpoint(found, folder, manifest)
        return Subject(folder, manifest, model_spec, weights, found.origin)
    model_spec = model_spec_of_bundle(folder, manifest)  # refuses a module of the user's, which has no checkpoint
    head = getattr(manifest.model, "head", None)
    pooled = (head.pooling, head.normalize) if isinstance(head, PoolingHead) else ()
    source = open_source(against, manifest.context_length, *pooled)
    if source.config != manifest.model:
        raise ConfigError(
            f"{against} is another model than the one that {folder} was exported from: their configs differ."
        )
    return Subject(folder, manifest, model_spec, source.weights(), source.origin)


def _open_foreign(path: Path, against: str | Path | None) -> Subject:
    if against is None:
        raise BundleError(
            f"{path} is no bundle of edgeformer. To verify what somebody else exported, name the model that it "
            "was made from: --against MODEL."
        )
    source = open_source(against)
    folder, manifest = open_foreign(path, source)
    return Subject(folder, manifest, model_spec_of(source.config), source.weights(), source.origin)


def open_bundle(folder: Path, progress: Progress = no_progress) -> Manifest:
    """Read the manifest of a bundle. Raises BundleError unless every file has the size and hash that it gives."""
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    for index, (name, entry) in enumerate(manifest.files.items()):
        progress(f"hashing {name}", index / len(manifest.files))
        if sha256(folder / name) != entry.sha256:
            raise BundleError(f"{folder / name} was changed after the export: its SHA-256 is not the manifest's.")
    return manifest


def model_spec_of_bundle(folder: Path, manifest: Manifest) -> ModelSpec:
    """Return the model spec that a bundle was made from. Raises BundleError where the bundle does not hold its code."""
    if manifest.model is not None:
        return model_spec_of(manifest.model)
    if manifest.backend == "transformers":
        # Imported here, because transformers is an extra of its own and takes seconds to import.
        from edgeformer.export.adapters.from_transformers import reopen

        return reopen(folder, manifest).model_spec
    raise BundleError(
        f"{folder} was exported from a module of your own ({manifest.source}), and a bundle holds no code. Verify it "
        f"in Python, where the module is: edgeformer.export.verify_module({str(folder)!r}, module)"
    )
