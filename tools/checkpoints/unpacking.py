"""Read weights in the forms of other programs, by the names that transformers has for them."""

import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]

WIDTHS = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
"""Types of numbers of CTranslate2."""

WHISPER = (
    (r"(encoder|decoder)/layer_(\d+)/", r"model.\1.layers.\2."),
    (r"^(encoder|decoder)/", r"model.\1."),
    (r"position_encodings/encodings$", "embed_positions.weight"),
    (r"embeddings/weight$", "embed_tokens.weight"),
    (r"self_attention/layer_norm/", "self_attn_layer_norm."),
    (r"self_attention/", "self_attn."),
    (r"\.attention/layer_norm/", ".encoder_attn_layer_norm."),
    (r"\.attention/", ".encoder_attn."),
    (r"ffn/layer_norm/", "final_layer_norm."),
    (r"ffn/linear_0/", "fc1."),
    (r"ffn/linear_1/", "fc2."),
    (r"gamma$", "weight"),
    (r"beta$", "bias"),
    (r"/", "."),
)
"""Parts of CTranslate2's names of a Whisper, and what transformers says; all are replaced, one after another."""

JOINED = {
    "self_attn.linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.linear_1": ("self_attn.out_proj",),
    "encoder_attn.linear_0": ("encoder_attn.q_proj",),
    "encoder_attn.linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "encoder_attn.linear_2": ("encoder_attn.out_proj",),
}
"""Projections that CTranslate2 stores as one, by its names after `WHISPER`."""


def write_weights(tensors: Tensors, folder: Path) -> None:
    """Write model.safetensors."""
    stored = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def read_onnx(data: bytes, prefixes: Sequence[str]) -> Tensors:
    """Return the parameters of a graph that torch exported, by the names of its modules behind a prefix.

    Matrices of linear layers have lost their names, and are known by the node that multiplies with them. The positions
    of DINOv2 are stored in two parts, that of the first token and those of the patches.
    """
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load_model_from_string(data).graph
    stored = {each.name: to_array(each) for each in graph.initializer}
    found: dict[str, NDArray[Any]] = {name: value for name, value in stored.items() if "::" not in name}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            module = node.name.rpartition("/")[0].strip("/").replace("/", ".")
            found[f"{module}.weight"] = stored[node.input[1]].T
    parts = [
        stored[name]
        for op in ("Concat", "Reshape")
        for node in graph.node
        for name in node.input
        if node.op_type == op
        and "/embeddings/" in node.name
        and "::" in name
        and stored.get(name, np.empty(0)).ndim == 3
    ]
    if len(parts) == 2:
        found[f"{prefixes[0]}embeddings.position_embeddings"] = np.concatenate(parts, 1)
    named = ((name, next((each for each in prefixes if name.startswith(each)), None)) for name in found)
    return {
        name.removeprefix(prefix): torch.from_numpy(np.array(found[name]))
        for name, prefix in named
        if prefix is not None
    }


def read_ctranslate2(data: bytes) -> Tensors:
    """Return the parameters of a Whisper in CTranslate2's form, model.bin. Raises ValueError for another model."""
    found = {}
    for name, value in _ctranslate2_variables(data):
        if value.ndim == 0 or name.endswith("alignment_heads"):
            continue
        for pattern, theirs in WHISPER:
            name = re.sub(pattern, theirs, name)
        module, _, last = name.rpartition(".")
        base = next((each for each in JOINED if module.endswith(each)), None)
        names = [module] if base is None else [module.replace(base, each) for each in JOINED[base]]
        for part, rows in zip(names, np.split(value, len(names)), strict=True):
            tensor = torch.from_numpy(np.array(rows))
            if last == "bias" and part.endswith("k_proj"):  # which Whisper's keys do not have
                if bool(tensor.any()):
                    raise ValueError(f"{part} has a bias, and Whisper's keys have none.")
                continue
            found[f"{part}.{last}"] = tensor
    return found


def _ctranslate2_variables(data: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of model.bin by name. Source: CTranslate2, python/ctranslate2/specs/model_spec.py."""
    place = 0

    def number(form: str) -> Any:
        nonlocal place
        [value] = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(form)
        return value

    def text() -> str:
        nonlocal place
        length = number("H")
        place += length
        return data[place - length : place - 1].decode()

    version, spec, _ = number("I"), text(), number("I")
    if version != 6 or spec != "WhisperSpec":
        raise ValueError(f"model.bin holds a {spec} of version {version}, not a WhisperSpec of version 6.")
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = number("B"), number("I")
        yield name, np.frombuffer(data, WIDTHS[kind], size // np.dtype(WIDTHS[kind]).itemsize, place).reshape(shape)
        place += size


def dequantize_gguf(file: Path, folder: Path) -> None:
    """Save a GGUF file as transformers itself reads it: model, tokenizer and chat template, in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": file.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    write_weights({name: each for name, each in model.state_dict().items() if name not in tied}, folder)
    config = {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")}
    config["architectures"] = [type(model).__name__]
    config.pop("quantization_config", None)  # transformers would not save what it calls quantized
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)


def requantize_gguf(file: Path, folder: Path) -> None:
    """Write a GGUF file whose matrices of Q4_1 are rounded to Q4_0 by the package `gguf`; all else is copied."""
    import gguf

    kind, reader = gguf.GGMLQuantizationType, gguf.GGUFReader(file)
    values = {name: each for name, each in reader.fields.items() if not name.startswith("GGUF.")}
    writer = gguf.GGUFWriter(folder / file.name.replace("Q4_1", "Q4_0"), values["general.architecture"].contents())
    for name, each in values.items():
        if name == "general.architecture":
            continue
        content = int(gguf.LlamaFileType.MOSTLY_Q4_0) if name == "general.file_type" else each.contents()
        writer.add_key_value(name, content, each.types[0], each.types[-1] if len(each.types) > 1 else None)
    for tensor in reader.tensors:
        raw, used = tensor.data, tensor.tensor_type
        if used == kind.Q4_1:
            used = kind.Q4_0
            raw = gguf.quantize(gguf.dequantize(tensor.data, kind.Q4_1), used)
        writer.add_tensor(tensor.name, raw, raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
