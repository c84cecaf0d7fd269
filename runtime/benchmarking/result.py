"""What a benchmark found, as plain data. Sizes are bytes, times seconds, rates per second; fractions are of 1."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from edgeformer.manifest import OpSet, Precision, Provider, Task


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise one value a round."""
        return cls(median=median(values), low=min(values), high=max(values))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one token must cost: floating-point operations of the matrix products, bytes of weights and cache read."""

    flops: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Roofs:
    """What the machine does at best, measured in the same rounds with the session's threads.

    bandwidth: bytes read a second, of an array larger than caches. fp32, int8: operations a second of matrix products
    of the shape `matmul` (rows, inputs, outputs).
    """

    bandwidth: Spread
    fp32: Spread
    int8: Spread
    matmul: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Of one op, in the reading of a request or in a step: how many, their part of the time of all, seconds of each."""

    op: str
    count: int
    fraction: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Reading (a prompt, a source, texts) or decoding, over all rows of a batch.

    flops_per_token, bytes_per_token: see `Cost`. The fractions are the speed times that over the machine's rate, of
    medians. All are None where they cannot be known; `BenchmarkResult.notes` says why. kernels: where the time goes,
    what takes most of it first; None unless it was asked for.
    """

    tokens_per_second: Spread
    flops_per_token: float | None = None
    bytes_per_token: float | None = None
    bandwidth_fraction: float | None = None
    fp32_fraction: float | None = None
    int8_fraction: float | None = None
    kernels: tuple[Kernels, ...] | None = None

    @classmethod
    def of(cls, tokens_per_second: Spread, cost: Cost | None, roofs: Roofs | None) -> "Phase":
        """Relate a speed to what a token costs and to what the machine can do."""
        if cost is None:
            return cls(tokens_per_second=tokens_per_second)
        phase = cls(tokens_per_second=tokens_per_second, flops_per_token=cost.flops, bytes_per_token=cost.bytes)
        if roofs is None:
            return phase
        return replace(
            phase,
            bandwidth_fraction=cost.bytes * tokens_per_second.median / roofs.bandwidth.median,
            fp32_fraction=cost.flops * tokens_per_second.median / roofs.fp32.median,
            int8_fraction=cost.flops * tokens_per_second.median / roofs.int8.median,
        )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests of one length and batch size.

    tokens: of every prompt, source or text; of a recording, positions of the encoder. new_tokens: generated for every
    row, 0 by an encoder. first_token_seconds: from token ids (of a recording, samples) until every row has its first
    new token, the allocation of the cache included; None for an encoder. seconds: the whole request. prefill: reading
    alone. decode: all steps after the first new token.
    """

    tokens: int
    batch_size: int
    new_tokens: int
    first_token_seconds: Spread | None
    seconds: Spread
    prefill: Phase
    decode: Phase | None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak resident memory of a fresh process that loads the bundle and answers the largest workload.

    before_load_bytes: with Python, numpy and onnxruntime imported, and nothing loaded. peak_bytes: the kernel's own
    figure. private_bytes, file_bytes: the peaks of what only this process has, and of files mapped into it (weights and
    libraries), which the system may drop and read again; each from samples, at moments of its own, and None where the
    system does not tell them apart.
    """

    before_load_bytes: int
    peak_bytes: int
    private_bytes: int | None
    file_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult:
    """All figures of one bundle on one machine.

    import_seconds, load_seconds: of fresh processes, to import the runtime with onnxruntime, and then to `load` the
    bundle, whose files the system has likely cached. memory, roofs: None where `notes` says why.
    """

    name: str
    task: Task
    precision: Precision
    ops: OpSet
    provider: Provider
    threads: int
    rounds: int
    import_seconds: Spread
    load_seconds: Spread
    memory: Memory | None
    roofs: Roofs | None
    workloads: tuple[Workload, ...]
    notes: tuple[str, ...]
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Dicts, lists and scalars; a figure that is not known is there, as None."""
        return asdict(self)
