"""Make a model repository of NVIDIA's Triton Inference Server from a bundle.

    python make_repository.py ../../tiny-embed repository

An encoder becomes a model of the backend `onnxruntime`: its graph, with token ids in and vectors or logits out, in
batches that Triton puts together. A model that generates keeps a cache between steps, which that backend does not; it
becomes a model of the backend `python`, whose model.py submits requests to edgeformer's `Engine` and streams the text.
"""

import shutil
import sys
from pathlib import Path

from edgeformer.config import EncoderConfig
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load

MAX_BATCH = 32
QUEUE_MICROSECONDS = 1000
"""Time that Triton waits for more texts of a batch."""

TYPES = {"tensor(int64)": "TYPE_INT64", "tensor(float)": "TYPE_FP32", "tensor(float16)": "TYPE_FP16"}


def tensor(kind: str, name: str, data_type: str, dims: list[int], optional: bool = False) -> str:
    """Return an input or output of a config, as text; dims without the batch."""
    more = ", optional: true" if optional else ""
    return f'{kind} [{{ name: "{name}", data_type: {data_type}, dims: {dims}{more} }}]\n'


def onnxruntime_config(name: str, bundle: Path) -> str:
    """Return config.pbtxt of an encoder, from the inputs and outputs of its graph."""
    session = load(bundle, "cpu", 1).session
    text = f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {MAX_BATCH}\n'
    text += f"dynamic_batching {{ max_queue_delay_microseconds: {QUEUE_MICROSECONDS} }}\n"
    for kind, values in (("input", session.get_inputs()), ("output", session.get_outputs())):
        for value in values:
            dims = [size if isinstance(size, int) else -1 for size in value.shape[1:]]
            text += tensor(kind, value.name, TYPES[value.type], dims)
    return text


def python_config(name: str) -> str:
    """Return config.pbtxt of a model that generates: a text in, pieces of text out."""
    text = f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n'
    text += "model_transaction_policy { decoupled: true }\ninstance_group [{ count: 1, kind: KIND_CPU }]\n"
    text += tensor("input", "prompt", "TYPE_STRING", [1]) + tensor("input", "max_tokens", "TYPE_INT32", [1], True)
    return text + tensor("output", "text", "TYPE_STRING", [1])


def make_repository(bundle: Path, repository: Path) -> Path:
    """Write the model of a bundle into a repository; return its folder."""
    manifest = Manifest.read(bundle)
    name = bundle.resolve().name
    folder, version = repository / name, repository / name / "1"
    version.mkdir(parents=True)
    if isinstance(manifest.model, EncoderConfig):
        graph = bundle / manifest.graph
        for path in graph.parent.glob("*"):
            shutil.copy(path, version / ("model.onnx" if path == graph else path.name))
        for path in bundle.glob("tokenizer*.json"):
            shutil.copy(path, folder / path.name)  # for clients, which send token ids
        config = onnxruntime_config(name, bundle)
    else:
        shutil.copytree(bundle, version / "bundle")
        shutil.copy(Path(__file__).with_name("model.py"), version / "model.py")
        config = python_config(name)
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    return folder


if __name__ == "__main__":
    print(make_repository(Path(sys.argv[1]), Path(sys.argv[2])))
