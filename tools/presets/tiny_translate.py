"""The recipe of tiny-translate: an encoder-decoder with Marian's layout, between English and French or German.

Tokens have absolute positions (sinusoids). With T5's relative ones, which cross-attention does not have, a model of
this size learned word order slowly: after 3,000 steps it still wrote 1985 for 1958.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tokenizers import Tokenizer, processors
from torch import Tensor, nn

from edgeformer.models import Seq2Seq
from presets.corpora.bilingual_numbers import Meaning, day, number, time_of_day
from presets.corpora.bilingual_sentences import sentence
from presets.corpora.problem import Problem, draw, draw_held_out
from presets.packing import IGNORED, padded
from presets.recipe import Question, Recipe
from presets.scoring import right_rows
from presets.tokenizer import tokenizer_config, train_tokenizer
from presets.training import Loss, Options, cross_entropy

PAIRS, DRAWN = 128, 512
"""Translations in a batch, and translations drawn for it: those of similar length are taken, to save padding."""

QUESTIONS = 250
"""Held-out problems of each skill, where the skill has as many."""

PAD, END = SPECIAL_TOKENS = ["<pad>", "</s>"]

LANGUAGES = {"en": "English", "fr": "French", "de": "German"}
DIRECTIONS = [("en", "fr"), ("fr", "en"), ("en", "de"), ("de", "en")]

SKILLS = {"numbers": (number, 20), "dates": (day, 35), "times": (time_of_day, 10), "sentences": (sentence, 35)}
"""Kinds of texts that are translated, and the weight with which each skill is drawn."""


def prefix(source: str, target: str) -> str:
    """Return the start of a request for a translation."""
    return f"translate {LANGUAGES[source]} to {LANGUAGES[target]}: "


CONFIG: dict[str, Any] = {
    "architectures": ["MarianMTModel"],
    "model_type": "marian",
    "vocab_size": 2048,
    "d_model": 192,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 576,
    "decoder_ffn_dim": 576,
    "activation_function": "gelu",
    "max_position_embeddings": 256,
    "scale_embedding": True,
    "tie_word_embeddings": True,
    "is_encoder_decoder": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "task_specific_params": {f"translation_{a}_to_{b}": {"prefix": prefix(a, b)} for a, b in DIRECTIONS},
    "dtype": "bfloat16",
}

FILES = {
    "generation_config.json": {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
    "tokenizer_config.json": tokenizer_config(
        eos_token=END, pad_token=PAD, model_max_length=CONFIG["max_position_embeddings"]
    ),
}

USE = """\
    edgeformer export --model tiny-translate
    edgeformer run tiny-translate "translate English to French: The old man does not draw the young cat."

It begins every request with `translate English to French:`, `… French to English:`, `… English to German:` or `… German
to English:`, and knows numbers to 9999 in words, dates of 1950 to 2049, times of day in steps of five minutes, and
sentences of one grammar of about a hundred words.
"""

DATA = """\
All texts come from a grammar that writes each meaning in the three languages, made by the command itself. No corpus is
read.
"""


@dataclass(frozen=True)
class Pairs:
    """Padded translations: sources int64 [B, S] and their mask, decoder inputs and targets int64 [B, T]."""

    sources: Tensor
    source_mask: Tensor
    inputs: Tensor
    targets: Tensor


def translation(random: Random, skill: str | None = None) -> Problem:
    """Return a text to translate, of one skill or of any; its key is the meaning, in whichever direction."""
    weights = [weight for _, weight in SKILLS.values()]
    skill = skill or random.choices(list(SKILLS), weights)[0]
    meaning: Meaning = SKILLS[skill][0](random)
    start, goal = random.choice(DIRECTIONS)
    return Problem(skill, meaning["en"], prefix(start, goal) + meaning[start], meaning[goal])


def make_tokenizer(seed: int) -> Tokenizer:
    """Train the tokenizer on what the model reads and writes; it ends every text with the end-of-text token."""
    random = Random(f"{seed}/tokenizer")
    problems = (draw(translation, random, held_out=False) for _ in range(30_000))
    texts = (text for problem in problems for text in (problem.question, problem.answer))
    tokenizer = train_tokenizer(texts, CONFIG["vocab_size"], SPECIAL_TOKENS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    return tokenizer


def pad(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> Pairs:
    """Encode sources and targets; the decoder starts with the padding token."""
    sources, targets = ([tokenizer.encode(text).ids for text in side] for side in zip(*pairs, strict=True))
    inputs = [[0, *target[:-1]] for target in targets]
    return Pairs(padded(sources, 0), padded([[1] * len(source) for source in sources], 0),
                 padded(inputs, 0), padded(targets, IGNORED))  # fmt: skip


def batch(tokenizer: Tokenizer, random: Random) -> Pairs:
    """Return PAIRS translations of similar length."""
    drawn = [draw(translation, random, held_out=False) for _ in range(DRAWN)]
    drawn.sort(key=lambda each: len(each.question))
    start = random.randrange(DRAWN - PAIRS + 1)
    return pad(tokenizer, [(each.question, each.answer) for each in drawn[start : start + PAIRS]])


def predictions(module: nn.Module, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return logits [N, V] and targets int64 [N] of all target tokens except padding."""
    assert isinstance(module, Seq2Seq)
    _, sources = module.encode(pairs.sources, pairs.source_mask)
    decoder, valid = module.decoder, pairs.targets != IGNORED
    x, run = decoder.embed(pairs.inputs, valid.long(), pairs.source_mask)
    for index, source in enumerate(sources):
        x, _ = decoder.run_block(index, x, (), run, source)
    return decoder.unembed(x)[valid], pairs.targets[valid]


def loss(tokenizer: Tokenizer) -> Loss:
    """Return the next-token loss of the translation."""

    def of_batch(module: nn.Module, random: Random, options: Options) -> Tensor:
        return cross_entropy(*predictions(module, batch(tokenizer, random)), options.z_loss)

    return of_batch


def questions(seed: int) -> list[Question]:
    """Return held-out texts of every kind, in all four directions."""
    return [
        Question(problem.skill, problem.question, problem.answer)
        for skill in SKILLS
        for problem in draw_held_out(partial(translation, skill=skill), Random(f"{seed}/{skill}"), QUESTIONS)
    ]


def score(module: nn.Module, tokenizer: Tokenizer, asked: list[Question]) -> list[bool]:
    """Return which translations the module generates completely."""
    right = []
    for start in range(0, len(asked), PAIRS):
        some = pad(tokenizer, [(each.prompt, each.answer) for each in asked[start : start + PAIRS]])
        logits, _ = predictions(module, some)
        right += right_rows(logits, some.targets)
    return right


RECIPE = Recipe(
    name="tiny-translate",
    summary="a {parameters} parameter Marian that translates numbers, dates, times and simple sentences "
    "(English ↔ French, German)",
    data=DATA,
    use=USE,
    options=Options(steps=4000, learning_rate=6e-3),
    hf_config=CONFIG,
    files=FILES,
    make_tokenizer=make_tokenizer,
    loss=loss,
    questions=questions,
    score=score,
)
