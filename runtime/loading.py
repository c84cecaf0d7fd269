"""`load` a bundle: whatever model is in it."""

import warnings
from pathlib import Path
from typing import Any

from edgeformer.manifest import Manifest, Task
from edgeformer.runtime.causal_lm import CausalLM
from edgeformer.runtime.encoder import Encoder
from edgeformer.runtime.model import Model
from edgeformer.runtime.seq2seq import Seq2SeqLM
from edgeformer.runtime.session import ProviderChoice

MODELS: dict[Task, type[Model]] = {"causal-lm": CausalLM, "seq2seq-lm": Seq2SeqLM, "encoder": Encoder}


def load(path: str | Path, provider: ProviderChoice = "auto", threads: int | None = None) -> Any:
    """Open a bundle folder: a `CausalLM`, a `Seq2SeqLM` or an `Encoder`.

    provider: `auto` takes CUDA where onnxruntime has it and the bundle runs on it, else the CPU. threads: None for all
    usable cores. Raises BundleError for a damaged folder (sizes are checked; `edgeformer verify` checks contents) and
    RequestError for a provider that cannot be had.
    """
    folder = Path(path)
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    if manifest.parity is not None and not manifest.certifies(folder):
        warnings.warn(
            f"the graph in {folder} is not the one that its parity certificate speaks of; it was changed after the "
            "export. Check it with: edgeformer verify",
            stacklevel=2,
        )
    return MODELS[manifest.task](folder, manifest, provider, threads)
