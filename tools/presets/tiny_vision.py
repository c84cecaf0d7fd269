"""The recipe of tiny-vision: an Idefics3 whose tower sees shapes and digits, and whose Llama answers questions.

A picture is cut into 2 × 2 tiles of 2 × 2 cells, and pixel shuffle makes one state of each cell: shape and colour are
in one place, so that "what is left of the circle" looks for one key and not for the patches of one. The tower learns
first, alone: the state of a cell names what is in it. Then all is trained, and the loss has parts by which states in
the text model tell where in the picture they are and where an answer is to be found (`hints`): of answers alone, a
model of this size learned what is beside something hardly at all in 2,000 steps. A picture is read once for all
questions of its row, each of which sees the picture and itself alone.
"""

from collections.abc import Sequence
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
from presets.differentiable import shared_prefix
from presets.packing import IGNORED
from presets.pictures import hints
from presets.pictures.conversations import (
    ASSISTANT,
    END,
    IMAGE,
    SPECIAL_TOKENS,
    STATES,
    USER,
    Turns,
    encode_turns,
    prefix_ids,
)
from presets.pictures.questions import SKILLS, Asked, ask
from presets.pictures.scenes import (
    COLOURS,
    GRID,
    KINDS,
    PATCH,
    SEEN,
    TILE,
    TILE_CELLS,
    Painter,
    Scene,
    cells_by_tile,
    draw,
    draw_scene,
)
from presets.recipe import Question, Recipe
from presets.scoring import right_rows
from presets.tokenizer import tokenizer_config, train_tokenizer
from presets.training import Loss, Options, cross_entropy

ROWS = 16
"""Pictures in a batch."""

SHORT, LONG = 12, 4
"""Questions about each picture of a batch."""

LONG_BATCHES = 0.2
"""Fraction of batches of long questions: of what is in a picture, and of conversations."""

TURNS = 3
"""Questions of a conversation, at most."""

QUESTIONS, SCORED = 80, 32
"""Held-out pictures, each with a question or two of every kind, and questions that are scored at once."""

TWICE = ("place", "relation", "count")
"""Kinds of which each picture is asked twice."""

ALONE, PICTURES = 150, 64
"""Steps in which the tower learns alone, and pictures in each of their batches."""

NAMED = 0.5
"""Weight of the loss by which the states of cells name what they show."""

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
    "architectures": ["Idefics3ForConditionalGeneration"],
    "model_type": "idefics3",
    "image_token_id": SPECIAL_TOKENS.index(IMAGE),
    "scale_factor": TILE // PATCH // TILE_CELLS,
    "tie_word_embeddings": True,
    "vision_config": {
        "model_type": "idefics3_vision",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": TILE,
        "patch_size": PATCH,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
    "text_config": {
        "model_type": "llama",
        "vocab_size": 432,
        "hidden_size": 192,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
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
        "image_processor_type": "Idefics3ImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"longest_edge": SEEN},
        "max_image_size": {"longest_edge": TILE},
        "do_image_splitting": True,
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_pad": True,
    },
    "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": STATES},
}

USE = """\
    edgeformer export --model tiny-vision
    edgeformer run tiny-vision --image shapes.png "What is left of the circle?"

It sees circles, squares, triangles, stars, crosses and digits, in red, green, blue, yellow, purple and black, on a
light ground: one to seven of them in a grid of four by four. It answers what there is and where, what is beside
something, what colour it is, and how many there are.
"""

DATA = """\
Pictures are drawn by the command itself, and the questions about them come from rules. No corpus is read. Every
held-out picture has two things beside each other that no picture of training has, or is of one thing alone.
"""


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


def questions_of_row(random: Random, shown: Scene, *, long: bool) -> list[Turns]:
    """Return conversations about a scene, each of one short question, or such that are long."""
    count = LONG if long else SHORT
    found: list[Turns] = []
    while len(found) < count:
        if long and random.random() < 0.6:
            turns = [ask(random, shown, "describe")]
        else:
            turns = [short(random, shown) for _ in range(random.randint(2, TURNS) if long else 1)]
        found.append([each for each in turns if each is not None])
    return found


