"""The config of a GGUF file as transformers itself reads it, for the comparison before an export."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from edgeformer.errors import require
from edgeformer.transformers_backend.transformers_shim import transformers

PLAIN = (bool, int, float, str)
"""Types of the fields that are taken; it does not read lists and objects of all architectures alike."""

TEXTS = ([8], [9, 8])
"""Types, in the format's numbers, of a text and of a list of texts."""


def read_gguf_config(folder: Path, file: Path) -> dict[str, Any]:
    """Return the fields of a config that transformers finds in the metadata of a file. Raises what it raises.

    folder: with a link to the file.
    """
    link = next(path.name for path in sorted(folder.iterdir()) if path.suffix == file.suffix)
    with quick_headers():
        found, _ = transformers.PreTrainedConfig.get_config_dict(folder, gguf_file=link, local_files_only=True)
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, PLAIN) and not name.startswith("_") and not name.endswith("_token_id")
    }


@contextmanager
def quick_headers() -> Iterator[None]:
    """Let the package `gguf` read a header once, without an object of `numpy.memmap` for each number and text.

    It makes several for every token of a vocabulary and every merge, and transformers reads a header two times, makes a
    list of the bytes of each text, and builds the table of names once for every module. The values are the same. What
    was read is forgotten at the end of the outermost context.
    """
    package: Any = require("gguf", "gguf")
    reader: Any = require("gguf.gguf_reader", "gguf").GGUFReader
    loading: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    plain, name_map = getattr(reader, "_get", None), package.get_tensor_name_map
    parse = getattr(loading, "_gguf_parse_value", None)
    # Another version of either package, or within another context.
    if plain is None or parse is None or package.GGUFReader is not reader:
        yield
        return

    def cut(self: Any, offset: int, dtype: Any, count: int = 1, override_order: str | None = None) -> Any:
        if not count or (override_order or self.byte_order) == "S":
            return plain(self, offset, dtype, count, override_order)
        return np.frombuffer(self.data, dtype, int(count), int(offset))

    def parse_text(value: Any, kinds: Any) -> Any:
        return value.tobytes().decode() if kinds in TEXTS else parse(value, kinds)

    reader._get, package.get_tensor_name_map = cut, functools.cache(name_map)
    package.GGUFReader, loading._gguf_parse_value = functools.cache(reader), parse_text
    try:
        yield
    finally:
        reader._get, package.get_tensor_name_map, package.GGUFReader = plain, name_map, reader
        loading._gguf_parse_value = parse
