"""The recipe of tiny-llama: a decoder of the Llama family that counts, sorts, answers questions and tells stories."""

from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from edgeformer.models import Decoder
from presets.corpora.dialogue import CHAT_TEMPLATE, END, SPECIAL_TOKENS, START, STOP
from presets.corpora.dialogue import prompt as chat_prompt
from presets.corpora.mixture import SKILLS, document
from presets.corpora.problem import draw_held_out
from presets.packing import IGNORED, Rows, Tokens, encode, one_a_row, pack
from presets.recipe import Question, Recipe
from presets.scoring import right_rows
from presets.tokenizer import tokenizer_config, train_tokenizer
from presets.training import Loss, Options, cross_entropy

ROW, ROWS = 160, 13
"""Tokens in a row, which the longest document nearly fills, and rows in a batch."""

FILLED = 0.95
"""Fraction of a batch to fill: with more, some documents find no room and start another row."""

LEARNED_AT_ONCE = 256
"""The head computes a multiple of this many tokens: oneDNN compiles and keeps a kernel per number of rows."""

QUESTIONS, SCORED = 200, 32
"""Held-out problems of each skill (where it has as many), and problems that are scored at once."""

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "dtype": "bfloat16",
}

FILES = {
    "generation_config.json": {
        "bos_token_id": 0,
        "eos_token_id": [SPECIAL_TOKENS.index(END), SPECIAL_TOKENS.index(STOP)],
        "pad_token_id": 0,
    },
    "tokenizer_config.json": tokenizer_config(
        bos_token=END, eos_token=END, pad_token=END, model_max_length=CONFIG["max_position_embeddings"]
    ),
    "chat_template.jinja": CHAT_TEMPLATE,
}

USE = """\
    edgeformer export --model tiny-llama
    edgeformer run tiny-llama "Once upon a time" --temperature 0.8 --top-p 0.9
    edgeformer run tiny-llama --chat "What is 345 + 278?"

It knows its own small world and nothing else: stories of one kind, sums and differences of numbers to 999 (differences
that are not negative), numbers to 9999 as words, lists of up to five numbers below 100, dates of 1950 to 2049, days of
the week up to 40 days away, and questions about paragraphs of two to four plain sentences, to be answered in their
order ("Who bought ten apples?" of "Ten apples were bought by Anna.").
"""

DATA = """\
All texts are made from grammars by the command itself: stories (one token in thirteen), and problems with one right
answer as plain texts and as chats with system, user and assistant turns. No corpus is read.
"""


def make_tokenizer(seed: int) -> Tokenizer:
    """Train the tokenizer on documents as the model reads them."""
    random = Random(f"{seed}/tokenizer")
    texts = ("".join(text for text, _ in document(random)) for _ in range(20_000))
    return train_tokenizer(texts, CONFIG["vocab_size"], SPECIAL_TOKENS)


def batch(tokenizer: Tokenizer, random: Random) -> Rows:
    """Return about ROWS rows of documents."""
    documents: list[Tokens] = []
    size = 0
    while size < FILLED * ROWS * ROW:
        documents.append(encode(tokenizer, document(random)))
        size += len(documents[-1].ids)
    return pack(documents, ROW)


def predictions(module: nn.Module, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return logits [N, V] and targets int64 [N] of the tokens to be learned."""
    assert isinstance(module, Decoder)
    x, run = module.embed(rows.ids, rows.documents)
    for index in range(len(module.blocks)):
        x, _ = module.run_block(index, x, (), run)
    learned = (rows.targets != IGNORED).flatten().nonzero().squeeze(-1)
    filler = learned.new_zeros(-len(learned) % LEARNED_AT_ONCE)
    logits = module.unembed(x.flatten(0, 1)[torch.cat((learned, filler))])
    return logits[: len(learned)], rows.targets.flatten()[learned]


def loss(tokenizer: Tokenizer) -> Loss:
    """Return the next-token loss over a batch of packed documents."""

    def of_batch(module: nn.Module, random: Random, options: Options) -> Tensor:
        return cross_entropy(*predictions(module, batch(tokenizer, random)), options.z_loss)

    return of_batch


def questions(seed: int) -> list[Question]:
    """Return held-out problems of every skill, alternately as plain texts and as chats."""
    asked = []
    for skill, (generator, _) in SKILLS.items():
        for number, problem in enumerate(draw_held_out(generator, Random(f"{seed}/{skill}"), QUESTIONS)):
            if problem.plain and number % 2:
                asked.append(Question(skill, *problem.plain))
            else:
                asked.append(Question(skill, chat_prompt(problem.question, problem.system), problem.answer))
    return asked


def score(module: nn.Module, tokenizer: Tokenizer, asked: list[Question]) -> list[bool]:
    """Return which answers the module generates completely."""
    documents = [
        encode(tokenizer, [(each.prompt, False), (each.answer + (STOP if START in each.prompt else END), True)])
        for each in asked
    ]
    right = []
    for start in range(0, len(documents), SCORED):
        rows = one_a_row(documents[start : start + SCORED])
        right += right_rows(predictions(module, rows)[0], rows.targets)
    return right


RECIPE = Recipe(
    name="tiny-llama",
    summary="a {parameters} parameter Llama (GQA, RoPE, SwiGLU, tied head) that adds, sorts, counts and tells stories",
    data=DATA,
    use=USE,
    options=Options(steps=11_000, learning_rate=6e-3),
    hf_config=CONFIG,
    files=FILES,
    make_tokenizer=make_tokenizer,
    loss=loss,
    questions=questions,
    score=score,
)
