"""From a bundle back to the model that it was made from, as far as the bundle tells."""

from pathlib import Path

from edgeformer.errors import BundleError
from edgeformer.manifest import Manifest
from edgeformer.model_spec import ModelSpec, model_spec_of


def model_spec_of_bundle(folder: Path, manifest: Manifest) -> ModelSpec:
    """The model spec of a bundle's model. Raises BundleError where its code is nowhere in reach."""
    if manifest.model is not None:
        return model_spec_of(manifest.model)
    if manifest.backend == "transformers":
        # Imported here, since transformers is an extra of its own, and takes its time.
        from edgeformer.export.adapters.transformers_backend import reopen

        return reopen(folder, manifest).model_spec
    raise BundleError(
        f"{folder} was exported from a module of your own ({manifest.source}), and a bundle holds no code. Verify it "
        f"in Python, where the module is: edgeformer.export.verify_module({str(folder)!r}, module)"
    )
