"""The options of `generate`: one typed config, read from generation_config.json or given by keyword.

    model.generate("Once", max_new_tokens=8, temperature=0.7)         # override fields of the model's own config
    model.generate("Once", config=GenerationConfig(max_new_tokens=8)) # replace the model's own config

The config is split into what the parts of the runtime take: `Sampling`, `Rules`, `Dry`, `StructuredOutput` and
`BeamSearch`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from edgeformer.config.generation_fields import GENERATION_FIELDS, unsupported_fields
from edgeformer.documents.json_document import read_object
from edgeformer.errors import BundleError, RequestError
from edgeformer.runtime import request_values
from edgeformer.runtime.generation.beam_search import BeamSearch
from edgeformer.runtime.generation.sampling.dry import Dry
from edgeformer.runtime.generation.sampling.logits_rules import Rules
from edgeformer.runtime.generation.sampling.sampling import Sampling
from edgeformer.runtime.generation.sampling.structured_output import StructuredOutput

FILE_NAME = "generation_config.json"

DEFAULT_TOP_K = 50
"""top_k of a generation_config.json that samples and names none. Source: `GenerationConfig` of transformers 5.23."""

MOST_DRAFTED = 64
"""Tokens of a draft at most: a run of more is a prompt's, and takes memory for the logits of each."""


class UnknownOptionError(RequestError, TypeError):
    """A keyword that `generate` does not have. It is a TypeError too, as of any Python function."""


