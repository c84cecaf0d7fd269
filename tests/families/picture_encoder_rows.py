"""The models that encoders of pictures and text are tested with: random ones of transformers' classes.

MODELS[name] holds the class and options of a ModernVBERT. `save` writes one with the tokenizer of
`picture_text_rows.py`, which has a mask, too.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import tokenizers
import torch
import transformers
from picture_text_rows import IMAGE, SPECIAL, TOWER, tiles
from tower_models import VOCABULARY, byte_level_tokenizer, randomize, reloaded

MASK = "[MASK]"
MARKED = [*SPECIAL, MASK]
TEXT = {
    "model_type": "modernbert", "vocab_size": VOCABULARY, "hidden_size": 40, "intermediate_size": 56,
    "num_hidden_layers": 4, "num_attention_heads": 5, "max_position_embeddings": 512, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 12,
    "initializer_range": 0.3, "norm_eps": 1e-3,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A random model: its class, fields of its tower, of its text model and of the whole, and of its processor."""

    kind: str
    vision: dict[str, Any] = field(default_factory=dict)
    text: dict[str, Any] = field(default_factory=dict)
    outer: dict[str, Any] = field(default_factory=dict)
    picture: dict[str, Any] = field(default_factory=lambda: tiles(28, 84))


MODELS = {
    "words": Model("ForMaskedLM", outer={"pixel_shuffle_factor": 2}),
    "tied words": Model(
        "ForMaskedLM",
        {"image_size": 30, "patch_size": 5, "hidden_size": 18, "vision_use_head": False},
        {"decoder_bias": False, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "hidden_size": 48,
         "num_attention_heads": 3, "classifier_activation": "silu", "classifier_bias": True},
        {"pixel_shuffle_factor": 3, "tie_word_embeddings": True},
        tiles(30, 60, image_mean=[0.1, 0.5, 0.7], image_std=[0.2, 0.4, 0.9]),
    ),
    "labels": Model(
        "ForSequenceClassification",
        {"num_hidden_layers": 2, "image_size": 28, "patch_size": 7},
        {"num_hidden_layers": 3, "hidden_size": 20, "num_attention_heads": 1, "global_attn_every_n_layers": 2,
         "classifier_pooling": "cls", "classifier_bias": True},
        {"pixel_shuffle_factor": 4, "classifier_pooling": "mean", "id2label": {0: "map", 1: "form", 2: "table"}},
    ),
    "first token": Model(
        "ForSequenceClassification",
        outer={"pixel_shuffle_factor": 1, "num_labels": 1, "classifier_bias": True},
        picture=tiles(28, 56, do_image_splitting=False),
    ),
    "token labels": Model("ForTokenClassification", outer={"pixel_shuffle_factor": 2, "num_labels": 4}),
    "states": Model("Model", text={"local_attention": 6}, outer={"pixel_shuffle_factor": 2}),
}  # fmt: skip


def save(name: str, folder: Any) -> Any:
    """Save a seeded random model with its processor and tokenizer; return transformers' module in float64."""
    row = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    vision = {"model_type": "siglip_vision_model"} | TOWER | row.vision
    options = {"vision_config": vision, "text_config": TEXT | row.text, "image_token_id": IMAGE, **row.outer}
    kind = getattr(transformers, f"ModernVBert{row.kind}")
    model = kind(transformers.ModernVBertConfig(**options))
    randomize(model, ("vision", "connector", "head", "classifier"))
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    transformers.Idefics3ImageProcessorPil(**row.picture).save_pretrained(folder)
    side = vision["image_size"] // vision["patch_size"] // row.outer["pixel_shuffle_factor"]
    file = {"processor_class": "Idefics3Processor", "image_seq_len": side**2}
    (folder / "processor_config.json").write_text(json.dumps(file))
    return reloaded(kind, folder)


def tokenizer() -> Any:
    """Return a tokenizer that begins and ends texts as ModernBERT's does."""
    made = byte_level_tokenizer(MARKED)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", pad_token="<pad>",
        mask_token=MASK, additional_special_tokens=SPECIAL[3:], model_max_length=512,
    )  # fmt: skip
