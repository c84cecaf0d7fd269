"""The dual encoders that are tested: random models of transformers' classes, with a tokenizer and an image processor.

DUAL[model_type] holds the options of each model.
"""

from types import SimpleNamespace

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import normalizers, pre_tokenizers, processors
from vision_rows import BUDGET, CLIP, CROPPED, MLP, NAFLEX, SHAPES, SIGLIP, SIGLIP2, SQUARE, inputs_of

from edgeformer.transformers_backend.float64 import computing_in_float64

WORDS = (
    "a", "photo", "of", "this", "is", "cat", "dog", "cats", "dogs", "two", "at", "the", "sea", "red", "blue", "text",
    "very", "long", "and", "one",
)  # fmt: skip
START, END, UNKNOWN, PADDING = 3, 4, 5, 6
VOCABULARY = {
    "<start>": START, "<end>": END, "<unknown>": UNKNOWN, "<padding>": PADDING,
    **{word: PADDING + 1 + number for number, word in enumerate(WORDS)},
}  # fmt: skip
"""Ids from 3 on, so that none is the end token 2 of old configs."""

HIGH = {"<start>": 58, "<end>": 59, "<padding>": 3}
"""Ids of a vocabulary whose end token has the largest id, as that of CLIP."""

TEXT = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 60,
    "max_position_embeddings": 14, "bos_token_id": START, "eos_token_id": END, "pad_token_id": PADDING,
}  # fmt: skip

TEXTS = ("a photo of a cat", "Two dogs at the sea", "red", "a very long text and one very long text and two very long")

DUAL = {
    "clip": {
        "end": {"text_config": TEXT, "vision_config": MLP, "projection_dim": 12},
        "old end": {"text_config": TEXT | {"eos_token_id": 2}, "vision_config": MLP, "projection_dim": 8},
        "gelu": {
            "text_config": TEXT | {"hidden_act": "gelu", "num_attention_heads": 2, "layer_norm_eps": 1e-2},
            "vision_config": MLP | {"patch_size": 16, "hidden_act": "gelu"}, "projection_dim": 12,
        },
    },
    "siglip": {
        "both": {"text_config": TEXT | {"projection_size": 32}, "vision_config": MLP},
        "two heads": {
            "text_config": TEXT | {"hidden_size": 32, "num_attention_heads": 2},
            "vision_config": MLP | {"num_attention_heads": 2},
        },
        "gelu": {
            "text_config": TEXT | {"projection_size": 32, "hidden_act": "gelu", "layer_norm_eps": 1e-2},
            "vision_config": MLP | {"patch_size": 16},
        },
    },
    "siglip2": {
        "both": {"text_config": TEXT | {"projection_size": 32}, "vision_config": NAFLEX},
        "two heads": {
            "text_config": TEXT | {"hidden_size": 32, "num_attention_heads": 2},
            "vision_config": NAFLEX | {"num_attention_heads": 2, "num_patches": 49},
        },
        "gelu": {
            "text_config": TEXT | {"projection_size": 32, "hidden_act": "gelu", "layer_norm_eps": 1e-2},
            "vision_config": NAFLEX | {"num_patches": 9, "hidden_act": "gelu"},
        },
    },
}  # fmt: skip
CLASSES = {
    "clip": transformers.CLIPModel, "siglip": transformers.SiglipModel, "siglip2": transformers.Siglip2Model,
}  # fmt: skip
PROCESSORS = {
    "clip": lambda: CLIP(**CROPPED), "siglip": lambda: SIGLIP(**SQUARE), "siglip2": lambda: SIGLIP2(**BUDGET),
}  # fmt: skip


MERGES = [("▁", "d"), ("c", "a"), ("ca", "t"), ("▁d", "o"), ("▁do", "g"), ("o", "f"), ("t", "w"), ("tw", "o")]
"""Merges of pieces, which spaces precede."""


def make_pieces(name):
    """Return a tokenizer of pieces as Gemma has it, in lower case and with an end token."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["▁", *letters, *("".join(pair) for pair in MERGES)]
    vocabulary = {"<pad>": PADDING, "<eos>": END, "<bos>": START, "<unk>": UNKNOWN, "<mask>": 7}
    vocabulary |= {piece: 8 + number for number, piece in enumerate(pieces)}
    return transformers.Siglip2Tokenizer(
        vocab=vocabulary, merges=MERGES, add_bos_token=False, add_eos_token=True, model_input_names=["input_ids"],
        model_max_length=TEXT["max_position_embeddings"], padding_side="left" if name == "two heads" else "right",
    )  # fmt: skip


def make_tokenizer(family, name):
    """Return a tokenizer of whole words, which adds the tokens that the family's adds."""
    if family == "siglip2":
        return make_pieces(name)
    vocabulary = VOCABULARY | (HIGH if name == "old end" else {})
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    around, used = ("<start> $A <end>", ("<start>", "<end>")) if family == "clip" else ("$A <end>", ("<end>",))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=around, special_tokens=[(each, vocabulary[each]) for each in used]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<start>", eos_token="<end>", unk_token="<unknown>",
        pad_token="<padding>", model_max_length=TEXT["max_position_embeddings"],
        padding_side="left" if name == "two heads" else "right",
    )  # fmt: skip


def make_dual(family, name, folder):
    """Save a seeded random model with its tokenizer and processor, and run it on three pictures and four texts."""
    kind, options = CLASSES[family], DUAL[family][name]
    torch.manual_seed(list(DUAL).index(family) * 10 + list(DUAL[family]).index(name))
    model = kind(transformers.CONFIG_MAPPING[family](**options)).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() <= 1 or "norm" in parameter_name or "embed" in parameter_name:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
    model.save_pretrained(folder)
    tokenizer = make_tokenizer(family, name)
    tokenizer.save_pretrained(folder)
    processor = PROCESSORS[family]()
    processor.save_pretrained(folder)
    pictures = [np.random.default_rng(seed).integers(0, 256, (*SHAPES[seed], 3), np.uint8) for seed in range(3)]
    padding = True if family == "clip" else "max_length"
    length = TEXT["max_position_embeddings"]
    ids = tokenizer(list(TEXTS), padding=padding, truncation=True, max_length=length, return_tensors="pt")["input_ids"]
    inputs = {"input_ids": ids} | inputs_of(processor, pictures)
    model = kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    with torch.no_grad(), computing_in_float64():  # SigLIP 2 interpolates positions in float32
        found = model(**inputs)
    names = ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")
    expected = {each: found[each].numpy() for each in names}
    return SimpleNamespace(folder=folder, pictures=pictures, inputs=inputs, expected=expected)
