"""The weights of a checkpoint as transformers' own `from_pretrained` reads them, for modules that prove an export.

A proof must not share a reading with what it proves: which files are the model's, how tensors are named, stacked and
tied, and which stored buffers count, is here left to transformers alone. Tensors have the type that the files have, so
that they stay mapped to the files and take no memory by themselves, but for those that transformers makes of several.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgeformer.checkpoints.expert_weights import LazyWeights
from edgeformer.checkpoints.weight_map import find_weight_files
from edgeformer.transformers_backend.tensors.gguf_metadata import quick_headers
from edgeformer.transformers_backend.transformers_shim import transformers

ADAPTER = "adapter_config.json"
"""The file that makes transformers add an adapter to a model, where PEFT is installed."""

FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Types of safetensors that a module can have, the widest first."""


class LoadedWeights(LazyWeights):
    """Parameters and stored buffers by the names of transformers' module; tied ones have several names.

    missing: names of the parameters that the checkpoint lacks. They are NaN, so that no output may depend on them.
    """

    def __init__(self, model: Any, missing: set[str]):
        stored = model.state_dict(keep_vars=True)
        self._tensors = {name: tensor.detach() for name, tensor in stored.items()}
        parameters = dict(model.named_parameters(remove_duplicate=False))
        self.missing = sorted(missing & parameters.keys())
        self.buffers = {name for name in stored if name not in parameters and name not in missing}
        for name in self.missing:
            self._tensors[name] = torch.full_like(parameters[name], torch.nan)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def replace(self, name: str, tensor: Tensor) -> None:
        """Give a parameter another value."""
        self._tensors[name] = tensor

    def place_buffers(self, model: Any) -> None:
        """Give a module the stored buffers, in the types that its own have."""
        for name, buffer in model.named_buffers():
            if name in self.buffers:
                owner, _, last = name.rpartition(".")
                setattr(model.get_submodule(owner), last, self[name].to(buffer.dtype))


def load_weights(model: Any, folder: Path, allow_pickle: bool = False) -> LoadedWeights:
    """Load the checkpoint in a folder into another module of a module's class and config, and return its weights.

    allow_pickle: whether transformers may read pickles, which it does by torch's unpickler for tensors alone. Raises
    whatever transformers raises.
    """
    files = find_weight_files(folder, allow_pickle)
    if files.gguf and len(files.paths) > 1:
        raise ValueError("it reads no GGUF file that is split")
    kind: dict[str, Any] = (
        {"gguf_file": files.paths[0].name} if files.gguf else {"use_safetensors": None if allow_pickle else True}
    )
    dtype = _widest(folder)
    if dtype.itemsize < 4 and _computes_positions(model):
        dtype = torch.float32  # half precision would round the tables that the module computes
    reading = quick_headers() if files.gguf else nullcontext()
    with _without_adapter(folder) as plain, _no_progress_bar(), reading:
        loaded, report = type(model).from_pretrained(
            plain, config=model.config, dtype=dtype, **kind,
            attn_implementation="eager", local_files_only=True, trust_remote_code=False, output_loading_info=True,
            generation_config=transformers.GenerationConfig(),
        )  # fmt: skip
    return LoadedWeights(loaded, set(report["missing_keys"]))


def _computes_positions(model: Any) -> bool:
    """Return whether a module of transformers computes tables of positions that no checkpoint stores (Marian)."""
    config = model.config
    names = getattr(type(model), "_keys_to_ignore_on_load_missing", None) or ()
    return getattr(config, "is_encoder_decoder", False) or any("position" in name for name in names)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing a bar of its own into the terminal."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")  # which draws one whatever the setting is
    bar, reader.tqdm = reader.tqdm, lambda tensors, **options: tensors
    try:
        yield
    finally:
        reader.tqdm = bar
        if shown:
            transformers.utils.logging.enable_progress_bar()


def _widest(folder: Path) -> torch.dtype:
    """Return the widest type of numbers in the safetensors of a folder, in which every one of them is exact."""
    found: set[str] = set()
    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, framework="pt") as file:
                found |= {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError):
            continue  # if it is one of the model's, transformers says so
    halves = {"BF16", "F16"} <= found  # neither type has the numbers of the other
    return (
        torch.float32
        if halves and "F64" not in found
        else next((dtype for name, dtype in FLOATS.items() if name in found), torch.float32)
    )


@contextmanager
def _without_adapter(folder: Path) -> Iterator[Path]:
    """Make a folder with links to everything in another one but an adapter; that one itself if there is none."""
    if not (folder / ADAPTER).is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        for path in folder.iterdir():
            if path.name != ADAPTER:
                os.symlink(path.resolve(), Path(made, path.name))
        yield Path(made)
