"""The config of a GGUF file as transformers itself reads it, for the comparison before an export."""

from pathlib import Path
from typing import Any

from edgeformer.transformers_backend.transformers_shim import transformers

PLAIN = (bool, int, float, str)
"""Types of the fields that are taken; it does not read lists and objects of all architectures alike."""


def read_gguf_config(folder: Path, file: Path) -> dict[str, Any]:
    """Return the fields of a config that transformers finds in the metadata of a file. Raises what it raises.

    folder: with a link to the file.
    """
    link = next(path.name for path in sorted(folder.iterdir()) if path.suffix == file.suffix)
    found, _ = transformers.PreTrainedConfig.get_config_dict(folder, gguf_file=link, local_files_only=True)
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, PLAIN) and not name.startswith("_") and not name.endswith("_token_id")
    }