def short(random: Random, shown: Scene) -> Asked:
    """Return a question whose answer is short."""
    while True:
        found = ask(random, shown)
        if found is not None and found.skill != "describe":
            return found


def read(
    module: nn.Module, pixels: Tensor, prefix: Tensor, ids: Tensor, seen: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the states of cells and quarters [B, 5 · 4, E], and what the head reads of questions [B, Q, S, E].

    pixels: [B, 5, 3, 64, 64]. prefix: int64 [P], tokens before each question. ids: int64 [B, Q, S]. seen: a list to
    which the states behind every block are appended, [B, P + Q · S, E].
    """
    assert isinstance(module, PictureText)
    batch, asked, length = ids.shape
    size = len(prefix)
    with shared_prefix(size, asked):
        states = module.see(pixels).reshape(batch, -1, module.config.hidden_size)
        image = prefix == SPECIAL_TOKENS.index(IMAGE)
        places = torch.where(image, image.cumsum(0) - 1 + size, torch.arange(size))
        before = module.embed_tokens(prefix.unsqueeze(0)).expand(batch, -1, -1)
        row = torch.cat((before, states), 1)[:, places]
        x = torch.cat((row, module.embed_tokens(ids.flatten(1))), 1)
        positions = torch.cat((torch.arange(size), torch.arange(size, size + length).repeat(asked))).unsqueeze(0)
        run = Run(torch.ones(batch, x.shape[1], dtype=torch.int64), positions, positions, {})
        for index in range(len(module.blocks)):
            x, _ = module.run_block(index, x, (), run)
            if seen is not None:
                seen.append(x)
    return states, x[:, size:].unflatten(1, (asked, length))


def named_loss(module: nn.Module, tokenizer: Tokenizer, states: Tensor, scenes: Sequence[Scene]) -> Tensor:
    """Return the loss of the colour and of the kind that states of cells name by the embeddings of the words.

    states: [B, 20, E]. A cell without a thing names nothing.
    """
    assert isinstance(module, PictureText)
    words = [tokenizer.encode(f" {word}").ids[-1] for word in (*COLOURS, *KINDS, "nothing")]
    spoken = F.normalize(module.embedding(torch.tensor(words)).float(), dim=-1)
    logits = hints.normalized(states[:, : GRID * GRID]) @ spoken.t()  # [B, 16, words]
    colours, kinds = named(scenes)
    found = torch.tensor(0.0)
    for wanted, shown in ((colours, slice(len(COLOURS))), (kinds, slice(len(COLOURS), None))):
        found = found + F.cross_entropy(logits[..., shown].flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
    return found


def named(scenes: Sequence[Scene]) -> tuple[Tensor, Tensor]:
    """Return the numbers of the colours and kinds of cells, int64 [B, 16], in the order of their states."""
    order = {cell: index for index, cell in enumerate(cells_by_tile())}
    colours = np.full((len(scenes), GRID * GRID), IGNORED)
    kinds = np.full((len(scenes), GRID * GRID), len(KINDS))
    for index, shown in enumerate(scenes):
        for thing in shown.things:
            colours[index, order[thing.cell]] = list(COLOURS).index(thing.colour)
            kinds[index, order[thing.cell]] = KINDS.index(thing.kind)
    return torch.from_numpy(colours), torch.from_numpy(kinds)


def normalized(pictures: NDArray[np.float32]) -> Tensor:
    """Return what the tower reads of pixels from 0 to 255."""
    return torch.from_numpy(pictures / np.float32(127.5) - 1)


def names(tokenizer: Tokenizer) -> Loss:
    """Return the loss of what cells name, of pictures without questions."""

    def of_batch(module: nn.Module, random: Random, options: Options) -> Tensor:
        scenes = [draw_scene(random, held_out=False) for _ in range(PICTURES)]
        assert isinstance(module, PictureText)
        with shared_prefix(0, 1):
            states = module.see(normalized(painter().paint(scenes)))
        return named_loss(module, tokenizer, states.reshape(len(scenes), -1, states.shape[-1]), scenes)

    return of_batch


def loss(tokenizer: Tokenizer) -> Loss:
    """Return the next-token loss of answers, that of what cells name, and those of hints."""
    prefix = torch.tensor(prefix_ids(tokenizer))
    words = hints.word_numbers(tokenizer)
    cells = (prefix == SPECIAL_TOKENS.index(IMAGE)).nonzero().flatten()[: GRID * GRID]

    def of_batch(module: nn.Module, random: Random, options: Options) -> Tensor:
        long = random.random() < LONG_BATCHES
        scenes = [draw_scene(random, held_out=False) for _ in range(ROWS)]
        rows = [questions_of_row(random, shown, long=long) for shown in scenes]
        batch, seen = encode_turns(tokenizer, rows), list[Tensor]()
        states, x = read(module, normalized(painter().paint(scenes)), prefix, batch.ids, seen)
        learned = batch.targets != IGNORED
        found = cross_entropy(module.unembed(x[learned]), batch.targets[learned], options.z_loss)  # type: ignore[operator]
        found = found + NAMED * named_loss(module, tokenizer, states, scenes)
        found = found + hints.loss_of_cells([each[:, cells] for each in seen], scenes)
        asked = [each[:, len(prefix) :].unflatten(1, batch.ids.shape[1:]) for each in seen]
        found = found + hints.loss_of_words(asked, words[batch.ids], scenes)
        return found + hints.loss_of_pointers(asked, batch.pointers)

    return of_batch


def prompt(question: str) -> str:
    """Return a question about a picture as the chat template writes it."""
    return f"{USER}{IMAGE}{question}{ASSISTANT}"


def bare(asked: str) -> str:
    """Return the question of a prompt."""
    return asked.removeprefix(f"{USER}{IMAGE}").removesuffix(ASSISTANT)


def pixel_values(picture: Any) -> Tensor:
    """Return what the tower reads of a picture of Pillow [5, 3, 64, 64]."""
    small = picture.resize((SEEN, SEEN), Image.Resampling.BILINEAR)
    corners = [(left, top) for top in range(0, SEEN, TILE) for left in range(0, SEEN, TILE)]
    tiles = [small.crop((left, top, left + TILE, top + TILE)) for left, top in corners]
    every = [*tiles, small.resize((TILE, TILE), Image.Resampling.BILINEAR)]
    return normalized(np.stack([np.asarray(each, np.float32).transpose(2, 0, 1) for each in every]))


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
    prefix, right = torch.tensor(prefix_ids(tokenizer)), list[bool]()
    for start in range(0, len(asked), SCORED):
        some = asked[start : start + SCORED]
        turns = [Asked(each.skill, bare(each.prompt), each.answer, frozenset(), ()) for each in some]
        batch = encode_turns(tokenizer, [[[each]] for each in turns])
        _, x = read(module, torch.stack([pixel_values(each.image) for each in some]), prefix, batch.ids)
        right += right_rows(module.unembed(x[batch.targets != IGNORED]), batch.targets.squeeze(1))
    return right


RECIPE = Recipe(
    name="tiny-vision",
    summary="a {parameters} parameter Idefics3 that answers questions about pictures of shapes and digits",
    data=DATA,
    use=USE,
    options=Options(steps=2300, learning_rate=4e-3, warmup=100, horizon=5000, cooldown=900),
    hf_config=CONFIG,
    files=FILES,
    make_tokenizer=make_tokenizer,
    first=names,
    first_steps=ALONE,
    loss=loss,
    questions=questions,
    score=score,
)
