"""The parts of a bundle's manifest: what it says of files, weights, graphs, adapters and prompts, and its choices."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edgeformer.errors import ConfigError, shown
from edgeformer.manifest.quantization import WeightFormat

Arithmetic = Literal["fp32", "fp16", "bf16"]
"""Data type of activations, and of caches and weights that are not quantized."""
Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]
"""Data type of weights; int8 and int4 have a `Quantization`. `Provider.arithmetic` says what a graph computes in."""
QuantizedCache = Literal["int8", "fp8"]
"""Data type of keys and values in a quantized cache; fp8 is float8e4m3fn."""
CachePrecision = Literal["fp32", "fp16", "int8", "fp8"]
"""Data type of keys and values in a cache."""
OpSet = Literal["ort", "standard", "portable"]
Backend = Literal["transformers"]
"""Libraries whose own modules can be exported by module patching."""


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, kw_only=True)
class ScaledOutputs:
    """A factor that a pass has folded into the weights of the first `outputs` outputs of a matrix product."""

    outputs: int
    factor: float


@dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """How one tensor of a graph was made from parameters.

    Attributes:
        parameters: names of the parameters, concatenated along the last axis of the tensor.
        transposed: whether each parameter was transposed first.
        scaled: a factor that was applied to the concatenated matrix.
        quantized: the format in which the matrix is stored; None where it is not quantized.
        part: which part of the quantized matrix the tensor is: integers, scales or zero_points.
        columns: whether the matrix is quantized by columns instead of rows.
        interleaved: the parameters [X, out, …] of X experts are joined along axis 1 instead, and their entries
            alternate.
    """

    parameters: tuple[str, ...]
    transposed: bool
    scaled: ScaledOutputs | None = None
    quantized: WeightFormat | None = None
    part: str | None = None
    columns: bool = False
    interleaved: bool = False


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Token ids that generation needs: each of `eos` ends a text; `bos` and `pad` may be absent."""

    eos: tuple[int, ...]
    bos: int | None
    pad: int | None


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Tensors of a checkpoint that a part of its model does not have: their modality, number, and parameters."""

    modality: str
    tensors: int
    parameters: int

    def __str__(self) -> str:
        tensors = "1 tensor" if self.tensors == 1 else f"{self.tensors:,} tensors"
        return f"{self.modality} ({tensors}, {self.parameters / 1e6:,.1f} M parameters)"


@dataclass(frozen=True, kw_only=True)
class TextModelOf:
    """The bigger model whose text model was exported, and what was left out of it.

    Attributes:
        model_type: the bigger model's.
        left_out: by modality; empty where its checkpoint holds the text model alone.
    """

    model_type: str
    left_out: tuple[LeftOut, ...]

    def __str__(self) -> str:
        parts = "; ".join(map(str, self.left_out)) or "nothing, for the checkpoint holds no more"
        return f"text model of {self.model_type}; left out: {parts}"


@dataclass(frozen=True, kw_only=True)
class AdapterOrigin:
    """A LoRA adapter that a bundle was made with.

    Attributes:
        name: of its folder.
        kind: what it is, for people, such as `LoRA of rank 8`.
        base: the model that it was trained on, as its config names it.
        config_sha256, weights_sha256: of adapter_config.json and adapter_model.safetensors.
    """

    name: str
    kind: str
    base: str | None
    config_sha256: str
    weights_sha256: str

    def __str__(self) -> str:
        trained_on = "" if self.base is None else f", trained on {self.base}"
        return f"{self.name} ({self.kind}{trained_on})"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the model of a bundle comes from.

    Attributes:
        source: the origin, for people.
        random_weights: seed of a model without trained weights; None with a checkpoint.
        backend: library that has the module of an export without model config; None for a module of the user.
        text_model_of: the bigger model that this is the text model of, if it is one.
        merged_adapter: the LoRA adapter that was merged into the weights, if there was one.
        pickled_weights: SHA-256 of each pickle that the weights were read from, by name; empty for safetensors.
        left_out: what was left out of a model that is no text model alone, such as the part of it that hears; None for
            nothing.
    """

    source: str
    random_weights: int | None = None
    backend: Backend | None = None
    text_model_of: TextModelOf | None = None
    merged_adapter: AdapterOrigin | None = None
    pickled_weights: dict[str, str] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class BundledAdapter:
    """A LoRA adapter of a bundle, kept apart from the weights.

    Attributes:
        name: by which requests choose it.
        file: path in the bundle of a safetensors file with the inputs of the adapter graph, for one row.
        origin: what it was made from.
    """

    name: str
    file: str
    origin: AdapterOrigin


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """The learned numbers with which a dual encoder compares a text and a picture: scale · cosine + bias."""

    scale: float
    bias: float

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"the scale of the similarity is {self.scale}; it must be positive.")


@dataclass(frozen=True, kw_only=True)
class TextPrompts:
    """Texts that a sentence encoder was trained to find before others, such as `query: `.

    Attributes:
        by_name: each of them.
        default: the name of the one that is used where none is named; None for none.
    """

    by_name: dict[str, str]
    default: str | None = None

    def __post_init__(self) -> None:
        if self.default is not None and self.default not in self.by_name:
            known = ", ".join(self.by_name) or "none"
            raise ConfigError(f"the default prompt {shown(self.default)} is none of the model's prompts: {known}.")
