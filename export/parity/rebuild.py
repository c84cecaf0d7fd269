"""From a bundle back to the model that it was made from, as far as the bundle tells."""

from pathlib import Path

from edgeformer.blueprint import Blueprint, blueprint_of
from edgeformer.errors import BundleError
from edgeformer.manifest import Manifest


def blueprint_of_bundle(folder: Path, manifest: Manifest) -> Blueprint:
    """The blueprint of a bundle's model. Raises BundleError where its code is nowhere in reach."""
    if manifest.model is not None:
        return blueprint_of(manifest.model)
    if manifest.via == "transformers":
        # Imported here, since transformers is an extra of its own, and takes its time.
        from edgeformer.export.via_transformers import reopen

        return reopen(folder, manifest).blueprint
    raise BundleError(
        f"{folder} was exported from a module of your own ({manifest.source}), and a bundle holds no code. Verify it "
        f"in Python, where the module is: edgeformer.export.verify_module({str(folder)!r}, module)"
    )
