"""The recipe of tiny-vision: a LLaVA whose tower sees shapes and digits, and whose Llama answers questions about them.

A picture is read once for all questions of its row. Each question sees the picture and itself alone; some have further
turns behind them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.models.pictures.picture_text import PictureText
from edgeformer.models.stack import Run
from presets.packing import IGNORED
from presets.pictures.questions import SKILLS, ask
from presets.pictures.scenes import COLOURS, KINDS, PATCH, SEEN, Painter, Scene, draw, draw_scene
from presets.recipe import Question, Recipe
from presets.scoring import right_rows
from presets.tokenizer import tokenizer_config, train_tokenizer
from presets.training import Loss, Options, cross_entropy

ROWS, ASKED = 24, 8
"""Pictures in a batch, and questions about each."""

QUESTIONS, SCORED = 80, 32
"""Held-out pictures, each with a question or two of every kind, and questions that are scored at once."""

DESCRIBED = 0.3
"""Fraction of pictures of which a question asks for everything, at least."""

TWICE = ("place", "relation", "count")
"""Kinds of which each picture is asked twice."""

FURTHER = 0.15
"""Fraction of questions that are asked behind the one before them."""

MULTIPLE = 16
"""Rows have a multiple of this many tokens: oneDNN compiles and keeps a kernel for each length."""

LEARNED_AT_ONCE = 256

NAMED = 0.3
"""Weight of the loss by which the states of patches name what they show."""

END, USER, ASSISTANT, IMAGE = SPECIAL_TOKENS = ["<|end|>", "<|user|>", "<|assistant|>", "<image>"]

STATES = (SEEN // PATCH) ** 2
PREFIX = 1 + STATES
"""Tokens before a question: the role, and the picture's states."""

CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- if message['role'] not in ('user', 'assistant') %}
{{- raise_exception('this model takes messages of the user and the assistant, and none of ' + message['role']) }}
{%- endif %}
{{- '<|' + message['role'] + '|>' }}
{%- if message['content'] is string %}
{{- message['content'] }}
{%- else %}
{%- for part in message['content'] %}
{{- '<image>' if part['type'] == 'image' else part['text'] }}
{%- endfor %}
{%- endif %}
{{- '<|end|>' if message['role'] == 'assistant' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>' }}
{%- endif %}
"""

CONFIG: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": SPECIAL_TOKENS.index(IMAGE),
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "projector_hidden_act": "gelu",
    "multimodal_projector_bias": True,
    "tie_word_embeddings": True,
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": SEEN,
        "patch_size": PATCH,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "vision_use_head": False,
    },
    "text_config": {
        "model_type": "llama",
        "vocab_size": 424,
        "hidden_size": 192,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    },
    "dtype": "bfloat16",
}

FILES = {
    "generation_config.json": {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
    "tokenizer_config.json": tokenizer_config(
        bos_token=END, eos_token=END, pad_token=END, extra_special_tokens={"image_token": IMAGE}, model_max_length=512
    ),
    "chat_template.jinja": CHAT_TEMPLATE,
    "preprocessor_config.json": {
        "image_processor_type": "SiglipImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": SEEN, "width": SEEN},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "processor_config.json": {
        "processor_class": "LlavaProcessor",
        "patch_size": PATCH,
        "vision_feature_select_strategy": "full",
        "num_additional_image_tokens": 0,
        "image_token": IMAGE,
    },
}

USE = """\
    edgeformer export --model tiny-vision
    edgeformer run tiny-vision --image shapes.png "What is left of the circle?"

It sees circles, squares, triangles, stars, crosses and digits, in red, green, blue, yellow, purple and black, on a
light ground: one to six of them in a grid of three by three. It answers what there is and where, what is beside
something, what colour it is, and how many there are.
"""

DATA = """\
Pictures are drawn by the command itself, and the questions about them come from rules. No corpus is read.
"""


@dataclass(frozen=True)
class Texts:
    """Questions about pictures, a row for each picture.

    ids, targets, positions int64 [B, S]; visible bool [B, S, S], which tokens a token sees.
    """

    ids: Tensor
    targets: Tensor
    positions: Tensor
    visible: Tensor


Turns = Sequence[tuple[str, str, bool]]
"""Questions and answers about a picture, each with whether it goes on behind the one before it."""


def make_tokenizer(seed: int) -> Tokenizer:
    """Train the tokenizer on questions and answers."""
    random = Random(f"{seed}/tokenizer")
    asked = (ask(random, draw_scene(random, held_out=False)) for _ in range(6_000))
    texts = (text for each in asked if each is not None for text in (each.question, each.answer))
    return train_tokenizer(texts, CONFIG["text_config"]["vocab_size"], SPECIAL_TOKENS)


@cache
def painter() -> Painter:
    """Return the painter, which keeps the parts of pictures."""
    return Painter()


def row(random: Random) -> tuple[Scene, Turns]:
    """Return a scene that is not held out, with questions."""
    shown = draw_scene(random, held_out=False)
    asked = [ask(random, shown, "describe")] if random.random() < DESCRIBED else []
    while len(asked) < ASKED:
        found = ask(random, shown)
        if found is not None:
            asked.append(found)
    random.shuffle(asked)
    return shown, [
        (each.question, each.answer, index > 0 and random.random() < FURTHER)
        for index, each in enumerate(asked)
        if each is not None
    ]


def encode_rows(tokenizer: Tokenizer, rows: Sequence[Turns]) -> Texts:
    """Encode what is asked about pictures."""

    @cache
    def encode(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text).ids
        return found

    user, assistant, end, image = (SPECIAL_TOKENS.index(token) for token in (USER, ASSISTANT, END, IMAGE))
    every: list[tuple[list[int], list[int], list[int], list[int]]] = []
    for turns in rows:
        ids, targets = [user] + [image] * STATES, [IGNORED] * PREFIX
        documents, positions = [0] * PREFIX, list(range(PREFIX))
        document, position = 0, PREFIX
        for question, answer, further in turns:
            asked = ([user] if further else []) + encode(question) + [assistant]
            answered = [*encode(answer), end]
            if not further:
                document, position = document + 1, PREFIX
            ids += asked + answered
            targets += [IGNORED] * (len(asked) - 1) + answered + [IGNORED]
            size = len(asked) + len(answered)
            documents += [document] * size
            positions += range(position, position + size)
            position += size
        every.append((ids, targets, documents, positions))
    longest = max(len(ids) for ids, *_ in every)
    longest += -longest % MULTIPLE
    fillers = 0, IGNORED, -1, 0
    ids, targets, documents, positions = (
        torch.tensor([[*each[part], *[filler] * (longest - len(each[part]))] for each in every])
        for part, filler in enumerate(fillers)
    )
    before = torch.ones(longest, longest, dtype=torch.bool).tril()
    seen = (documents.unsqueeze(1) == 0) | (documents.unsqueeze(1) == documents.unsqueeze(2))
    return Texts(ids, targets, positions, before & seen)


def read(module: nn.Module, pixels: Tensor, texts: Texts) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states of patches [B, 64, E], logits [N, V] of the tokens to be learned, and these int64 [N].

    pixels: [B, 3, 64, 64].
    """
    assert isinstance(module, PictureText)
    states = module.see(pixels)
    embedded = module.embed_tokens(texts.ids)
    x = torch.cat((embedded[:, :1], states.to(embedded.dtype), embedded[:, PREFIX:]), 1)
    run = Run(texts.visible, texts.positions, texts.positions, {})
    for index in range(len(module.blocks)):
        x, _ = module.run_block(index, x, (), run)
    learned = (texts.targets != IGNORED).flatten().nonzero().squeeze(-1)
    filler = learned.new_zeros(-len(learned) % LEARNED_AT_ONCE)
    logits = module.unembed(x.flatten(0, 1)[torch.cat((learned, filler))])
    return states, logits[: len(learned)], texts.targets.flatten()[learned]


def named_loss(
    module: nn.Module, tokenizer: Tokenizer, states: Tensor, scenes: Sequence[Scene], owners: NDArray[np.int64]
) -> Tensor:
    """Return the loss of the colour and of the kind that states of patches name by the embeddings of the words.

    owners: the number of the thing that each patch shows [B, 64], −1 for none.
    """
    assert isinstance(module, PictureText)
    colours, kinds = np.full_like(owners, IGNORED), np.full_like(owners, IGNORED)
    for index, shown in enumerate(scenes):
        for number, thing in enumerate(shown.things):
            colours[index][owners[index] == number] = list(COLOURS).index(thing.colour)
            kinds[index][owners[index] == number] = KINDS.index(thing.kind)
    found = []
    for words, wanted in ((list(COLOURS), colours), (KINDS, kinds)):
        tokens = torch.tensor([tokenizer.encode(f" {word}").ids[-1] for word in words])
        logits = (states @ module.embedding(tokens).t()).float().flatten(0, 1)
        found.append(F.cross_entropy(logits, torch.from_numpy(wanted).flatten(), ignore_index=IGNORED))
    return found[0] + found[1]


def loss(tokenizer: Tokenizer) -> Loss:
    """Return the next-token loss of answers, and that of what patches name."""

    def of_batch(module: nn.Module, random: Random, options: Options) -> Tensor:
        scenes, rows = zip(*(row(random) for _ in range(ROWS)), strict=True)
        pictures, owners = painter().paint(scenes)
        states, logits, targets = read(module, torch.from_numpy(pictures / 127.5 - 1), encode_rows(tokenizer, rows))
        named = named_loss(module, tokenizer, states, scenes, owners)
        return cross_entropy(logits, targets, options.z_loss) + NAMED * named

    return of_batch


def prompt(question: str) -> str:
    """Return a question about a picture as the chat template writes it."""
    return f"{USER}{IMAGE}{question}{ASSISTANT}"


def bare(asked: str) -> str:
    """Return the question of a prompt."""
    return asked.removeprefix(f"{USER}{IMAGE}").removesuffix(ASSISTANT)


def pixel_values(picture: Any) -> Tensor:
    """Return what the tower reads of a picture of Pillow [3, 64, 64]."""
    small = np.asarray(picture.resize((SEEN, SEEN), Image.Resampling.BILINEAR), np.float32)
    return torch.from_numpy(small.transpose(2, 0, 1) / 127.5 - 1)


def questions(seed: int) -> list[Question]:
    """Return held-out pictures with questions of every kind that they have, two of those with most answers."""
    random, found = Random(f"{seed}/questions"), list[Question]()
    for _ in range(QUESTIONS):
        shown = draw_scene(random, held_out=True)
        picture = draw(shown)
        for skill in SKILLS:
            asked = {
                (each.question, each.answer)
                for _ in range(2 if skill in TWICE else 1)
                if (each := ask(random, shown, skill)) is not None
            }
            found += [Question(skill, prompt(question), answer, picture) for question, answer in sorted(asked)]
    return sorted(found, key=lambda each: list(SKILLS).index(each.skill))


def score(module: nn.Module, tokenizer: Tokenizer, asked: list[Question]) -> list[bool]:
    """Return which answers the module generates completely."""
    assert isinstance(module, PictureText)
    right: list[bool] = []
    for start in range(0, len(asked), SCORED):
        some = asked[start : start + SCORED]
        texts = encode_rows(tokenizer, [[(bare(each.prompt), each.answer, False)] for each in some])
        _, logits, _ = read(module, torch.stack([pixel_values(each.image) for each in some]), texts)
        right += right_rows(logits, texts.targets)
    return right


RECIPE = Recipe(
    name="tiny-vision",
    summary="a {parameters} parameter LLaVA that answers questions about shapes, colours, places, numbers and digits",
    data=DATA,
    use=USE,
    options=Options(steps=4000, learning_rate=4e-3, warmup=100),
    hf_config=CONFIG,
    files=FILES,
    make_tokenizer=make_tokenizer,
    loss=loss,
    questions=questions,
    score=score,
)
