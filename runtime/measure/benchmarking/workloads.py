"""Plan requests for a model of any task, and time them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np

from edgeformer.config import ModelConfig
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import MODELS, Manifest
from edgeformer.manifest.providers import ProviderChoice
from edgeformer.runtime import request_values
from edgeformer.runtime.generation.generate import start_rows
from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.sampling.sampling import Sampling
from edgeformer.runtime.generation.scheduling import Beginnings
from edgeformer.runtime.media.sound.audio import SAMPLE_RATE
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.runner import StepRunner
from edgeformer.runtime.tasks.causal_lm import CausalLM
from edgeformer.runtime.tasks.encoders.encoder import Encoder
from edgeformer.runtime.tasks.loading import load
from edgeformer.runtime.tasks.model import Model
from edgeformer.runtime.tasks.seq2seq import Seq2SeqLM
from edgeformer.runtime.tasks.speech.prompt import window_seconds
from edgeformer.runtime.tasks.vision.picture_reader import PictureReader
from edgeformer.runtime.text.streaming import TextStream

PROMPTS = (128, 512)
"""Lengths of prompts, in tokens, unless the call says otherwise."""

NEW_TOKENS = 64
"""New tokens per row, unless the call says otherwise."""

TEXTS_SECONDS = 0.1
"""Seconds that an encoder repeats its batch, because one run of a short text is too short to time."""


class Source(NamedTuple):
    """A bundle and how it is loaded: the arguments of `load`."""

    bundle: str
    provider: ProviderChoice = "auto"
    threads: int | None = None
    cache_precision: Literal["int8"] | None = None

    def load(self) -> Model:
        """Return the model."""
        return load(self.bundle, self.provider, self.threads, cache_precision=self.cache_precision)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to time. tokens: length of every prompt, source or text. new_tokens: per row, 0 for an encoder."""

    tokens: int
    batch_size: int
    new_tokens: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one request. prefill: prompt or encoder; first_token: until every row has one; total: all of it."""

    prefill: float
    first_token: float
    total: float


def plan(
    manifest: Manifest, prompts: Sequence[int] | None, new_tokens: int | None, batch_sizes: Sequence[int]
) -> list[Request]:
    """Return a request for each length at each batch size. None is replaced by lengths that the model takes.

    Raises RequestError for options that do not apply to the model's task, and for lengths beyond its context.
    """
    for what, name, values in (("length", "a prompt", prompts), ("batch size", "the batch size", batch_sizes)):
        if values is None:
            continue
        if not request_values.is_list(values):
            raise RequestError(f"{name} is {request_values.shown(values)}; it must be a list of whole numbers.")
        if len(values) == 0:
            raise RequestError(f"there is no {what} to measure; give at least one.")
        for value in values:
            request_values.count(name, value)
    new_tokens = _new_tokens(manifest, new_tokens)
    room = _room(manifest, new_tokens)
    if _is_speech(manifest.model):
        if prompts is not None:
            raise RequestError(
                f"lengths of prompts are not for {manifest.name}: its encoder always takes {window_seconds(room):g} s "
                "of sound. Leave them out."
            )
        prompts = [room]
    elif MODELS[manifest.task].reads == "picture" or manifest.transcribes_pictures:
        if prompts is not None:
            raise RequestError(
                f"lengths of prompts are not for {manifest.name}: each picture is {room:,} tokens. Leave them out."
            )
        prompts = [room]
    elif prompts is None:
        prompts = [length for length in PROMPTS if length <= room] or [room]
    elif max(prompts) > room:
        raise RequestError(_too_long(manifest, max(prompts), new_tokens, room))
    return [
        Request(tokens=tokens, batch_size=batch_size, new_tokens=new_tokens)
        for tokens in dict.fromkeys(prompts)
        for batch_size in dict.fromkeys(batch_sizes)
    ]


@singledispatch
def run(model: Model, request: Request) -> Timing:
    """Run a request with random tokens, greedily, without an end token; return its times."""
    raise TypeError(f"{type(model).__name__} has no workload")


@run.register
def _run_decoder(model: CausalLM, request: Request) -> Timing:
    prompts = _token_ids(request, model.manifest.vocab_size)
    start = time.perf_counter()
    decoder = model.new_decoder(request.batch_size, request.tokens + request.new_tokens)
    rows = [_row(model, prompt, request) for prompt in prompts]
    first, end = _generate(decoder, rows)
    prefill = sum(row.prefill_seconds for row in rows)
    return Timing(prefill=prefill, first_token=first - start, total=end - start)


@run.register
def _run_encoder_decoder(model: Seq2SeqLM, request: Request) -> Timing:
    config = model.manifest.model
    assert config is not None
    sources: list[Any]
    if model.is_speech:
        samples = int(window_seconds(request.tokens) * SAMPLE_RATE)
        rng = np.random.default_rng(0)
        sources = [0.1 * rng.standard_normal(samples, np.float32) for _ in range(request.batch_size)]
    elif not model.reads_text:
        sources = [np.zeros((8, 8, 3), np.uint8)] * request.batch_size
    else:
        sources = _token_ids(request, config.input_stack.vocab_size)
    start = time.perf_counter()
    outputs = model.run_encoder(sources)
    middle = time.perf_counter()
    decoder = model.new_decoder(outputs, 1 + request.new_tokens)
    rows = [_row(model, [0], request) for _ in sources]  # any start token will do
    first, end = _generate(decoder, rows, decoder.decode_one_token([0] * len(rows)).copy())
    return Timing(prefill=middle - start, first_token=first - start, total=end - start)


@run.register
def _run_encoder(model: Encoder, request: Request) -> Timing:
    texts = _token_ids(request, model.manifest.vocab_size)
    seconds: list[float] = []
    while sum(seconds) < TEXTS_SECONDS:
        start = time.perf_counter()
        model.run(texts)
        seconds.append(time.perf_counter() - start)
    each = median(seconds)
    return Timing(prefill=each, first_token=each, total=each)


@run.register
def _run_tower(model: PictureReader, request: Request) -> Timing:
    tower = model.tower
    if tower.kind == "vision":
        shape = tower.patches.channels, tower.patches.height, tower.patches.width
    else:  # about as many patches as a picture may have
        shape = tower.padded_grids[0].rows, tower.padded_grids[0].columns, tower.patches.inputs
    values = list(np.random.default_rng(0).standard_normal((request.batch_size, *shape), np.float32))
    start = time.perf_counter()
    model.run_values(values)
    each = time.perf_counter() - start
    return Timing(prefill=each, first_token=each, total=each)


def _generate(decoder: StepRunner, rows: list[Row], first_logits: Logits | None = None) -> tuple[float, float]:
    """Run rows as `generate` does; return the times at which all rows had their first token, and their last."""
    scheduler, _ = start_rows(Beginnings(decoder), rows, first_logits=first_logits)
    scheduler.turn()  # all prompts
    first = time.perf_counter()
    scheduler.run()
    return first, time.perf_counter()


def _row(model: Model, prompt: list[int], request: Request) -> Row:
    stream = TextStream(model.tokenizer) if model.tokenizer else None
    return Row(prompt, request.new_tokens, frozenset(), Sampling(), stream)


def _token_ids(request: Request, vocab_size: int) -> list[list[int]]:
    ids = np.random.default_rng(0).integers(0, vocab_size, (request.batch_size, request.tokens))
    return [row.tolist() for row in ids]


def _new_tokens(manifest: Manifest, new_tokens: int | None) -> int:
    if MODELS[manifest.task].form == "encoder":
        if new_tokens is not None:
            raise RequestError(f"new tokens are not for {manifest.name}: an encoder generates none. Leave them out.")
        return 0
    if new_tokens is None:
        return min(NEW_TOKENS, manifest.context_length // 2)
    if request_values.integer("new_tokens", new_tokens) < 2:
        raise RequestError(
            f"the number of new tokens is {new_tokens}; it must be at least 2: the first comes from the prompt."
        )
    if new_tokens >= manifest.context_length:
        first = "the start token" if manifest.task == "seq2seq-lm" else "a prompt"
        raise RequestError(
            f"{new_tokens} new tokens do not fit; the model's context is {manifest.context_length} tokens, {first} "
            "included. Ask for fewer."
        )
    return new_tokens


def _room(manifest: Manifest, new_tokens: int) -> int:
    """Return the longest prompt, source or text, in tokens."""
    stack = None if manifest.model is None else manifest.model.input_stack
    if stack is None or stack.cache_geometry.num_layers:  # prompt and new tokens share a cache
        return manifest.context_length - new_tokens
    return stack.context_length


def _too_long(manifest: Manifest, tokens: int, new_tokens: int, room: int) -> str:
    if manifest.form == "decoder":
        return (
            f"a prompt of {tokens} tokens and {new_tokens} new ones do not fit; the model's context is "
            f"{manifest.context_length} tokens. Shorten the prompt or ask for fewer."
        )
    return (
        f"a {MODELS[manifest.task].reads} of {tokens} tokens is too long; the model takes {room} at most. Shorten it."
    )


def _is_speech(config: ModelConfig | None) -> bool:
    return config is not None and config.is_speech
