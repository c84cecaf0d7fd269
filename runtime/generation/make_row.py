"""Make the row of a request: what a config, a tokenizer and a model's end tokens mean for the scheduler."""

from collections.abc import Sequence
from dataclasses import replace

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.generation.sampling.thinking_budget import thinking_budget
from edgeformer.runtime.request_values import functions
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
    shown_prompt: Sequence[int] | None = None,
) -> Row:
    """Return the row of a prompt.

    prompt: the decoder's tokens. processors: the caller's; see `all_processors`. sample: the number of this row among
    several of one prompt; it draws as it would alone with `config.seed + sample`. shown_prompt: see `Row`.
    """
    sampling = config.sampling
    if sampling.seed is not None and sample:
        sampling = replace(sampling, seed=sampling.seed + sample)
    return Row(
        prompt,
        max_new_tokens,
        end_tokens(config, manifest),
        sampling,
        text_stream(tokenizer, config) if tokenizer else None,
        rules=config.rules,
        processors=all_processors(config, tokenizer, processors),
        top_logprobs=config.top_logprobs if config.logprobs else None,
        constraint=config.structured_output.constraint(tokenizer, manifest),
        shown_prompt=shown_prompt,
    )


def end_tokens(config: GenerationConfig, manifest: Manifest) -> frozenset[int]:
    """Return the tokens that end a text: the model's, or none of them with ignore_eos, and those of the config."""
    outside = [token for token in config.stop_token_ids if token >= manifest.vocab_size]
    if outside:
        message = f"stop_token_ids has {outside[0]}, outside 0 to {manifest.vocab_size - 1}, the model's vocabulary."
        raise RequestError(message, field="stop_token_ids")
    return frozenset(() if config.ignore_eos else manifest.tokens.eos) | frozenset(config.stop_token_ids)


def text_stream(tokenizer: Tokenizer, config: GenerationConfig) -> TextStream:
    """Return what makes the text of a row: with special tokens, if the config shows them."""
    return TextStream(tokenizer, config.stop, None if config.skip_special_tokens else tokenizer.special_tokens)


def all_processors(
    config: GenerationConfig, tokenizer: Tokenizer | None, processors: Sequence[LogitsProcessor]
) -> Sequence[LogitsProcessor]:
    """Return the caller's logits processors, among those that options of the config ask for."""
    functions("logits_processors", processors)
    dry = [config.dry.processor(tokenizer)] if config.dry.dry_multiplier else []
    # The last one, so that nothing changes what it forces.
    budget = [] if config.thinking_budget is None else [thinking_budget(tokenizer, config.thinking_budget)]
    return [*dry, *processors, *budget] if dry or budget else processors
