"""The options of `generate`: one typed config, read from generation_config.json or given by keyword.

    model.generate("Once", max_new_tokens=8, temperature=0.7)         # override fields of the model's own config
    model.generate("Once", config=GenerationConfig(max_new_tokens=8)) # replace the model's own config

The options themselves are declared in `edgeformer.options.generation`. The config is split into what the parts of the
runtime take: `Sampling`, `Rules`, `Dry`, `StructuredOutput` and `BeamSearch`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from edgeformer.documents.json_document import read_object
from edgeformer.errors import BundleError, RequestError
from edgeformer.options.generation import (
    OPTIONS,
    SAMPLING_NAMES,
    BeamOptions,
    DryOptions,
    LengthOptions,
    LogprobOptions,
    RuleOptions,
    SamplingOptions,
    SpeculationOptions,
    StructuredOutputOptions,
    ThinkingOptions,
)
from edgeformer.options.generation import GenerationOptions as GenerationOptions
from edgeformer.options.generation_fields import GENERATION_FIELDS, unsupported_fields
from edgeformer.runtime import request_values
from edgeformer.runtime.generation.beam_search import BeamSearch
from edgeformer.runtime.generation.option_checks import option_value
from edgeformer.runtime.generation.sampling.dry import Dry
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.generation.sampling.logits_rules import Rules
from edgeformer.runtime.generation.sampling.sampling import Sampling
from edgeformer.runtime.generation.sampling.structured_output import StructuredOutput

FILE_NAME = "generation_config.json"

DEFAULT_TOP_K = 50
"""top_k of a generation_config.json that samples and names none. Source: `GenerationConfig` of transformers 5.23."""


class UnknownOptionError(RequestError, TypeError):
    """A keyword that `generate` does not have. It is a TypeError too, as of any Python function."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(
    BeamOptions,
    SpeculationOptions,
    StructuredOutputOptions,
    ThinkingOptions,
    DryOptions,
    RuleOptions,
    LogprobOptions,
    SamplingOptions,
    LengthOptions,
):
    """How a model generates. The fields are declared in `edgeformer.options.generation`.

    Raises RequestError for a value outside its range; its `field` is the option.
    """

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is not option.default:
                object.__setattr__(self, name, option_value(option, value))
        self._check_combinations(self.num_beams > 1)

    def _check_combinations(self, beams: bool) -> None:
        """Raise RequestError for options that exclude each other, or that need another one."""
        structured = [name for name in ("json_schema", "regex", "grammar") if getattr(self, name) is not None]
        if len(structured) > 1:
            raise RequestError(f"{' and '.join(structured)} exclude each other; give one of them.", field=structured[0])
        if beams and self.temperature:
            raise RequestError("num_beams searches and temperature draws; give only one of them.", field="num_beams")
        if beams and self.logprobs:
            raise RequestError("a beam search returns scores of texts, not logprobs of tokens; use num_beams=1.")
        if beams and structured:
            raise RequestError("structured output does not work with beams; use num_beams=1.")
        if self.ignore_eos and structured:
            raise RequestError("structured output ends where it is complete; take ignore_eos out.", field="ignore_eos")
        if beams and self.prompt_lookup_num_tokens:
            raise RequestError(
                "prompt_lookup_num_tokens does not work with beams; use num_beams=1.", field="prompt_lookup_num_tokens"
            )
        if self.top_logprobs and not self.logprobs:
            raise RequestError(f"top_logprobs is {self.top_logprobs}, which needs logprobs=True.", field="top_logprobs")
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if getattr(self, name) in self.suppress_tokens:
                raise RequestError(
                    f"{name} is {getattr(self, name)}, which is in suppress_tokens too, so that no token could come. "
                    "Take it out of one of them; min_new_tokens delays an end.",
                    field=name,
                )

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
        names = OPTIONS.keys() & set(GENERATION_FIELDS) - (set() if sampled else SAMPLING_NAMES)
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
        is not a field, and RequestError for a value outside its range.
        """
        names = request_values.mapping("options", options).keys()
        unknown = sorted(map(str, names - OPTIONS.keys()))
        if unknown:
            known = ", ".join(sorted(OPTIONS.keys() - {"max_new_tokens", "stop"}))
            proposed = request_values.nearest(unknown[0], sorted(OPTIONS))
            raise UnknownOptionError(
                f"there is no option {unknown[0]}; there are {known}, max_new_tokens, stop.{proposed}",
                field=unknown[0],
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
        return Sampling(**self._values_of(Sampling))

    @cached_property
    def rules(self) -> Rules:
        """The fields that forbid, force or penalise tokens."""
        return Rules(**self._values_of(Rules) | ({"min_length": 0} if self.min_new_tokens else {}))

    @cached_property
    def dry(self) -> Dry:
        """The fields of DRY, which penalises what repeats."""
        return Dry(**self._values_of(Dry))

    @cached_property
    def structured_output(self) -> StructuredOutput:
        """The fields of structured output."""
        return StructuredOutput(**self._values_of(StructuredOutput))

    def beam_search(self, num_return_sequences: int = 1) -> BeamSearch:
        """Return the fields of beam search. Raises RequestError for more sequences than beams."""
        request_values.integer("num_return_sequences", num_return_sequences)
        return BeamSearch(**self._values_of(BeamOptions), num_return_sequences=num_return_sequences)

    def _values_of(self, group: type[Any]) -> dict[str, Any]:
        """Return the values of a group of options."""
        return {field.name: getattr(self, field.name) for field in fields(group)}


class CallOptions(GenerationOptions, total=False):
    """Keywords of every call that generates; the overloads of `generate` and `translate` name them by this."""

    config: GenerationConfig | None
    logits_processors: Sequence[LogitsProcessor]


GenerationConfig.__doc__ = f"{GenerationConfig.__doc__}\n\n" + "\n".join(
    f"    {name}: {option.help} {option.more}".rstrip() for name, option in OPTIONS.items()
)
