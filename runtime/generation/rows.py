"""Make the rows of a request: what a config, a tokenizer and a model's end tokens mean for the loop of `generate`.

Every loop takes its rows from here: `CausalLM`, `Seq2SeqLM`, and whoever batches requests of several callers.
"""

import time
from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.generation.generate import Row, Steps, run_rows
from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.generation.sampling.thinking_budget import thinking_budget
from edgeformer.runtime.generation.speculation import (
    Drafter,
    DraftLength,
    ForcedTokens,
    PromptLookup,
    SpeculationStatistics,
    SpeculativeDecoder,
    forced_length,
)
from edgeformer.runtime.prefixes.prefix_cache import PrefixCache
from edgeformer.runtime.request_values import functions
from edgeformer.runtime.steps.runner import StepRunner
from edgeformer.runtime.text.streaming import TextStream
from edgeformer.runtime.text.tokenizer import Tokenizer


def make_row(
    prompt: Sequence[int],
    max_new_tokens: int,
    config: GenerationConfig,
    manifest: Manifest,
    tokenizer: Tokenizer | None,
    processors: Sequence[LogitsProcessor] = (),
    sample: int = 0,
) -> Row:
    """Return the row of a prompt.

    prompt: the decoder's tokens. processors: the caller's; see `all_processors`. sample: the number of this row among
    several of one prompt; it draws as it would alone with `config.seed + sample`.
    """
    sampling = config.sampling
    if sampling.seed is not None and sample:
        sampling = replace(sampling, seed=sampling.seed + sample)
    return Row(
        prompt,
        max_new_tokens,
        end_tokens(config, manifest),
        sampling,
        TextStream(tokenizer, config.stop) if tokenizer else None,
        rules=config.rules,
        processors=all_processors(config, tokenizer, processors),
        top_logprobs=config.top_logprobs if config.logprobs else None,
        constraint=config.structured_output.constraint(tokenizer, manifest),
    )


def end_tokens(config: GenerationConfig, manifest: Manifest) -> frozenset[int]:
    """Return the tokens that end a text: the model's, or none with ignore_eos."""
    return frozenset() if config.ignore_eos else frozenset(manifest.tokens.eos)


def all_processors(
    config: GenerationConfig, tokenizer: Tokenizer | None, processors: Sequence[LogitsProcessor]
) -> Sequence[LogitsProcessor]:
    """Return the caller's logits processors, among those that options of the config ask for."""
    functions("logits_processors", processors)
    dry = [config.dry.processor(tokenizer)] if config.dry.dry_multiplier else []
    # The last one, so that nothing changes what it forces.
    budget = [] if config.thinking_budget is None else [thinking_budget(tokenizer, config.thinking_budget)]
    return [*dry, *processors, *budget] if dry or budget else processors


def drafts_tokens(rows: Sequence[Row], config: GenerationConfig) -> bool:
    """Return whether a decoder of these rows drafts tokens: the config asks for it, and there is one row."""
    return config.prompt_lookup_num_tokens > 0 and len(rows) == 1


def with_prompt_lookup(
    decoder: StepRunner, row: Row, config: GenerationConfig, text: Sequence[int] = ()
) -> SpeculativeDecoder:
    """Return a decoder that drafts the tokens of a row, which gets its counts.

    text: tokens that drafts may be copied from, before those that the new decoder is given.
    """
    lookup = PromptLookup(config.max_matching_ngram_size)
    lookup.extend(text)
    return with_drafts(decoder, row, lookup, DraftLength(config.prompt_lookup_num_tokens))


def with_drafts(decoder: StepRunner, row: Row, drafter: Drafter, length: DraftLength) -> SpeculativeDecoder:
    """Return a decoder that drafts tokens of a row; the row gets its counts."""
    row.speculation = SpeculationStatistics()
    return SpeculativeDecoder(decoder, drafter, length, row.speculation)


def with_forced_tokens(decoder: StepRunner, rows: Sequence[Row]) -> Steps:
    """Return a decoder that drafts what structured output forces, for a single row; otherwise the decoder itself."""
    constraint = rows[0].constraint if len(rows) == 1 else None
    if constraint is None:
        return decoder
    return with_drafts(decoder, rows[0], ForcedTokens(constraint), forced_length())


def prefill_samples(decoder: StepRunner, rows: Sequence[Row], count: int) -> NDArray[np.float32]:
    """Run the prompt of every `count` rows, which is the same, once; return the logits after it for each row [B, V].

    The cache of the first of these rows is copied to the others.
    """
    logits = []
    for first in range(0, len(rows), count):
        start = time.perf_counter()
        logits.append(decoder.prefill(first, rows[first].prompt).copy())
        for row in rows[first : first + count]:
            row.prefill_seconds = time.perf_counter() - start
    decoder.reorder(np.arange(len(rows)) // count * count)
    return np.stack(logits).repeat(count, axis=0)


def run_from_prefix(
    prefixes: PrefixCache, decoder: StepRunner, row: Row, steps: Steps | None = None, adapter: str = ""
) -> Generator[tuple[int, str]]:
    """Run one row as `run_rows` does, from its longest prefix on, and keep what it leaves, wherever it stops.

    steps: a decoder over `decoder` that drafts tokens, and has the prompt's already. adapter: that the decoder has.
    """
    started = time.perf_counter()
    logits, row.cached_tokens = prefixes.prefill(decoder, 0, row.prompt, adapter)
    row.prefill_seconds = time.perf_counter() - started
    try:
        yield from run_rows(steps or decoder, [row], logits[None])
    finally:
        # The last token was chosen, but not run.
        prefixes.keep(decoder, 0, [*row.prompt, *row.tokens[:-1]], adapter=adapter)
