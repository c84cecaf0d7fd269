"""llama.cpp: a GGUF file, quantized by llama.cpp itself and run through its C API.

llama.cpp's own converter is not part of the wheel of llama-cpp-python, so the file of a plain Llama is written here, in
float32: it holds the sizes and the tensors under other names, with the rows of queries and keys in the order of
interleaved RoPE. Other models are written by that converter, if LLAMA_CPP_SOURCE names the folder that has its
convert_hf_to_gguf.py: the source distribution of llama-cpp-python has it in vendor/llama.cpp. It needs torch,
transformers, and the gguf of the same source (gguf-py). int4 is Q4_0 and int8 is Q8_0, as llama-quantize makes them (a
Q4_0 model has a Q6_K head, or Q8_0 where Q6_K does not fit).

A format whose name ends with ", importance matrix" is made with one, from a file that llama-imatrix wrote of a text.
That tool is in the same source, and needs a file with the tokenizer of the model.
"""

import ctypes
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.generation import Generate, Generation, Logits, timed
from benchmarks.peers.registry import IMATRIX, WITH_IMATRIX

FILE = "model.gguf"

SOURCE = "LLAMA_CPP_SOURCE"
"""The environment variable with the folder of llama.cpp's source."""

BATCH = 2048
"""Tokens of a call at most: llama.cpp's default of n_batch."""

FORMATS = {"int4": "Q4_0", "int8": "Q8_0"}
"""Formats of weights by precision. Wherever a precision is taken, the name of any other format is, too."""

TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Hugging Face's names → GGUF's names, without `.weight` and, in a block, without `model.layers.N.` and `blk.N.`."""


def convert(checkpoint: Path, folder: Path, precision: str) -> None:
    """Write the GGUF file. Raises ValueError if neither this module nor llama.cpp's converter can."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    folder.mkdir(exist_ok=True)
    write = write_float32 if config["model_type"] == "llama" or SOURCE not in os.environ else write_by_converter
    if precision == "fp32":
        write(checkpoint, config, folder / FILE)
        return
    exact = folder / "exact.gguf"
    write(checkpoint, config, exact)
    params = llama_cpp.llama_model_quantize_default_params()
    form = FORMATS.get(precision, precision).removesuffix(WITH_IMATRIX)
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{form}")
    if precision.endswith(WITH_IMATRIX):
        means = read_imatrix(Path(os.environ[IMATRIX]), exact)
        params.imatrix = imatrix_of(means)
    if llama_cpp.llama_model_quantize(bytes(exact), bytes(folder / FILE), ctypes.byref(params)):
        raise ValueError("llama.cpp did not quantize the file; its output is above.")
    exact.unlink()


def read_imatrix(file: Path, model: Path) -> dict[str, NDArray[np.float32]]:
    """Return, by matrix, the mean square of each of its inputs, from a file that llama-imatrix wrote of a GGUF model.

    An expert that read nothing has ones, as in llama-quantize.

    Raises ValueError if it wrote no such file, or wrote it of another model.
    """
    made_by = f"llama-imatrix makes one: llama-imatrix -m MODEL.gguf -f TEXT.txt -o {file.name}"
    try:
        tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(file).tensors}
    except (ValueError, IndexError) as error:  # IndexError: of a few bytes
        raise ValueError(f"{file} is no GGUF file with an importance matrix. {made_by}") from error
    sums = {name.removesuffix(".in_sum2"): sums for name, sums in tensors.items() if name.endswith(".in_sum2")}
    if not sums:
        raise ValueError(f"{file} has no importance matrix; perhaps it is a model. {made_by}")
    weights = [tensor for tensor in gguf.GGUFReader(model).tensors if len(tensor.shape) > 1]
    inputs = {weight.name: weight.n_elements // weight.shape[1] for weight in weights}  # of all experts together
    for name, squares in sums.items():
        if inputs.get(name) != squares.size:
            own = f"{inputs[name]} inputs" if name in inputs else "no such matrix"
            raise ValueError(f"{file} is of another model: its {name} has {squares.size} inputs, here {own}. {made_by}")
    counts = {name: tensors[f"{name}.counts"] for name in sums}
    means = {name: squares / np.maximum(counts[name], 1) for name, squares in sums.items()}
    return {name: np.where(counts[name] > 0, mean, 1).astype(np.float32).ravel() for name, mean in means.items()}


def imatrix_of(means: dict[str, NDArray[np.float32]]) -> Any:
    """Return the array of structures that llama.cpp's quantizer reads, which points into `means`; the last is empty."""
    entry = llama_cpp.llama_model_imatrix_data
    pointer = ctypes.POINTER(ctypes.c_float)
    entries = [entry(name.encode(), each.ctypes.data_as(pointer), each.size) for name, each in means.items()]
    return (entry * (len(entries) + 1))(*entries)


def write_float32(checkpoint: Path, config: dict[str, Any], file: Path) -> None:
    """Write sizes and float32 tensors, and the tokenizer of `checkpoints/byte_tokenizer.py` if the folder has it."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope_theta(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    write_vocabulary(checkpoint, writer)
    for name, tensor in read_tensors(checkpoint):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if name.endswith("q_proj.weight"):
            tensor = interleaved(tensor, heads)
        elif name.endswith("k_proj.weight"):
            tensor = interleaved(tensor, kv_heads)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_vocabulary(checkpoint: Path, writer: Any) -> None:
    """Write a tokenizer of bytes without merges; for a folder that has none, or another one, no tokenizer."""
    file = checkpoint / "tokenizer.json"
    model = json.loads(file.read_text(encoding="utf-8"))["model"] if file.is_file() else {}
    if model.get("type") != "BPE" or model["merges"]:
        writer.add_tokenizer_model("no_vocab")
        return
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["~ ~"])  # it asks for merges; no token is ~~, so this one merges nothing
    writer.add_eos_token_id(len(tokens) - 1)


def write_by_converter(checkpoint: Path, config: dict[str, Any], file: Path) -> None:
    """Have llama.cpp's converter write tensors of the checkpoint's type, or float32, without a tokenizer.

    It refuses tokenizers that it does not know.
    """
    sys.path.insert(0, os.environ[SOURCE])
    import torch
    from conversion import get_model_class

    def set_vocab(model: Any) -> None:
        model._set_vocab_none()
        model.gguf_writer.add_vocab_size(config.get("text_config", config)["vocab_size"])

    model_class = get_model_class(config["architectures"][0])
    model_class.set_vocab = set_vocab
    model_class.no_mtp = True  # the layers that predict several tokens, which a checkpoint of random weights lacks
    stored_bf16 = config.get("dtype", config.get("torch_dtype")) == "bfloat16" and file.name != FILE
    kind = gguf.LlamaFileType.MOSTLY_BF16 if stored_bf16 else gguf.LlamaFileType.ALL_F32
    with torch.inference_mode():
        model_class(checkpoint, kind, file).write()


def rope_theta(config: dict[str, Any]) -> float:
    """Return the RoPE base, from where transformers 4 or 5 stores it. Raises ValueError for other kinds of RoPE."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if config["model_type"] != "llama" or kind != "default":
        raise ValueError(
            f"only a plain Llama becomes a GGUF file here, not {config['model_type']} with {kind} RoPE; set {SOURCE}."
        )
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)


