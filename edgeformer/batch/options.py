"""Options of a job, checked."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from edgeformer.errors import RequestError
from edgeformer.manifest.providers import PROVIDERS, ProviderName

Verb = Literal["generate", "chat", "translate", "transcribe", "embed", "classify", "fill-mask", "perplexity"]
VERBS: tuple[Verb, ...] = get_args(Verb)

Format = Literal["parquet", "jsonl"]

SHARD_ROWS = 1024
"""Rows of a shard, unless the job says otherwise: what is lost when a worker dies, and few enough for its memory."""

MAX_ROWS = 64
"""Rows that are generated together, unless the job says otherwise. With tiny-translate 64 are 1.1 times as fast as 16,
and 128 no faster than 64; a request waits for nobody here, so it may be more than the default of `Engine`."""

ENGINE_MEMORY = 1 << 30
"""Bytes of cache that running rows may need together. It is a fixed number, as what is free differs between nodes, and
which rows run together must not."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The options of a job. Jobs with equal options, input and bundle write the same bytes.

    Attributes:
        verb: None for what the bundle's task suggests.
        column: the one that holds the prompt; None for the verb's default.
        images: the column that holds the pictures of the prompt; None for `images` or `image`, if there is one and the
            bundle reads pictures.
        sounds: the column that holds its recordings; None for `sounds`, `sound` or `audio`, likewise.
        template: a Jinja template over the columns of a row that gives the prompt instead.
        format: of the shards.
        shard_rows: rows of a shard at most.
        max_rows: rows that are generated together.
        threads: of one worker; None for what the size of the bundle suggests.
        seed: of the job; each row's own follows from it and the row's number.
        prefix: put before the names of the new columns.
        cache_precision: as `edgeformer.runtime.load` takes it.
        generation: options of `CausalLM.generate` or `Seq2SeqLM.generate`, with source_language and target_language for
            translations and language for recordings.

    Raises RequestError for numbers out of range and unknown names.
    """

    verb: Verb | None = None
    column: str | None = None
    images: str | None = None
    sounds: str | None = None
    template: str | None = None
    format: Format = "parquet"
    shard_rows: int = SHARD_ROWS
    max_rows: int = MAX_ROWS
    threads: int | None = None
    seed: int = 0
    prefix: str = ""
    provider: ProviderName = "cpu"
    cache_precision: Literal["int8"] | None = None
    generation: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, most in (("shard_rows", 1_000_000), ("max_rows", 4096), ("threads", 4096), ("seed", 2**63 - 1)):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            if value is None and name == "threads":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise RequestError(f"{name} is {value!r}; it must be a whole number from {least} to {most:,}.")
        choices = {
            "verb": (None, *VERBS), "format": get_args(Format), "provider": tuple(PROVIDERS),
            "cache_precision": (None, "int8"),
        }  # fmt: skip
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise RequestError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(map(str, known))}."
                )
        if "seed" in self.generation:
            raise RequestError("seed is among the options of generation; give the job's own seed instead.")

    def to_json(self) -> dict[str, Any]:
        """Return the options as they stand in the record of a job."""
        return asdict(self)
