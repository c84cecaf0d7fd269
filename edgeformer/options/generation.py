"""The options of generation: the fields of `edgeformer.runtime.GenerationConfig`, in groups.

To add one, declare it in its group here and write what it computes in `runtime/generation/`; then run
`python tools/option_keywords.py`. The command line, the server's bodies, the checks of calls, what is read of a
generation_config.json and the reference follow from the declaration.

Names and meanings are those of transformers' `GenerationConfig`, where it has the field, else of OpenAI's API, vLLM or
llama.cpp.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypedDict

from edgeformer.documents.option import OFF_AT_0, OFF_AT_1, Option, option, options_of

Texts = str | Sequence[str]
TokenIds = Sequence[int]
TokenSequences = Sequence[Sequence[int]]
TokenBiases = Mapping[int, float] | Sequence[tuple[int, float]]
SequenceBiases = Sequence[tuple[Sequence[int], float]]
JsonSchema = str | Mapping[str, Any]
EarlyStopping = bool | Literal["never"]

MOST_DRAFTED = 64
"""Tokens of a draft at most: a run of more is a prompt's, and takes memory for the logits of each."""

MOST_ROWS = 65_536
"""Rows of one call at most. What rows need is known before it is allocated, but each is an object of Python, too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """Where a text ends. Lengths are in tokens."""

    TITLE: ClassVar[str] = "Length"

    max_new_tokens: int | None = option(
        None,
        "New tokens at most; without it what max_length leaves, or else 256, as far as the context has room.",
        at_least=1, cli=True, short="-n", api="max_tokens", api_limits={"ge": 1},
    )  # fmt: skip
    max_length: int | None = option(
        None, "Prompt and new tokens together at most; encoder-decoders use it where max_new_tokens is not set.",
        at_least=1,
    )  # fmt: skip
    stop: Texts = option(
        (), "End before this text, which is not part of the result.",
        "It needs a tokenizer and no beams. One that is exactly a special token ends at its id.",
        cli=True, api=True, in_file=False,
    )  # fmt: skip
    stop_token_ids: TokenIds = option(
        (), "End at these tokens, too, as at an end token.", api=True, servers="V", in_file=False
    )
    skip_special_tokens: bool = option(
        True, "Leave special tokens out of the text; False shows them, but for the one that ends it.",
        api=True, in_file=False,
    )  # fmt: skip
    ignore_eos: bool = option(
        False, "Go on after an end token, as in vLLM.", cli=True, api=True, servers="LV", in_file=False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How a token is drawn from its probabilities; at a temperature of 0 the others have no effect."""

    TITLE: ClassVar[str] = "Sampling"

    temperature: float = option(
        0.0, "0 takes the most likely token; more flattens the distribution before a random draw.",
        at_least=0, means=(0, "greedy"), cli=True, api=True, servers="OLVA", api_limits={"ge": 0},
    )  # fmt: skip
    top_k: int = option(
        0, "Keep the k most likely tokens; 0 keeps all.", at_least=0, means=OFF_AT_0, cli=True, api=True
    )
    top_p: float = option(
        1.0, "Keep the fewest tokens whose probabilities reach p; 1 keeps all.",
        above=0, at_most=1, means=OFF_AT_1, cli=True, api=True, servers="OLVA",
    )  # fmt: skip
    min_p: float = option(
        0.0, "Keep tokens of at least p times the largest probability; 0 keeps all.",
        at_least=0, at_most=1, means=OFF_AT_0, cli=True, api=True, servers="LV",
    )  # fmt: skip
    typical_p: float = option(
        1.0, "Keep the tokens whose surprise is nearest to the entropy, up to this probability; 1 keeps all.",
        above=0, at_most=1, means=OFF_AT_1, cli=True, api=True, servers="L",
    )  # fmt: skip
    xtc_probability: float = option(
        0.0, "In this fraction of the steps, drop all tokens that reach xtc_threshold but the least likely (XTC).",
        "As in llama.cpp.", at_least=0, at_most=1, means=OFF_AT_0, cli=True, api=True, servers="L", in_file=False,
    )  # fmt: skip
    xtc_threshold: float = option(
        0.1, "Probability from which XTC drops tokens; above 0.5 it drops none.",
        at_least=0, at_most=1, cli=True, api=True, servers="L", in_file=False,
    )  # fmt: skip
    top_h: float = option(
        0.0, "Keep the likeliest tokens whose entropy together is at most this fraction of that of the 100 likeliest.",
        at_least=0, at_most=1, means=OFF_AT_0,
    )  # fmt: skip
    epsilon_cutoff: float = option(
        0.0, "Keep tokens of at least this probability.", at_least=0, below=1, means=OFF_AT_0
    )
    eta_cutoff: float = option(
        0.0, "Keep tokens of at least the probability min(ε, √ε · e^-entropy), where ε is this number.",
        at_least=0, below=1, means=OFF_AT_0,
    )  # fmt: skip
    seed: int | None = option(
        None, "Make random draws repeatable; without it they differ in every call.",
        "Each row of a batch draws as it would alone.",
        at_least=0, cli=True, api=True, servers="OLV", api_limits={"ge": -(2**63), "lt": 2**64}, in_file=False,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogprobOptions:
    """Log-probabilities in the result, of the model's own distribution: before all rules, temperature and filters."""

    TITLE: ClassVar[str] = "Log-probabilities"

    logprobs: bool = option(
        False, "Return the log-probability of each new token, in `Generation.logprobs`.", "Not of a beam search.",
        in_file=False,
    )  # fmt: skip
    top_logprobs: int = option(
        0, "Return the log-probabilities of this many most likely tokens with each new one.",
        "Above 0 it needs logprobs.", at_least=0, cli=True, in_file=False,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """Rules on logits, applied in this order before a token is chosen; by default any token may come."""

    TITLE: ClassVar[str] = "Rules on logits"

    logit_bias: TokenBiases = option(
        (), "Add a number to the logit of a token; -inf bans it.", "Token ids with numbers, as in OpenAI's API.",
        cli=True, api=True, servers="OLV", in_file=False,
    )  # fmt: skip
    sequence_bias: SequenceBiases = option(
        (), "Add a number to the logit of the last of some tokens, where the others are the last ones of the text.",
        "Pairs of token ids and a number, or a mapping.",
    )  # fmt: skip
    encoder_repetition_penalty: float = option(
        1.0, "As repetition_penalty, but above 1 favour the tokens of the source, or of a decoder's prompt.",
        "A speech model ignores it, as in transformers.", above=0, means=OFF_AT_1,
    )  # fmt: skip
    repetition_penalty: float = option(
        1.0, "Above 1, tokens that are in the text come less: positive logits are divided by it, others multiplied.",
        above=0, means=OFF_AT_1, cli=True, api=True, servers="V",
    )  # fmt: skip
    presence_penalty: float = option(
        0.0, "Above 0, new tokens that came before come less; the prompt does not count (OpenAI's API).",
        finite=True, means=OFF_AT_0, cli=True, api=True, servers="OLV", api_limits={"ge": -2, "le": 2}, in_file=False,
    )  # fmt: skip
    frequency_penalty: float = option(
        0.0, "The same for every time that the token came.",
        finite=True, means=OFF_AT_0, cli=True, api=True, servers="OLV", api_limits={"ge": -2, "le": 2}, in_file=False,
    )  # fmt: skip
    no_repeat_ngram_size: int = option(0, "No n tokens in a row come twice.", at_least=0, means=OFF_AT_0)
    encoder_no_repeat_ngram_size: int = option(
        0, "No n tokens in a row of the source, or of a decoder's prompt, come again.", at_least=0, means=OFF_AT_0
    )
    bad_words_ids: TokenSequences = option(
        (), "Sequences of token ids that may not come; an end token by itself is never one of them."
    )
    min_length: int = option(
        0, "No end token comes before prompt and new tokens are this many.", at_least=0, means=OFF_AT_0
    )
    min_new_tokens: int = option(
        0, "No end token comes before there are this many new tokens.", "Above 0 it replaces min_length.",
        at_least=0, means=OFF_AT_0, api="min_tokens", servers="V",
    )  # fmt: skip
    forced_bos_token_id: int | None = option(None, "The token after a prompt of one token.", at_least=0)
    forced_eos_token_id: int | None = option(None, "The last token, where the length limit allows no more.", at_least=0)
    remove_invalid_values: bool = option(False, "NaN becomes 0, and infinities the largest numbers of their sign.")
    exponential_decay_length_penalty: tuple[int, float] | None = option(
        None, "A pair (start, factor): beyond `start` new tokens, end tokens become likelier with every token.",
        "Their logits grow by factor ** (tokens beyond) - 1 of their size.",
    )  # fmt: skip
    suppress_tokens: TokenIds = option((), "Token ids that never come; ids outside the vocabulary are ignored.")
    begin_suppress_tokens: TokenIds = option((), "Token ids that may not come first.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DryOptions:
    """DRY, as in llama.cpp: a token that would prolong a repetition of n tokens loses
    multiplier · base ^ (n − allowed_length), where n reaches allowed_length."""

    TITLE: ClassVar[str] = "Repeated texts (DRY)"

    dry_multiplier: float = option(
        0.0, "Above 0, texts that came before are not repeated (DRY).",
        at_least=0, finite=True, means=OFF_AT_0, cli=True, api=True, servers="L", in_file=False,
    )  # fmt: skip
    dry_base: float = option(
        1.75,
        "Factor of the penalty for each further token.",
        at_least=1,
        finite=True,
        api=True,
        servers="L",
        in_file=False,
    )
    dry_allowed_length: int = option(
        2, "Tokens from which a repetition is penalised.", at_least=1, api=True, servers="L", in_file=False
    )
    dry_penalty_last_n: int = option(
        -1, "The last tokens that count, those of the prompt included.",
        at_least=-1, means=(-1, "the whole text"), api=True, servers="L", in_file=False,
    )  # fmt: skip
    dry_sequence_breakers: Texts = option(
        ("\n", ":", '"', "*"),
        "No repetition goes across a token that contains one of these texts.",
        api=True,
        servers="L",
        in_file=False,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinkingOptions:
    """How long a model thinks before it answers."""

    TITLE: ClassVar[str] = "Thinking"

    thinking_budget: int | None = option(
        None, "Tokens after which a model that still thinks is made to answer.",
        "The mark that ends thinking is forced. It needs a model whose chat template or tokenizer has such marks.",
        at_least=0, cli=True, api=True, in_file=False,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class StructuredOutputOptions:
    """Only tokens that may go on like this can come, whatever the rules say.

    One of them at most. They need a tokenizer, no beams, and the extra `structured` (llguidance). A text that
    max_new_tokens cuts is not complete.
    """

    TITLE: ClassVar[str] = "Structured output"

    json_schema: JsonSchema | None = option(
        None, "Write JSON that this schema allows; `{}` allows any.",
        'A mapping, or JSON. Parts are separated by at most one space or line break, unless its "x-guidance" says '
        "otherwise.", cli=True, metavar="FILE|JSON", in_file=False,
    )  # fmt: skip
    regex: str | None = option(
        None, "Write a text that this regular expression matches, in Rust's syntax.", cli=True, in_file=False
    )
    grammar: str | None = option(
        None, "Write a text of this grammar, in llguidance's variant of Lark.", "Its rule `start` is the whole text.",
        cli=True, metavar="FILE|LARK", in_file=False,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeculationOptions:
    """Drafts for one prompt without beams; they change how fast tokens come, and not which."""

    TITLE: ClassVar[str] = "Speculation"

    prompt_lookup_num_tokens: int = option(
        0, "Draft up to N tokens at a time of what came before; 0 drafts none.",
        "Fewer or none where that does not pay.", at_least=0, at_most=MOST_DRAFTED, cli=True, api=True, in_file=False,
    )  # fmt: skip
    max_matching_ngram_size: int = option(
        3, "Last tokens to look up for a draft, and then fewer of them.",
        at_least=1, at_most=MOST_DRAFTED, cli=True, in_file=False,
    )  # fmt: skip
    num_assistant_tokens: int = option(
        8, "Tokens that a draft model drafts at a time at most, where prompt_lookup_num_tokens is 0.",
        "Without a draft model it has no effect.", at_least=0, at_most=MOST_DRAFTED, cli=True, in_file=False,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """Beam search, of encoder-decoders only."""

    TITLE: ClassVar[str] = "Beam search"

    num_beams: int = option(
        1, "Continuations that a beam search keeps at each step.",
        at_least=1, at_most=MOST_ROWS, means=(1, "greedy"), cli=True,
    )  # fmt: skip
    length_penalty: float = option(
        1.0, "Above 0 favours long texts, below 0 short ones.",
        "A hypothesis scores the sum of its tokens' log-probabilities divided by its length to this power.",
        finite=True, means=OFF_AT_0,
    )  # fmt: skip
    early_stopping: EarlyStopping = option(
        False, "What ends a search that has num_beams hypotheses.",
        'True ends it there, False once its best beam could not get better if it ended now, "never" once it could not '
        "at any length.",
    )  # fmt: skip
    renormalize_logits: bool = option(False, "Make probabilities of the scores again after all rules and processors.")


GROUPS = (
    LengthOptions, SamplingOptions, LogprobOptions, RuleOptions, DryOptions, ThinkingOptions, StructuredOutputOptions,
    SpeculationOptions, BeamOptions,
)  # fmt: skip

OPTIONS: dict[str, Option] = {each.name: each for group in GROUPS for each in options_of(group)}
"""All options by name, in the order of their groups."""

SAMPLING_NAMES = frozenset(each.name for each in options_of(SamplingOptions))


class GenerationOptions(TypedDict, total=False):
    """Keywords of `generate`, `stream`, `chat`, `translate` and `transcribe`: the fields of `GenerationConfig`."""

    # Written by tools/option_keywords.py:
    max_new_tokens: int | None
    max_length: int | None
    stop: Texts
    stop_token_ids: TokenIds
    skip_special_tokens: bool
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    top_h: float
    epsilon_cutoff: float
    eta_cutoff: float
    seed: int | None
    logprobs: bool
    top_logprobs: int
    logit_bias: TokenBiases
    sequence_bias: SequenceBiases
    encoder_repetition_penalty: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    encoder_no_repeat_ngram_size: int
    bad_words_ids: TokenSequences
    min_length: int
    min_new_tokens: int
    forced_bos_token_id: int | None
    forced_eos_token_id: int | None
    remove_invalid_values: bool
    exponential_decay_length_penalty: tuple[int, float] | None
    suppress_tokens: TokenIds
    begin_suppress_tokens: TokenIds
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Texts
    thinking_budget: int | None
    json_schema: JsonSchema | None
    regex: str | None
    grammar: str | None
    prompt_lookup_num_tokens: int
    max_matching_ngram_size: int
    num_assistant_tokens: int
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    renormalize_logits: bool
