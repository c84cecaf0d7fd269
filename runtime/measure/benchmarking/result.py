"""The figures of a benchmark as dataclasses. Sizes are bytes, times seconds, rates per second, fractions 0 to 1."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from edgeformer.config import Task
from edgeformer.manifest.parts import OpSet, Precision
from edgeformer.manifest.providers import ProviderName
from edgeformer.runtime.sessions.kernel_report import KernelReport


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The median, smallest and largest value of a figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise one value per round."""
        return cls(median=median(values), low=min(values), high=max(values))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The minimum cost of a token: FLOPs of the matrix products, bytes of weights and cache that are read."""

    flops: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Roofs:
    """Peak rates of the machine, measured in the same rounds with the session's threads.

    bandwidth: bytes read per second from an array larger than the processor's caches. fp32, int8: operations per second
    of matrix products of the shape `matmul` (rows, inputs, outputs).
    """

    bandwidth: Spread
    fp32: Spread
    int8: Spread
    matmul: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The kernels of one op in a prefill or a decode step.

    count: kernel runs. fraction: of the time of all kernels. seconds: mean per kernel run.
    """

    op: str
    count: int
    fraction: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Prefill (of a prompt, a source, an encoder's texts) or decoding, over all rows of a batch.

    flops_per_token, bytes_per_token: see `Cost`. The fractions are throughput · cost / peak rate, of medians. They are
    None where the cost or the rate is not known; `BenchmarkResult.notes` says why. kernels: time per op, longest first;
    None unless a profile was asked for.
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
        """Relate a throughput to the cost of a token and to the peak rates of the machine."""
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

    Attributes:
        tokens: length of every prompt, source or text; of a recording, positions of the encoder.
        new_tokens: per row, 0 for an encoder.
        first_token_seconds: time to first token (TTFT), from token ids (of a recording, samples) until every row has
            its first new token, with the allocation of the cache; None for an encoder.
        seconds: the whole request.
        prefill: the prompt or the encoder alone.
        decode: all steps after the first new token.
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
    """Peak resident memory of a fresh process that loads the bundle and runs the largest workload.

    before_load_bytes: with Python, numpy and onnxruntime imported, before the bundle is loaded. peak_bytes: as the
    operating system reports it. private_bytes, file_bytes: peaks of memory of this process only, and of files mapped
    into it (weights and libraries), which the system may drop and read again; both from samples, so the peaks may be
    at different times, and None where the system does not tell them apart.
    """

    before_load_bytes: int
    peak_bytes: int
    private_bytes: int | None
    file_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult:
    """All figures of one bundle on one machine.

    Attributes:
        import_seconds: to import the runtime with onnxruntime, in a fresh process.
        load_seconds: of `load` after that; the system has likely cached the bundle's files.
        memory, roofs: None where they cannot be measured; notes says why.
        kernels: what ran the functions of the graphs.
        versions: of Python, the machine's architecture and packages.
    """

    name: str
    task: Task
    precision: Precision
    ops: OpSet
    provider: ProviderName
    threads: int
    kernels: KernelReport
    rounds: int
    import_seconds: Spread
    load_seconds: Spread
    memory: Memory | None
    roofs: Roofs | None
    workloads: tuple[Workload, ...]
    notes: tuple[str, ...]
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return dicts, lists and scalars; unknown figures are None."""
        return asdict(self)