class GenerationOptions(TypedDict, total=False):
    """Keywords of `generate`, `stream`, `chat`, `translate` and `transcribe`: the fields of `GenerationConfig`."""

    max_new_tokens: int | None
    max_length: int | None
    stop: str | Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    top_h: float
    epsilon_cutoff: float
    eta_cutoff: float
    seed: int | None
    sequence_bias: Sequence[tuple[Sequence[int], float]]
    encoder_repetition_penalty: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Sequence[str]
    no_repeat_ngram_size: int
    encoder_no_repeat_ngram_size: int
    bad_words_ids: Sequence[Sequence[int]]
    min_length: int
    min_new_tokens: int
    forced_bos_token_id: int | None
    forced_eos_token_id: int | None
    remove_invalid_values: bool
    exponential_decay_length_penalty: tuple[int, float] | None
    suppress_tokens: Sequence[int]
    begin_suppress_tokens: Sequence[int]
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    prompt_lookup_num_tokens: int
    max_matching_ngram_size: int
    num_assistant_tokens: int
    num_beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    renormalize_logits: bool


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How a model generates. Names and meanings are those of transformers' `GenerationConfig`, where it has the field.

    Length, in tokens:
        max_new_tokens: new tokens at most, ≥ 1; None for what `max_length` leaves, else 256, but never more than the
            context has room for.
        max_length: prompt and new tokens together at most, ≥ 1; used by encoder-decoders where max_new_tokens is None.
        stop: texts that end the generation; they are not part of the result. They need a tokenizer and no beams.
        ignore_eos: end tokens do not end the generation, as in vLLM; they may come like any other.

    Sampling:
        temperature: ≥ 0; 0 takes the most likely token (greedy), a larger value flattens the distribution before a
            random draw. The other fields of sampling have no effect at 0.
        top_k: ≥ 0; keep the k most likely tokens, 0 keeps all.
        top_p: in (0, 1]; keep the fewest tokens whose probabilities reach p, 1 keeps all.
        min_p: in [0, 1]; keep tokens of at least p times the largest probability, 0 keeps all.
        typical_p: in (0, 1]; keep the tokens whose surprise is nearest to the entropy and whose probabilities reach p,
            1 keeps all.
        xtc_probability, xtc_threshold: in [0, 1]; with this probability, at each step, drop all tokens whose
            probability reaches the threshold but the least likely of them (XTC, as in llama.cpp); 0 never does.
        top_h: in [0, 1]; keep the likeliest tokens whose entropy together is at most this fraction of that of the
            hundred likeliest, 0 keeps all.
        epsilon_cutoff: in [0, 1); keep tokens of at least this probability, 0 keeps all.
        eta_cutoff: in [0, 1); keep tokens of at least the probability min(ε, √ε · e^-entropy), 0 keeps all.
        seed: ≥ 0, of the random draws; None for another one in every call. Each row of a batch draws as it would alone.

    Log-probabilities, in the result:
        logprobs: whether `Generation.logprobs` has the log-probability of each new token, of the model's own
            distribution: before all rules, temperature and filters. Not of a beam search.
        top_logprobs: ≥ 0; how many of the most likely tokens come with each. Above 0 it needs `logprobs`.

    Rules on logits, applied in this order before a token is chosen:
        logit_bias: token ids with numbers that are added to their logits, as in OpenAI's API; -inf bans a token.
        sequence_bias: pairs of token ids and a number, or a mapping; the number is added to the logit of the last id
            where the others are the last tokens.
        encoder_repetition_penalty: > 0; as repetition_penalty, but above 1 it favours the tokens of the source, or of
            a decoder's prompt. A model of speech ignores it, as transformers does.
        repetition_penalty: > 0; divide positive and multiply negative logits of tokens already in the text by this, 1
            leaves them.
        presence_penalty, frequency_penalty: finite; subtracted from the logits of new tokens that came before: the one
            once, the other as often as the token came (OpenAI's API); 0 is off, and the prompt does not count.
        no_repeat_ngram_size: ≥ 0; no n tokens in a row come twice, 0 allows it.
        encoder_no_repeat_ngram_size: ≥ 0; no n tokens in a row of the source, or of a decoder's prompt, come again.
        bad_words_ids: sequences of token ids that may not come; an end token by itself is never one of them.
        min_length, min_new_tokens: ≥ 0; no end token before the whole sequence, or its new part, has this many tokens.
            A min_new_tokens above 0 replaces min_length.
        forced_bos_token_id: the token after a prompt of one token.
        forced_eos_token_id: the last token, where the length limit allows no more.
        remove_invalid_values: NaN becomes 0, and infinities the largest numbers of their sign.
        exponential_decay_length_penalty: (start, factor); beyond `start` new tokens, end tokens become likelier with
            every token, by factor ** (tokens beyond) - 1 of the size of their logit.
        suppress_tokens: token ids that never come; ids outside the vocabulary are ignored.
        begin_suppress_tokens: token ids that may not come first.
        dry_multiplier, dry_base, dry_allowed_length: ≥ 0, ≥ 1, ≥ 1; a token that would prolong a repetition of n tokens
            loses multiplier · base ^ (n − allowed_length) where n reaches allowed_length (DRY, as in llama.cpp); a
            multiplier of 0 is off.
        dry_penalty_last_n: ≥ -1; the last tokens that count, the prompt's included, -1 for all.
        dry_sequence_breakers: texts; no repetition goes across a token that contains one of them.

    Structured output: only tokens that may go on like this can come, whatever the rules say. At most one of them is
    given; they need a tokenizer, no beams, and the extra `structured` (llguidance). A text that max_new_tokens cuts is
    not complete.
        json_schema: a JSON schema, as a mapping or as JSON; `{}` allows any JSON. Parts are separated by at most one
            space or line break, unless the schema's "x-guidance" says otherwise.
        regex: a regular expression that the whole text matches, in Rust's syntax.
        grammar: a grammar in llguidance's variant of Lark; its rule `start` is the whole text.

    Speculation, of one prompt without beams; it changes how fast tokens come, and not which:
        prompt_lookup_num_tokens: ≥ 0; tokens to draft at a time at most, of what came before; fewer or none where that
            does not pay. 0 drafts none.
        max_matching_ngram_size: ≥ 1; last tokens of the text that are searched for in it, and then fewer of them.
        num_assistant_tokens: ≥ 0; tokens that a draft model drafts at a time at most (`CausalLM.use_draft`), where
            prompt_lookup_num_tokens is 0; without a draft model it says nothing.

    Beam search, encoder-decoders only:
        num_beams: ≥ 1; continuations that are kept at each step, 1 is greedy search.
        length_penalty: finite; a hypothesis scores the sum of its tokens' log-probabilities divided by its length to
            this power: above 0 favours long texts, below 0 short ones.
        early_stopping: what ends a search that has num_beams hypotheses: True ends it there, False once its best beam
            could not get better if it ended now, "never" once it could not at any length.
        renormalize_logits: make probabilities of the scores again after all rules and processors.

    Raises RequestError, naming the field, for a value outside its range.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    stop: str | Sequence[str] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    top_h: float = 0.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    seed: int | None = None
    sequence_bias: Sequence[tuple[Sequence[int], float]] = ()
    encoder_repetition_penalty: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: str | Sequence[str] = ("\n", ":", '"', "*")
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    bad_words_ids: Sequence[Sequence[int]] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    remove_invalid_values: bool = False
    exponential_decay_length_penalty: tuple[int, float] | None = None
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    prompt_lookup_num_tokens: int = 0
    max_matching_ngram_size: int = 3
    num_assistant_tokens: int = 8
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    renormalize_logits: bool = False

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in FIELDS}
        # Numbers of Python, and tuples: lists, as they come from JSON, would make equal configs differ.
        for name, value in request_values.option_values(values).items():
            object.__setattr__(self, name, value)
        _, _, _, search = self.rules, self.dry, self.sampling, self.beam_search()  # these check the ranges
        self._check_combinations(search.num_beams > 1)

    def _check_combinations(self, beams: bool) -> None:
        """Raise RequestError for options that exclude each other, or that need another one."""
        if beams and self.sampling.temperature:
            raise RequestError("num_beams searches and temperature draws; give only one of them.")
        if beams and self.logprobs:
            raise RequestError("a beam search returns scores of texts, not logprobs of tokens; use num_beams=1.")
        if beams and self.structured_output.is_on:
            raise RequestError("structured output does not work with beams; use num_beams=1.")
        if self.ignore_eos and self.structured_output.is_on:
            raise RequestError("structured output ends where it is complete; take ignore_eos out.")
        if beams and self.prompt_lookup_num_tokens:
            raise RequestError("prompt_lookup_num_tokens does not work with beams; use num_beams=1.")
        for name, least in (
            ("prompt_lookup_num_tokens", 0),
            ("max_matching_ngram_size", 1),
            ("num_assistant_tokens", 0),
        ):
            if not least <= getattr(self, name) <= MOST_DRAFTED:
                raise RequestError(f"{name} is {getattr(self, name)}; it must be between {least} and {MOST_DRAFTED}.")
        if self.top_logprobs < 0:
            raise RequestError(f"top_logprobs is {self.top_logprobs}; it must be 0 or larger.")
        if self.top_logprobs and not self.logprobs:
            raise RequestError(f"top_logprobs is {self.top_logprobs}, which needs logprobs=True.")

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Read the generation_config.json of a checkpoint or a bundle.

        Fields that change no token (of caches, outputs, assistants) are ignored. `do_sample` decides about sampling as
        in transformers: without it the config is greedy, whatever its temperature; with it temperature is 1 and top_k
        is 50 where the file names none. Raises BundleError if the file cannot be read, and RequestError for a value
        outside its range and for a field that this runtime does not have.
        """
        path = request_values.path("folder", folder) / FILE_NAME
        return cls.from_dict(read_object(path, BundleError))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make a config of the fields of a generation_config.json, as `from_folder` does."""
        lacking = unsupported_fields(request_values.mapping("the generation config", data))
        if lacking:
            raise RequestError(
                f"the generation config has {lacking}, which this runtime does not have, and which would change what "
                "is generated. Take it out."
            )
        sampled = {"temperature": 1.0, "top_k": DEFAULT_TOP_K} if data.get("do_sample") else {}
        names = FIELDS & set(GENERATION_FIELDS) - (set() if sampled else SAMPLING_FIELDS)
        given = {name: data[name] for name in names if data.get(name) is not None}
        if "min_new_tokens" in given:  # even where it is 0
            given.pop("min_length", None)
        return cls(**sampled | given)

    def replaced_by(self, config: Any) -> "GenerationConfig":
        """Return the config of a call, or this one for None. Raises RequestError for anything else."""
        if config is None:
            return self
        if not isinstance(config, GenerationConfig):
            raise RequestError(
                f"config is {request_values.shown(config)}; it must be a GenerationConfig, or None for the model's own."
            )
        return config

    def override(self, options: Mapping[str, Any]) -> Self:
        """Return this config with other values; max_new_tokens=None leaves the value that it has.

        A temperature turns beam search off unless num_beams is given with it. Raises UnknownOptionError for a name that
        is no field, and RequestError for a value outside its range.
        """
        names = request_values.mapping("options", options).keys()
        unknown = sorted(map(str, names - FIELDS))
        if unknown:
            known = ", ".join(sorted(FIELDS - {"max_new_tokens", "stop"}))
            proposed = request_values.nearest(unknown[0], sorted(FIELDS))
            raise UnknownOptionError(
                f"there is no option {unknown[0]}; there are {known}, max_new_tokens, stop.{proposed}"
            )
        changes = {name: value for name, value in options.items() if name != "max_new_tokens" or value is not None}
        if "min_new_tokens" in changes:
            changes.setdefault("min_length", 0)
        if changes.get("temperature", 0):
            changes.setdefault("num_beams", 1)
        return replace(self, **changes) if changes else self

    @cached_property
    def sampling(self) -> Sampling:
        """The fields that choose a token from logits; the repetition penalty is one of `rules`."""
        return Sampling(**{name: getattr(self, name) for name in SAMPLING_FIELDS})

    @cached_property
    def rules(self) -> Rules:
        """The fields that forbid, force or penalise tokens."""
        fields = {name: getattr(self, name) for name in RULES_FIELDS}
        return Rules(**fields | ({"min_length": 0} if self.min_new_tokens else {}))

    @cached_property
    def dry(self) -> Dry:
        """The fields of DRY, which penalises what repeats."""
        return Dry(**{name: getattr(self, name) for name in DRY_FIELDS})

    @cached_property
    def structured_output(self) -> StructuredOutput:
        """The fields of structured output."""
        return StructuredOutput(json_schema=self.json_schema, regex=self.regex, grammar=self.grammar)

    def beam_search(self, num_return_sequences: int = 1) -> BeamSearch:
        """Return the fields of beam search. Raises RequestError for more sequences than beams."""
        request_values.integer("num_return_sequences", num_return_sequences)
        return BeamSearch(
            num_beams=self.num_beams,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            renormalize_logits=self.renormalize_logits,
            num_return_sequences=num_return_sequences,
        )


FIELDS = {field.name for field in fields(GenerationConfig)}
DRY_FIELDS = {field.name for field in fields(Dry)}
RULES_FIELDS = {field.name for field in fields(Rules)}
SAMPLING_FIELDS = {field.name for field in fields(Sampling)} - RULES_FIELDS