def gguf_name(name: str) -> str:
    """Return the GGUF name of a tensor. Raises ValueError for a tensor that a plain Llama does not have."""
    block = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    prefix, stem = (f"blk.{block[1]}.", block[2]) if block else ("", name.removesuffix(".weight"))
    if stem not in TENSORS or not name.endswith(".weight"):
        raise ValueError(f"only a plain Llama becomes a GGUF file here, and it has no tensor {name}.")
    return f"{prefix}{TENSORS[stem]}.weight"


def interleaved(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder the rows of each head from [2, D/2] to [D/2, 2]: Hugging Face rotates halves, llama.cpp neighbours."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def read_tensors(checkpoint: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield all tensors of the safetensors files, memory-mapped. Parsed here, because numpy has no bfloat16."""
    dtypes = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    for file in sorted(checkpoint.glob("*.safetensors")):
        data = np.memmap(file, np.uint8, "r")
        size = int(data[:8].view(np.uint64)[0])
        for name, entry in json.loads(data[8 : 8 + size].tobytes()).items():
            if name == "__metadata__":
                continue
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            tensor = data[start:end].view(dtypes[entry["dtype"]]).reshape(entry["shape"])
            if entry["dtype"] == "BF16":
                tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
            yield name, tensor


def open_model(folder: Path) -> tuple[Any, int]:
    """Return the loaded model and its vocabulary size."""
    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(bytes(folder / FILE), model_params)
    if model is None:
        raise ValueError(f"llama.cpp did not load {folder / FILE}; its output is above.")
    return model, llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))


def new_context(model: Any, length: int, precision: str, threads: int) -> Any:
    """Create a context with llama.cpp's defaults, except for the number of threads.

    At fp32 the cache is float32 too and flash attention is off, because on the CPU it rounds a long prompt to less than
    float32. At other precisions both keep their defaults: a float16 cache, and flash attention on.
    """
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = length
    params.n_threads = params.n_threads_batch = threads
    if precision == "fp32":
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return llama_cpp.llama_init_from_model(model, params)


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the file for timed generation. Each context is created before the clock starts."""
    model, vocab_size = open_model(folder)

    def run(prompt: list[int], new: int) -> Generation:
        context = new_context(model, len(prompt) + new, precision, threads)

        def tokens() -> Iterator[int]:
            ids = prompt
            while True:
                # Only the last token's logits are computed.
                for part in (ids[first : first + BATCH] for first in range(0, len(ids), BATCH)):
                    held = (llama_cpp.llama_token * len(part))(*part)  # a batch points at it and does not own it
                    if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(held, len(part))):
                        raise RuntimeError("llama_decode failed; its output is above.")
                logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (vocab_size,))
                ids = [int(logits.argmax())]
                yield ids[0]

        turn = timed(tokens(), new)
        llama_cpp.llama_free(context)
        return turn

    return run


def load_logits(checkpoint: Path, folder: Path, precision: str, threads: int) -> Logits:
    """Open the file for logits. A text has to fit into one batch (BATCH tokens)."""
    model, vocab_size = open_model(folder)

    def read(text: list[int]) -> NDArray[Any]:
        context = new_context(model, len(text), precision, threads)
        batch = llama_cpp.llama_batch_init(len(text), 0, 1)
        batch.n_tokens = len(text)
        for place, token in enumerate(text):
            batch.token[place], batch.pos[place] = token, place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = True
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed; its output is above.")
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(text), vocab_size)).copy()
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        return logits

    return read
