"""Generate text with a bundle, using onnxruntime, tokenizers and numpy only, without edgeformer.

    pip install onnxruntime tokenizers numpy
    python python_onnxruntime.py BUNDLE "Once upon a time"

With `--ids`, prompt and output are token ids: python python_onnxruntime.py BUNDLE "5 6 7" --ids
"""

import argparse
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}


def generate(bundle: Path, prompt: list[int], new_tokens: int) -> Iterator[int]:
    """Yield the top-1 token of each step until an end-of-text token or the context's end."""
    manifest = json.loads((bundle / "edgeformer.json").read_text(encoding="utf-8"))
    options = ort.SessionOptions()
    if library := os.environ.get("EDGEFORMER_KERNELS_LIBRARY"):
        options.register_custom_ops_library(library)  # edgeformer's own kernels
    session = ort.InferenceSession(
        bundle / manifest["graphs"]["model"]["file"], options, providers=["CPUExecutionProvider"]
    )
    pasts = [tensor for tensor in session.get_inputs() if tensor.name.startswith("past_")]
    presents = [re.sub("^past(_key_values)?", "present", past.name) for past in pasts]
    end = min(len(prompt) + new_tokens, manifest["context_length"])
    # One buffer is both past and present of a layer: each step writes its keys and values in place, without a copy.
    # Some graphs have a dynamic cache instead (op sets `standard` and `portable`), which starts empty.
    dynamic = manifest["plan"]["cache_form"] == "dynamic"
    binding = session.io_binding()
    binding.bind_output("logits")
    held = []  # up to 1.29, onnxruntime's bindings do not keep buffers alive
    for past, present in zip(pasts, presents, strict=True):
        if past.type not in DTYPES:  # bfloat16 and float8
            raise SystemExit(f"{past.name} is a {past.type}, of a bundle for a GPU; this example runs on the CPU.")
        # All sizes but the number of tokens are numbers; states of fixed size have only these.
        sizes = [(0 if dynamic else end) if isinstance(size, str) else size for size in past.shape[1:]]
        cache = np.zeros((1, *sizes), DTYPES[past.type])
        buffer = ort.OrtValue.ortvalue_from_numpy(cache)
        held.append(buffer)
        binding.bind_ortvalue_input(past.name, buffer)
        if not dynamic:
            binding.bind_ortvalue_output(present, buffer)

    step = prompt
    for length in range(len(prompt), end):
        binding.bind_cpu_input("input_ids", np.array([step], np.int64))
        binding.bind_cpu_input("attention_mask", np.ones((1, length), np.int64))  # 1 for every token so far
        for name in ("logits", *presents) if dynamic else ("logits",):
            binding.bind_output(name)  # again, because its shape changes
        session.run_with_iobinding(binding)
        logits, *caches = binding.get_outputs()
        if dynamic:
            for past, cache in zip(pasts, caches, strict=True):
                binding.bind_ortvalue_input(past.name, cache)
        token = int(logits.numpy()[0, -1].argmax())
        if token in manifest["tokens"]["eos"]:
            return
        yield token
        step = [token]


def main() -> None:
    """Print the text while it is generated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("prompt")
    parser.add_argument("--ids", action="store_true")
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    if args.ids:
        print(*generate(args.bundle, [int(word) for word in args.prompt.split()], args.new_tokens))
        return
    tokenizer = Tokenizer.from_file(str(args.bundle / "tokenizer.json"))
    tokens, shown = tokenizer.encode(args.prompt).ids, 0
    for token in generate(args.bundle, tokens, args.new_tokens):
        tokens.append(token)
        # Decode from the start: a character can take several tokens, and spaces can depend on the token before.
        text = tokenizer.decode(tokens)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            print(text[shown:], end="", flush=True)
            shown = len(text)
    print()


if __name__ == "__main__":
    main()
