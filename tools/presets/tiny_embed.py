"""The recipe of tiny-embed: a BERT that maps texts of the same meaning to vectors of the same direction."""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, processors
from torch import Tensor, nn

from edgeformer.config import EncoderConfig, ModelConfig, PoolingHead
from edgeformer.models import Encoder
from presets.corpora.paraphrases import PATTERNS, pair
from presets.corpora.problem import Problem, draw, draw_held_out
from presets.packing import padded
from presets.recipe import Question, Recipe
from presets.tokenizer import tokenizer_config, train_tokenizer
from presets.training import Loss, Options, cross_entropy

PAIRS = 128
"""Pairs in a batch; each text has to find its partner among all of them."""

SHARPNESS = 20.0
"""Scale of cosines before the softmax, as in sentence-transformers."""

QUESTIONS = 250
"""Held-out pairs of each kind, where the kind has as many."""

PAD, UNKNOWN, FIRST, LAST = SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]

CONFIG: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_act": "gelu",
    "max_position_embeddings": 128,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "dtype": "bfloat16",
}

FILES = {
    "tokenizer_config.json": tokenizer_config(
        pad_token=PAD, unk_token=UNKNOWN, cls_token=FIRST, sep_token=LAST, model_max_length=128
    ),
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {
        "word_embedding_dimension": CONFIG["hidden_size"],
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
    },
    "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False},
}

USE = """\
    edgeformer export --model tiny-embed
    edgeformer embed tiny-embed "Turn on the light in the kitchen." "Switch the kitchen lamp on." "I have a headache."

It knows plain sentences about people, animals, numbers, dates and times, and requests to a home, a shop or a phone.
"""

DATA = """\
Pairs of sentences that mean the same are made from patterns by the command itself; a text learns to be nearer to its
partner than to all others of its batch. No corpus is read.
"""


def make_tokenizer(seed: int) -> Tokenizer:
    """Train the tokenizer on the texts of pairs; it adds the special tokens that BERT's does."""
    random = Random(f"{seed}/tokenizer")
    pairs = (draw(pair, random, held_out=False) for _ in range(20_000))
    texts = (text for each in pairs for text in (each.question, each.answer))
    tokenizer = train_tokenizer(texts, CONFIG["vocab_size"], SPECIAL_TOKENS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A {LAST}", special_tokens=[(FIRST, 2), (LAST, 3)]
    )
    return tokenizer


def pooled(config: ModelConfig) -> ModelConfig:
    """Return the config with the head that modules.json describes."""
    assert isinstance(config, EncoderConfig)
    return replace(config, head=PoolingHead(pooling="mean", normalize=True))


def vectors(module: nn.Module, tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """Return texts as unit vectors [N, E]."""
    assert isinstance(module, Encoder)
    ids = [tokenizer.encode(text).ids for text in texts]
    _, embeddings = module(padded(ids, 0), padded([[1] * len(each) for each in ids], 0))
    assert isinstance(embeddings, Tensor)
    return embeddings


def loss(tokenizer: Tokenizer) -> Loss:
    """Return the loss of choosing each text's partner in the batch, in both directions (InfoNCE, arXiv 1807.03748)."""

    def of_batch(module: nn.Module, random: Random, options: Options) -> Tensor:
        found: dict[str, Problem] = {}
        while len(found) < PAIRS:  # two pairs of one meaning would be correct answers that count as wrong
            drawn = draw(pair, random, held_out=False)
            found.setdefault(drawn.key, drawn)
        pairs = list(found.values())
        both = vectors(module, tokenizer, [each.question for each in pairs] + [each.answer for each in pairs])
        cosines = SHARPNESS * both[:PAIRS].float() @ both[PAIRS:].float().t()
        partners = torch.arange(PAIRS)
        return 0.5 * (
            cross_entropy(cosines, partners, options.z_loss) + cross_entropy(cosines.t(), partners, options.z_loss)
        )

    return of_batch


def questions(seed: int) -> list[Question]:
    """Return held-out pairs: each first text's partner is to be found among all second texts of its kind."""
    return [
        Question(kind, each.question, each.answer)
        for kind in PATTERNS
        for each in draw_held_out(partial(pair, kind=kind), Random(f"{seed}/{kind}"), QUESTIONS)
    ]


def score(module: nn.Module, tokenizer: Tokenizer, asked: list[Question]) -> list[bool]:
    """Return whose partner is the nearest of all second texts of its kind."""
    right: list[bool] = []
    for kind in dict.fromkeys(each.skill for each in asked):
        some = [each for each in asked if each.skill == kind]
        first = vectors(module, tokenizer, [each.prompt for each in some])
        second = vectors(module, tokenizer, [each.answer for each in some])
        right += ((first @ second.t()).argmax(-1) == torch.arange(len(some))).tolist()
    return right


RECIPE = Recipe(
    name="tiny-embed",
    summary="a {parameters} parameter BERT (mean pooling) whose vectors of sentences are near where the meaning is",
    data=DATA,
    use=USE,
    options=Options(steps=1500, learning_rate=2e-3),
    hf_config=CONFIG,
    files=FILES,
    make_tokenizer=make_tokenizer,
    loss=loss,
    questions=questions,
    score=score,
    scored="Texts of the {total:,} held-out pairs of `evaluation.jsonl` whose partner is the nearest of all partners\n"
    "of their kind, in float32.",
    adapt=pooled,
)
