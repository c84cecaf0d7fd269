"""Write a checkpoint that sees as llama.cpp reads it: text.gguf, mmproj.gguf and prompt.txt, by its own converter.

    PYTHONPATH=llama.cpp:llama.cpp/gguf-py python convert_llama_cpp.py CHECKPOINT FOLDER [F16|Q8_0]

The converter is in llama.cpp's source, which the source distribution of llama-cpp-python has in vendor/llama.cpp.
The tower is in float16, as its converter does by default, or in Q8_0. The tokens are those of the checkpoint's
tokenizer, without merges, which timing does not need.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import torch
from conversion import get_model_class

TEXTS = {
    "SmolVLMForConditionalGeneration": (
        "LlamaForCausalLM", "smollm", "<|im_start|>User:{picture}{question}<end_of_utterance>\nAssistant:",
    ),
    "Lfm2VlForConditionalGeneration": (
        "Lfm2ForCausalLM", "lfm2",
        "<|startoftext|><|im_start|>user\n{picture}{question}<|im_end|>\n<|im_start|>assistant\n",
    ),
    "Qwen3VLForConditionalGeneration": (
        "Qwen3VLForConditionalGeneration", "qwen2",
        "<|im_start|>user\n{picture}{question}<|im_end|>\n<|im_start|>assistant\n",
    ),
}  # fmt: skip
"""Class of the text model, way to cut texts, and prompt, by the class of the whole model."""

LINES = ("Ċ" * 2, "Ċ" * 3)
"""Ends of lines that llama.cpp looks up as one token each."""

checkpoint, folder = Path(sys.argv[1]), Path(sys.argv[2])
kind = sys.argv[3] if len(sys.argv) > 3 else "F16"
architecture = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["architectures"][0]
tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
text_class, words, prompt = TEXTS[architecture]


def set_vocab(model: Any) -> None:
    """Write the tokens of the checkpoint; the last ones, which mean nothing, are ends of lines."""
    vocabulary = tokenizer["model"]["vocab"]
    special = {each["content"] for each in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    tokens[-len(LINES) :] = LINES
    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    types = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    writer.add_token_types(types)
    writer.add_token_merges(["~ ~"])  # it asks for merges; no token is ~~


folder.mkdir(parents=True, exist_ok=True)
with torch.inference_mode():
    text = get_model_class(text_class)
    text.set_vocab = set_vocab
    text(checkpoint, gguf.LlamaFileType.MOSTLY_BF16, folder / "text.gguf").write()
    tower = get_model_class(architecture, mmproj=True)
    tower(checkpoint, getattr(gguf.LlamaFileType, f"MOSTLY_{kind}"), folder / "mmproj.gguf").write()
(folder / "prompt.txt").write_text(prompt, encoding="utf-8")
