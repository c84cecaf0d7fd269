"""Time llama.cpp's first token behind a picture, by its library for pictures (mtmd) as llama-cpp-python binds it.

    python llama_cpp_run.py FOLDER PICTURE.npy THREADS

FOLDER has text.gguf and mmproj.gguf, as convert_llama_cpp.py writes them, and prompt.txt: a prompt with {picture} and
{question}. The text model becomes Q4_0 in text-q4_0.gguf. The library keeps no features of a picture, so another
question costs as much as the first.
"""

import ctypes
import json
import resource
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp as mtmd

CONTEXT, BATCH = 8192, 2048

folder, picture, threads = Path(sys.argv[1]), np.load(sys.argv[2]), int(sys.argv[3])


@llama_cpp.llama_log_callback
def silent(level: int, text: bytes, data: object) -> None:
    """Print nothing."""


quantized = folder / "text-q4_0.gguf"
llama_cpp.llama_log_set(silent, None)
if not quantized.is_file():
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    if llama_cpp.llama_model_quantize(bytes(folder / "text.gguf"), bytes(quantized), ctypes.byref(params)):
        sys.exit("llama.cpp did not quantize the text model.")
model = llama_cpp.llama_model_load_from_file(bytes(quantized), llama_cpp.llama_model_default_params())
options = llama_cpp.llama_context_default_params()
options.n_ctx, options.n_batch, options.n_threads, options.n_threads_batch = CONTEXT, BATCH, threads, threads
context = llama_cpp.llama_init_from_model(model, options)
seeing = mtmd.mtmd_context_params_default()
seeing.use_gpu, seeing.n_threads, seeing.print_timings = False, threads, False
eyes = mtmd.mtmd_init_from_file(bytes(folder / "mmproj.gguf"), model, seeing)
if not eyes:
    sys.exit("llama.cpp does not open mmproj.gguf.")
marker = mtmd.mtmd_get_marker(eyes).decode()
prompt = (folder / "prompt.txt").read_text(encoding="utf-8")


def ask(shown: np.ndarray) -> tuple[float, int]:
    """Return the seconds to the first token of an answer, and the tokens of the prompt."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    start = time.perf_counter()
    height, width, _ = shown.shape
    pixels = np.ascontiguousarray(shown, np.uint8).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    bitmap = mtmd.mtmd_bitmap_init(width, height, pixels)
    text = mtmd.mtmd_input_text()
    text.text = prompt.format(picture=marker, question="What is in the picture?").encode()
    text.text_len, text.add_special, text.parse_special = len(text.text), False, True
    chunks = mtmd.mtmd_input_chunks_init()
    if mtmd.mtmd_tokenize(eyes, chunks, ctypes.byref(text), (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap), 1):
        sys.exit("llama.cpp does not read the prompt.")
    past = llama_cpp.llama_pos(0)
    if mtmd.mtmd_helper_eval_chunks(eyes, context, chunks, 0, 0, BATCH, True, ctypes.byref(past)):
        sys.exit("llama.cpp does not run the prompt.")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (vocabulary,)).argmax()
    seconds, count = time.perf_counter() - start, mtmd.mtmd_input_chunks_size(chunks)
    pieces = (mtmd.mtmd_input_chunks_get(chunks, each) for each in range(count))
    tokens = sum(mtmd.mtmd_input_chunk_get_n_tokens(piece) for piece in pieces)
    mtmd.mtmd_bitmap_free(bitmap)
    mtmd.mtmd_input_chunks_free(chunks)
    return seconds, tokens


ask(picture)
first, tokens = ask(picture)
second, _ = ask(picture)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(json.dumps({"first": first, "second": second, "tokens": tokens, "peak_mib": peak}))
