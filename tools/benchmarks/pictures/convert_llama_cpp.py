"""Write a checkpoint that sees as llama.cpp reads it: text.gguf, mmproj.gguf and prompt.txt, by its own converter.

    PYTHONPATH=llama.cpp:llama.cpp/gguf-py python convert_llama_cpp.py CHECKPOINT FOLDER [F16|Q8_0]

The converter is in llama.cpp's source, which the source distribution of llama-cpp-python has in vendor/llama.cpp.
The tower is in float16, as its converter does by default, or in Q8_0. Texts become the tokens that random_vision.py's
tokenizer makes of them, whichever model's geometry it is.
"""

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import torch
from conversion import get_model_class

TEXTS = {
    "SmolVLMForConditionalGeneration": (
        "LlamaForCausalLM", "<|im_start|>User:{picture}{question}<end_of_utterance>\nAssistant:",
    ),
    "Lfm2VlForConditionalGeneration": (
        "Lfm2ForCausalLM", "<|startoftext|><|im_start|>user\n{picture}{question}<|im_end|>\n<|im_start|>assistant\n",
    ),
    "Qwen3VLForConditionalGeneration": (
        "Qwen3VLForConditionalGeneration", "<|im_start|>user\n{picture}{question}<|im_end|>\n<|im_start|>assistant\n",
    ),
    "Gemma3ForConditionalGeneration": (
        "Gemma3ForConditionalGeneration",
        "<bos><start_of_turn>user\n\n\n{picture}\n\n{question}<end_of_turn>\n<start_of_turn>model\n",
    ),
}  # fmt: skip
"""Class of the text model, and prompt, by the class of the whole model."""

WORDS = "smollm"
"""The way to cut texts that random_vision.py's tokenizers have: each digit by itself, the rest as GPT-2."""

TOWER = "vision_tower.vision_model."
"""The beginning of published names of Gemma's tower, where transformers 5 writes `vision_tower.`."""

checkpoint, folder = Path(sys.argv[1]), Path(sys.argv[2])
kind = sys.argv[3] if len(sys.argv) > 3 else "F16"
architecture = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["architectures"][0]
tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
text_class, prompt = TEXTS[architecture]


def set_vocab(model: Any) -> None:
    """Write the tokens and the merges of the checkpoint."""
    vocabulary = tokenizer["model"]["vocab"]
    special = {each["content"] for each in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(WORDS)
    writer.add_token_list(tokens)
    types = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])


def published(converter: Any) -> Any:
    """Return a converter that is told the published names of tensors."""
    read, rename = converter.filter_tensors, partial(re.sub, r"^vision_tower\.(?!vision_model\.)", TOWER)
    converter.filter_tensors = staticmethod(lambda item: read((rename(item[0]), item[1])))
    return converter


folder.mkdir(parents=True, exist_ok=True)
with torch.inference_mode():
    text = get_model_class(text_class)
    text.set_vocab = set_vocab
    text(checkpoint, gguf.LlamaFileType.MOSTLY_BF16, folder / "text.gguf").write()
    tower = published(get_model_class(architecture, mmproj=True))
    tower(checkpoint, getattr(gguf.LlamaFileType, f"MOSTLY_{kind}"), folder / "mmproj.gguf").write()
(folder / "prompt.txt").write_text(prompt, encoding="utf-8")
