"""Open a bundle, or a graph that somebody else exported, together with the model that it should compute."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeformer.checkpoints.found_model import cached_folder, find_model, preset_names
from edgeformer.checkpoints.merged_source import merge_adapter
from edgeformer.checkpoints.source import ModelSource, open_source
from edgeformer.checkpoints.weights import Weights
from edgeformer.config import PoolingHead
from edgeformer.documents.json_document import read_object
from edgeformer.errors import BundleError, ConfigError, EdgeformerError
from edgeformer.export.bundle.stored_weights import StoredWeights
from edgeformer.export.importers.foreign_graph import open_foreign
from edgeformer.export.progress import Progress, no_progress
from edgeformer.lora.adapter_tensors import Update
from edgeformer.manifest.manifest import FILE_NAME, Manifest
from edgeformer.manifest.parts import sha256
from edgeformer.models.model_spec import ModelSpec, model_spec_of

CERTIFICATE_FILE = "parity/report.json"
"""The report of the verification, in bundles that hold their certificate."""


@dataclass(frozen=True)
class Subject:
    """A graph to compare with PyTorch.

    Attributes:
        folder, manifest: where the graph is, and how it was made.
        model_spec, weights: what it should compute.
        reference: whose weights they are, for people.
        adapters: what each adapter adds to the weights; what is not there, the bundle's own files say.
        provider: what runs the graph, by a name that `load` takes; None for the one that it is for.
        cache_precision: of the cache over which kernels run the graph once more, as `load` takes it; None for no more.
    """

    folder: Path
    manifest: Manifest
    model_spec: ModelSpec
    weights: Weights
    reference: str
    adapters: Mapping[str, Mapping[str, Update]] = field(default_factory=dict)
    provider: str | None = None
    cache_precision: str | None = None


def open_subject(
    bundle: str | Path,
    against: str | Path | None = None,
    progress: Progress = no_progress,
    *,
    adapter: str | Path | None = None,
) -> Subject:
    """Open a bundle, whose files must have their hashes, or a folder or ONNX file that somebody else made.

    against: the model that it was exported from (preset, folder or hub id); by default the weights stored in the bundle
    itself. adapter: folder of the adapter that was merged into that model, where one was. Raises BundleError for
    files that are not what the manifest says, and ConfigError where `against` or the adapter is another one.
    """
    folder = Path(bundle)
    if against is None and adapter is not None:
        raise ConfigError(
            "an adapter is merged into a model, and no model is given or found. Name it, too: --against MODEL."
        )
    if os.path.exists(folder) and not (folder / FILE_NAME).is_file():
        return _open_foreign(folder, against)
    manifest = open_bundle(folder, progress)
    if against is None:
        model_spec = model_spec_of_bundle(folder, manifest)
        stored = StoredWeights(folder, manifest, model_spec)
        return Subject(folder, manifest, model_spec, stored, "the bundle's own weights")
    return _with_checkpoint(folder, manifest, against, adapter)


def find_checkpoint(bundle: str | Path, adapter: str | Path | None = None) -> str | None:
    """Return the model that a bundle was exported from, if it is here: what `against` of `open_subject` takes.

    That is a preset, a folder or file of the name that the manifest gives, beside the bundle or in the working
    directory, or what the local cache has of a hub id. None for another folder than a bundle, and where a model found
    so does not fit. adapter: folder of the adapter that was merged into it. Raises BundleError for a damaged manifest.
    """
    folder = Path(bundle)
    if not os.path.isfile(folder / FILE_NAME):
        return None
    manifest = Manifest.read(folder)
    kind, _, name = manifest.provenance.source.partition(" ")
    found: list[str | Path] = []
    if kind == "preset" and name in preset_names():
        found = [name]
    elif kind in ("folder", "file") and Path(name).name == name:
        found = [folder.resolve().parent / name, Path.cwd() / name]
    elif kind == "hub":
        found = [path for path in (cached_folder(name),) if path is not None]
    return next((str(each) for each in found if _fits(folder, manifest, each, adapter)), None)


def _fits(folder: Path, manifest: Manifest, model: str | Path, adapter: str | Path | None) -> bool:
    """Return whether a model has the config and the tensors of the one that a bundle was exported from."""
    if isinstance(model, Path) and (not _holds_model(model) or os.path.isfile(model / FILE_NAME)):
        return False
    try:
        _with_checkpoint(folder, manifest, model, adapter)
    except EdgeformerError:
        return False
    return True


def _holds_model(path: Path) -> bool:
    """Return whether a path is a GGUF file, or a folder with a config.json or with one."""
    return path.is_file() or os.path.isfile(path / "config.json") or any(path.glob("*.gguf"))


def _with_checkpoint(
    folder: Path, manifest: Manifest, against: str | Path, adapter: str | Path | None = None
) -> Subject:
    """Return a bundle with the weights of a checkpoint. Raises ConfigError where that is another model."""
    if manifest.provenance.backend is not None:
        from edgeformer.export.importers.from_transformers import open_checkpoint

        found = find_model(against, bool(manifest.provenance.pickled_weights))
        model_spec, weights = open_checkpoint(found, folder, manifest)
        return Subject(folder, manifest, model_spec, weights, found.origin)
    model_spec = model_spec_of_bundle(folder, manifest)  # refuses a module of the user's, which has no checkpoint
    assert manifest.model is not None
    head = getattr(manifest.model, "head", None)
    # A single pooling may have been requested; what a folder alone can say is read there again.
    pooled: tuple[Any, ...] = ()
    if isinstance(head, PoolingHead) and isinstance(head.pooling, str) and not head.layers:
        pooled = (head.pooling, head.normalize)
    found = find_model(against, bool(manifest.provenance.pickled_weights))
    text_only = manifest.provenance.text_model_of is not None
    mtp = "mtp" in manifest.graphs
    source = open_source(found, manifest.model.length_as_read, *pooled, text_only=text_only, mtp=mtp)
    source = _merged(source, manifest, adapter)
    if source.config != manifest.model:
        raise ConfigError(
            f"{against} is another model than the one that {folder} was exported from: their configs differ."
        )
    return Subject(folder, manifest, model_spec, source.weights(), source.origin)


def _merged(source: ModelSource, manifest: Manifest, adapter: str | Path | None) -> ModelSource:
    """Merge the adapter that a bundle was made with. Raises ConfigError for another one, and where none is given."""
    expected = manifest.provenance.merged_adapter
    if adapter is None and expected is None:
        return source
    if expected is None or adapter is None:
        made = "without an adapter. Leave --merge-adapter out" if expected is None else f"with the adapter {expected}"
        hint = "" if expected is None else ". Give its folder, too: --merge-adapter DIR"
        raise ConfigError(f"the bundle was made {made}{hint}.")
    merged = merge_adapter(source, adapter)
    assert merged.merged is not None
    found = merged.merged.adapter.origin()
    if (found.config_sha256, found.weights_sha256) != (expected.config_sha256, expected.weights_sha256):
        raise ConfigError(
            f"{adapter} is another adapter than the one that the bundle was made with, {expected}: the SHA-256 of its "
            "files is another. Give the folder of that adapter."
        )
    return merged


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
    _check_certificate(folder, manifest)
    linked = [name for name in manifest.graph_hashes() if (folder / name).stat().st_nlink > 1]
    if linked:
        raise BundleError(
            f"{folder / linked[0]} has several hard links, and onnx refuses to read weights from such a file. Verify a "
            f"copy: cp -r {folder} COPY"
        )
    return manifest


def _check_certificate(folder: Path, manifest: Manifest) -> None:
    """Raise BundleError for a manifest that lists other files than those that its export verified.

    The certificate is in the manifest and in a file of its own, so a manifest that is rewritten disagrees with one.
    """
    if manifest.parity is None:
        return
    hashes, report = manifest.graph_hashes(), folder / CERTIFICATE_FILE
    certified = manifest.parity.get("hashes")
    others = [name for name in hashes if not isinstance(certified, dict) or certified.get(name) != hashes[name]]
    if not others and "report" in manifest.parity:
        if not report.is_file() or sha256(report) != manifest.parity["report"]:
            others = [CERTIFICATE_FILE]
        elif read_object(report, BundleError).get("hashes") != hashes:
            others = list(hashes)
    if others or certified != hashes:
        raise BundleError(
            f"{folder / FILE_NAME} was rewritten after the export: its parity certificate is not about the files that "
            f"it lists ({', '.join(others) or 'it certifies more files'}). Export the model again."
        )


def model_spec_of_bundle(folder: Path, manifest: Manifest) -> ModelSpec:
    """Return the model spec that a bundle was made from. Raises BundleError where the bundle does not hold its code."""
    if manifest.model is not None:
        return model_spec_of(manifest.model)
    if manifest.provenance.backend == "transformers":
        # Imported here, because transformers is an extra of its own and takes seconds to import.
        from edgeformer.export.importers.from_transformers import reopen

        return reopen(folder, manifest).model_spec
    raise BundleError(
        f"{folder} was exported from a module of your own ({manifest.provenance.source}), and a bundle holds no code. "
        f"Verify it in Python, where the module is: edgeformer.export.verify_module({str(folder)!r}, module)"
    )
