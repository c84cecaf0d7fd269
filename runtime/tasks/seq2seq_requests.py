"""Serve one request of an encoder-decoder: its length, its rows, its beams."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.generation.beam_search import BeamSearch, beam_search
from edgeformer.runtime.generation.generate import start_rows
from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.make_row import all_processors, end_tokens, make_row
from edgeformer.runtime.generation.row import DEFAULT_NEW_TOKENS, Generation, Row
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.generation.scheduling import Beginnings, GenerationStream, Scheduler
from edgeformer.runtime.generation.speculation.row_drafts import drafts_of
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.runner import StepRunner
from edgeformer.runtime.tasks.encoder_decoder import EncoderDecoder, Source, kept_by


class Seq2SeqRequest(NamedTuple):
    """A checked request. prompt: the decoder's first tokens. max_new_tokens: fits the context behind them."""

    prompt: Sequence[int]
    max_new_tokens: int
    config: GenerationConfig
    processors: Sequence[LogitsProcessor]


def max_new_tokens(manifest: Manifest, prompt_length: int, asked: int | None, config: GenerationConfig) -> int:
    """Return how many tokens to generate at most.

    asked: the limit that the call gives; None for the one of the config, lowered to what fits. Raises RequestError for
    a prompt that leaves no room, and for a limit of the call that does not fit.
    """
    context = length = manifest.context_length
    if asked is None and config.max_new_tokens is None:
        default = prompt_length + DEFAULT_NEW_TOKENS
        length = min(length, default if config.max_length is None else config.max_length)
    room = length - prompt_length
    if room < 1:
        longer = ", or give max_new_tokens" if length < context else ""
        raise RequestError(
            f"the prompt has {prompt_length} tokens, and the model generates {length}, the prompt included. Shorten "
            f"it{longer}."
        )
    if asked is None:
        return room if config.max_new_tokens is None else min(config.max_new_tokens, room)
    if not 1 <= asked <= room:
        raise RequestError(
            f"max_new_tokens is {asked}; it must be at least 1 and, behind a prompt of {prompt_length}, at most "
            f"{room}: the model generates {context} tokens."
        )
    return asked


def new_row(model: EncoderDecoder, request: Seq2SeqRequest, source: NDArray[np.int64], length: int) -> Row:
    """Return the row of a request; source: what `source_tokens` returns. length: of it, which `Generation` reports."""
    config = request.config
    if config.stop:
        model.require_tokenizer()
    row = make_row(request.prompt, request.max_new_tokens, config, model.manifest, model.tokenizer, request.processors)
    row.source, row.prompt_tokens = source, length
    return row


def start_sources(
    model: EncoderDecoder, sources: Sequence[Source], request: Seq2SeqRequest
) -> tuple[Scheduler, list[GenerationStream], list[Row]]:
    """Run the encoder and the prompt; return a row for each source, its stream, and the scheduler of all.

    A single row drafts tokens; they are copied from the source, too, if it is text.
    """
    started = time.perf_counter()
    inputs, mask = model.encoder_inputs(sources)
    texts, lengths = source_tokens(model, sources, request.config), mask.sum(1).tolist()
    rows = [new_row(model, request, text, length) for text, length in zip(texts, lengths, strict=True)]
    outputs = model.run_encoder_inputs(inputs, mask, kept_by(sources))
    decoder = model.new_decoder(outputs, len(request.prompt) + request.max_new_tokens)
    first = _run_prompt(decoder, request.prompt)
    seconds = time.perf_counter() - started
    for row in rows:
        row.prefill_seconds = seconds
    drafts = None
    if len(rows) == 1:
        looks_up = request.config.prompt_lookup_num_tokens and model.reads_text
        drafts = drafts_of(rows[0], request.config, model.encode_sources(sources)[0] if looks_up else ())
    return *start_rows(Beginnings(decoder), rows, first_logits=first, drafts=drafts), rows


def search_beams(
    model: EncoderDecoder, sources: Sequence[Source], request: Seq2SeqRequest, search: BeamSearch
) -> list[list[Generation]]:
    """Return the hypotheses of each source, best first."""
    if request.config.stop:
        raise RequestError("stop texts do not work with beams; use num_beams=1.")
    started = time.perf_counter()
    outputs = model.run_encoder(sources, copies=search.num_beams)
    decoder = model.new_decoder(outputs, len(request.prompt) + request.max_new_tokens)
    first = _run_prompt(decoder, request.prompt)
    between = time.perf_counter()
    tokens = model.manifest.tokens
    found = beam_search(
        decoder,
        first,
        prompts=[request.prompt] * len(sources),
        search=search,
        max_new_tokens=request.max_new_tokens,
        eos=end_tokens(request.config, model.manifest),
        pad=tokens.pad or 0,
        rules=request.config.rules,
        processors=all_processors(request.config, model.tokenizer, request.processors),
        texts=source_tokens(model, sources, request.config),
    )
    ended = time.perf_counter()
    lengths = outputs.mask[:: search.num_beams].sum(1).tolist()
    return [
        [
            Generation(
                text=model.tokenizer.decode(each.token_ids) if model.tokenizer else None,
                token_ids=each.token_ids,
                finish_reason=each.finish_reason,
                prompt_tokens=length,
                prefill_seconds=between - started,
                decode_seconds=ended - between,
                score=each.score,
            )
            for each in hypotheses
        ]
        for hypotheses, length in zip(found, lengths, strict=True)
    ]


def source_tokens(
    model: EncoderDecoder, sources: Sequence[Source], config: GenerationConfig
) -> list[NDArray[np.int64]]:
    """Return the tokens of each source [N] where a rule reads them; none otherwise, and of recordings and pictures."""
    if not model.reads_text or not config.rules.reads_source:
        return [np.empty(0, np.int64) for _ in sources]
    return [np.array(tokens, np.int64) for tokens in model.encode_sources(sources)]


def _run_prompt(decoder: StepRunner, prompt: Sequence[int]) -> Logits:
    """Append one prompt to all rows; return the logits after it [B, V]."""
    rows = decoder.cache.batch_size
    if len(prompt) == 1:
        return decoder.decode_one_token([prompt[0]] * rows).copy()
    tokens = np.tile(np.asarray(prompt, np.int64), (rows, 1))
    return decoder.prefill_batch(tokens, [len(prompt)] * rows)[:, -1]
