"""Execution providers of onnxruntime: what plans, graphs and sessions need to know of each.

Options and manifests name them; `find_provider` returns the object. What takes onnxruntime is an object by the same
name in `edgeformer.runtime.sessions.providers`, what graphs must keep to is one in `edgeformer.export.lower.providers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from edgeformer.errors import EdgeformerError, shown
from edgeformer.manifest.parts import Arithmetic, CachePrecision, Precision

ProviderName = Literal["cpu", "cuda", "webgpu"]
ProviderChoice = Literal["auto", "cpu", "cuda", "webgpu"]
"""A provider, or the best one of a machine."""

OTHERS = "ExecutionProvider"
"""The end of onnxruntime's names of execution providers, by which those that have no entry here are asked for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Provider:
    """An execution provider that graphs are lowered for and run on.

    Attributes:
        name: by which options and manifests name it, and onnxruntime its memory.
        title: its name in sentences.
        execution_provider: onnxruntime's name of it.
        on_device: whether it has memory and threads of its own, apart from those of the host.
        addresses_rows: whether graphs can be bound to any rows of a buffer; else to its first rows alone.
        integers_on_device: whether it computes with token ids and masks, which are int64; else the host does.
        arithmetic: what a graph computes in where nobody chose it, by the precision of its weights.
        quantized_arithmetic: what else graphs of quantized weights may compute in.
        cache_precisions: the precisions that a cache can have beside that of activations.
        per_token: whether it has products that quantize their activations per token.
        float32_attention: whether onnxruntime's own attention op has float32 kernels.
        standard_attention: whether it has kernels of ONNX's own attention op, of the op set `standard`.
        largest_int4_block: the most weights of an int4 block that its kernels take; None for any number.
        rounds_activations: whether its products in blocks round activations to int8 where a graph allows it.
        own_kernels: whether edgeformer-kernels are for it.
        prepacked: whether its sessions open prepacked graphs.
        merged_decoder: whether clients that want one graph for all steps run on it.
        browser_device: what clients in browsers call it; None where browsers have none.
        genai_options: its options in a config of onnxruntime-genai; None where that needs no entry for it.
        twin: the provider on which float32 twins of its graphs are verified where there is no device.
    """

    name: ProviderName
    title: str
    execution_provider: str
    on_device: bool
    addresses_rows: bool = True
    integers_on_device: bool = True
    arithmetic: Mapping[Precision, Arithmetic]
    quantized_arithmetic: frozenset[Arithmetic] = frozenset()
    cache_precisions: tuple[CachePrecision, ...] = ("fp16", "int8")
    per_token: bool = False
    float32_attention: bool = True
    standard_attention: bool = True
    largest_int4_block: int | None = None
    rounds_activations: bool = False
    own_kernels: bool = False
    prepacked: bool = False
    merged_decoder: bool = False
    browser_device: str | None = None
    genai_options: Mapping[str, str] | None = None
    twin: ProviderName | None = None

    def __str__(self) -> str:
        return self.name


CPU = Provider(
    name="cpu",
    title="CPU",
    execution_provider="CPUExecutionProvider",
    on_device=False,
    arithmetic={"fp32": "fp32", "fp16": "fp16", "bf16": "fp32", "int8": "fp32", "int4": "fp32"},
    per_token=True,
    rounds_activations=True,
    own_kernels=True,
    prepacked=True,
    merged_decoder=True,
    browser_device="wasm",
)

CUDA = Provider(
    name="cuda",
    title="CUDA",
    execution_provider="CUDAExecutionProvider",
    on_device=True,
    arithmetic={"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "fp16", "int4": "fp16"},
    quantized_arithmetic=frozenset({"fp16", "bf16"}),
    cache_precisions=("int8", "fp8"),
    float32_attention=False,
    largest_int4_block=128,
    genai_options={"use_tf32": "0"},
    twin="cpu",
)

WEBGPU = Provider(
    name="webgpu",
    title="WebGPU",
    execution_provider="WebGpuExecutionProvider",
    on_device=True,
    addresses_rows=False,
    integers_on_device=False,
    arithmetic={"fp32": "fp32", "fp16": "fp16", "bf16": "fp32", "int8": "fp32", "int4": "fp32"},
    quantized_arithmetic=frozenset({"fp16"}),
    cache_precisions=(),
    standard_attention=False,
    rounds_activations=True,
    browser_device="webgpu",
    twin="cpu",
)

PROVIDERS: dict[ProviderName, Provider] = {each.name: each for each in (CPU, CUDA, WEBGPU)}
"""The providers by name."""


def find_provider(name: ProviderName | str, error: type[EdgeformerError] = EdgeformerError) -> Provider:
    """Return the provider of a name. Raises `error` for a name that none has."""
    if not isinstance(name, str) or name not in PROVIDERS:
        raise error(f"provider is {shown(name)}; it must be one of {', '.join(PROVIDERS)}.")
    return PROVIDERS[name]


def unproven_provider(execution_provider: str) -> Provider:
    """Return a provider that onnxruntime alone knows: it runs graphs for the CPU, whose tensors stay in its memory."""
    return replace(
        CPU,
        title=execution_provider.removesuffix(OTHERS),
        execution_provider=execution_provider,
        own_kernels=False,
        prepacked=False,
        browser_device=None,
    )
