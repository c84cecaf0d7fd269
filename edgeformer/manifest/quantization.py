"""The quantization config: which weights are stored as integers, and how. The manifest of a bundle keeps it.

A weight [out, in] is cut along its inputs into blocks of `block` weights. Each block has one scale and, unless the
format is symmetric, one zero point:

    w ≈ scale · (integer − zero point)

In a symmetric format no zero points are stored; they are all 2^(bits − 1), the middle of the integers' range.

Products read integers of 4 or 8 bits. Those of 3, 5 and 6 bits are the highest bits of these, with the scale divided by
as much. A file leaves the other bits out, or keeps them, which takes more of the file and opens faster. Products of
onnxruntime take the time and the memory of the wider integers; our kernels read 5 and 6 bits as 6.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import ClassVar, Literal, get_args

from edgeformer.documents.option import check_options, option
from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError

Bits = Literal[3, 4, 5, 6, 8]
Rounding = Literal["nearest", "mse", "gptq"]
Scales = Literal["fp32", "fp16"]
"""Data type in which scales are stored, for a CPU; a graph that computes in half precision has scales of that type."""
SCALE_BYTES: dict[Scales, int] = {"fp32": 4, "fp16": 2}
Activations = Literal["block", "per_token"]
"""Inputs of a product that share an activation scale: those that a block of weights reads, or all of a token."""
BLOCKS = (16, 32, 64, 128, 256)
"""Weights in a block, as onnxruntime's MatMulNBits and GatherBlockQuantized take them."""
LONG = 64
"""Weights of a block from which on longer ones gain little: an int8 product with blocks of 16 took 1.4 times as long as
with 64, and of 32 1.15 times (our kernels, 256 tokens, two threads of an AMD Zen 4); a scale takes 2 or 4 bytes."""
MOST_FILLED = 1 / 16
"""The zeros that may fill the last block of a row, as a part of it: they are stored and multiplied like weights. A
sixteenth more is less than what blocks of 32 cost in int8 beside longer ones, an eighth of the bytes in scales."""

VOCABULARY = ("*head.weight", "*embedding.weight")
"""Patterns of the parameters that have one row per token of the vocabulary."""
MATRICES = "*.weight"
"""Pattern of the weights of linear layers and embeddings. Constant tables (rotary cosines) have other names."""
SMALL_TABLES = ("*position_embedding.weight", "*token_type_embedding.weight", "*relative.*.weight")
"""Patterns of small embeddings that are added to hidden states or scores; they are not quantized."""
ROUTERS = ("*router.projection.weight", "*shared_gate.weight", "*altup.*.weight")
"""Patterns of the layers that choose and weigh experts, or weigh residual streams; they are not quantized: they are
small, and an error of theirs chooses other experts."""
TOWERS = ("tower.*", "projector.*", "deepstack.*")
"""Patterns of the parameters of a tower before a decoder. They stay floats unless it is asked for: outliers of a tower
cost much, and what it makes of a picture is computed once."""
DECODER_MATRICES = "decoder.*.weight"
"""Pattern of the decoder of an encoder-decoder, which reads one token per step."""
CROSS_ATTENTION_KEYS_VALUES = ("decoder.*cross_attention.key.weight", "decoder.*cross_attention.value.weight")
"""Patterns of the decoder's layers that read all encoder outputs at once."""


FEW = 4
"""Names that a description lists; more are counted."""


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """How the integers of a matrix are made.

    block: weights that share a scale. None, for symmetric int8 only, is per-channel: one scale per output, and products
    with such a matrix quantize their inputs to int8 with one scale per token.
    rounding: `nearest` takes the scale from the largest weight of a block. `mse` searches the scale and integers of
    least squared error. `gptq` minimizes the error of the products on the inputs of a calibration text.
    scales: their data type. Weights are rounded to steps of the stored scale.
    packed: whether a file leaves out the bits that are not used; of 3, 5 and 6 bits only.
    """

    bits: Bits
    block: int | None
    symmetric: bool = True
    rounding: Rounding = "nearest"
    scales: Scales = "fp32"
    packed: bool = True

    def __post_init__(self) -> None:
        per_channel = self.block is None and self.bits == 8 and self.symmetric
        check(self.block is not None or self.scales == "fp32", self, "scales", "fp32 for one scale per output")
        for name, choices in (
            ("bits", get_args(Bits)),
            ("block", BLOCKS),
            ("rounding", get_args(Rounding)),
            ("scales", get_args(Scales)),
        ):
            allowed = getattr(self, name) in choices or (name == "block" and per_channel)
            check(allowed, self, name, f"one of {', '.join(map(str, choices))}")
        plain = self.symmetric and self.block is not None
        check(plain or not self.unused_bits, self, "bits", "4 or 8 with zero points or one scale for each output")

    @property
    def product_bits(self) -> Literal[4, 8]:
        """The bits of the integers that products read."""
        return 4 if self.bits <= 4 else 8

    @property
    def unused_bits(self) -> int:
        """The lowest bits of those integers, which are 0."""
        return self.product_bits - self.bits

    @property
    def stored_bits(self) -> Bits:
        """The bits that a file has of an integer."""
        return self.bits if self.packed else self.product_bits

    @property
    def zero(self) -> int:
        """The zero point of a symmetric format."""
        return 1 << (self.bits - 1)

    @property
    def reads_calibration(self) -> bool:
        """Whether the integers are chosen on the inputs of a calibration text."""
        return self.rounding == "gptq"

    def without_calibration(self) -> "WeightFormat":
        """Return the format of a matrix that no calibration text reached: this one, rounded by its weights alone."""
        return replace(self, rounding="mse") if self.reads_calibration else self

    def fitted(self, inputs: int) -> "WeightFormat | None":
        """Return this format with the largest block up to its own that divides `inputs`, or None if no block does."""
        if self.block is None:
            return self
        blocks = [block for block in BLOCKS if block <= self.block and inputs % block == 0]
        return replace(self, block=blocks[-1]) if blocks else None

    def fitted_to_product(self, inputs: int) -> "WeightFormat | None":
        """Return this format with a block for a matrix that products alone read, or None if no block fits.

        Zeros may fill its last block where blocks that divide `inputs` are shorter than LONG, and up to MOST_FILLED of
        a row. Weights that are rounded by a calibration text have blocks that divide.
        """
        fitted = self.fitted(inputs)
        divides = 0 if fitted is None else fitted.block or inputs
        if self.block is None or self.reads_calibration or divides >= LONG:
            return fitted
        longer = [block for block in BLOCKS if divides < block <= self.block]
        filled = [block for block in longer if -inputs % block <= MOST_FILLED * inputs]
        return replace(self, block=filled[-1]) if filled else fitted

    def blocks_of(self, inputs: int) -> int:
        """Return the blocks of a row; zeros fill the last one."""
        return 1 if self.block is None else -(-inputs // self.block)

    def part_bytes(self, outputs: int, inputs: int) -> tuple[int, int, int]:
        """Return the bytes of the integers, the scales and the zero points of a weight [outputs, inputs]."""
        blocks = self.blocks_of(inputs)
        stored = blocks * (self.block or inputs)
        zeros = 0 if self.symmetric else -(-blocks * self.bits // 8)
        return outputs * (stored * self.stored_bits // 8), outputs * blocks * SCALE_BYTES[self.scales], outputs * zeros

    def bytes_of(self, outputs: int, inputs: int) -> int:
        """Return the bytes of a weight [outputs, inputs]."""
        return sum(self.part_bytes(outputs, inputs))

    def __str__(self) -> str:
        extras = [] if self.symmetric else ["asymmetric"]
        extras += [self.rounding] if self.rounding != "nearest" else []
        extras += ["float16 scales"] if self.scales == "fp16" else []
        extras += [f"stored as int{self.stored_bits}"] if self.stored_bits != self.bits else []
        where = "per channel" if self.block is None else f"in blocks of {self.block}"
        return ", ".join([f"int{self.bits} {where}", *extras])


@dataclass(frozen=True, kw_only=True)
class QuantizationRule:
    """The format of the parameters whose names match a shell pattern; None does not quantize them."""

    pattern: str
    format: WeightFormat | None


@dataclass(frozen=True, kw_only=True)
class CalibrationText:
    """The calibration text: the name of its file, the number of tokens that were read, and the file's SHA-256.

    pictures: that stand in it; their states are among the tokens.
    """

    name: str
    tokens: int
    sha256: str
    pictures: int = 0

    def describe(self) -> str:
        """Describe how much was read, and of what."""
        count = self.pictures
        seen = f", those of {count:,} picture{'s' * (count > 1)} included," if count else ""
        return f"{self.tokens:,} tokens{seen} of {self.name}"


@dataclass(frozen=True, kw_only=True)
class SmoothedNorm:
    """A norm whose channels were divided by powers of two that multiply the columns of the layers that read it.

    parameters: the norm's weight [K] and its bias [K], if it has one. readers: the weights [N, K] of those layers.
    """

    parameters: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """The norms that were smoothed before quantization, and the text that their factors were chosen on."""

    norms: tuple[SmoothedNorm, ...]
    text: CalibrationText

    def __str__(self) -> str:
        return f"{len(self.norms)} norms, by {self.text.tokens:,} tokens of {self.text.name}"


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The quantization config: the first rule that matches a matrix's name decides; others are not quantized.

    calibration: the text of `gptq`, None before it is known and where no rule needs it. A `gptq` matrix that the text
    does not reach in a linear layer is rounded by `mse`, and so are experts.
    """

    rules: tuple[QuantizationRule, ...]
    calibration: CalibrationText | None = None

    def format_of(self, parameter: str, *, gathered: bool = False) -> WeightFormat | None:
        """Return the format of a parameter (`blocks.0.attention.query.weight`), or None if it is not quantized.

        gathered: an embedding gather reads its rows, or it is one of several experts. That cannot be per-channel, so
            such rules are skipped.
        """
        fits = (rule.format for rule in self.rules if fnmatchcase(parameter, rule.pattern))
        return next((form for form in fits if not (gathered and form is not None and form.block is None)), None)

    @property
    def per_token(self) -> bool:
        """Whether any rule quantizes the inputs of products per token."""
        return any(rule.format is not None and rule.format.block is None for rule in self.rules)

    @property
    def half_scales(self) -> bool:
        """Whether any rule has float16 scales."""
        return any(rule.format is not None and rule.format.scales == "fp16" for rule in self.rules)

    @property
    def packed(self) -> bool:
        """Whether a file leaves bits of the integers of any rule out."""
        forms = [rule.format for rule in self.rules if rule.format is not None]
        return any(form.stored_bits != form.product_bits for form in forms)

    @property
    def needs_calibration(self) -> bool:
        """Whether any rule needs a calibration text."""
        return any(rule.format is not None and rule.format.reads_calibration for rule in self.rules)

    def __str__(self) -> str:
        shown: list[str] = []
        others = True
        for form, rules in groupby(self.rules, lambda rule: rule.format):
            patterns = [rule.pattern for rule in rules if rule.pattern not in (*SMALL_TABLES, *ROUTERS)]
            if MATRICES in patterns:
                # A second rule for all matrices is reached only by embedding gathers, which skip per-channel rules.
                shown.append(str(form) if others else f"embedding gathers {form}")
                others = False
            elif patterns:
                named = ", ".join(patterns) if len(patterns) <= FEW else f"{len(patterns)} matrices"
                shown.append(f"{named} {form or 'not quantized'}")
        if self.calibration is not None:
            shown.append(f"calibrated with {self.calibration.describe()}")
        return "; ".join(shown)


DEFAULTS: dict[str, WeightFormat] = {
    "int4": WeightFormat(bits=4, block=32, rounding="mse"),
    "int8": WeightFormat(bits=8, block=128),
}
"""Formats by precision, without a calibration text."""
HEADS: dict[str, WeightFormat] = {"int6": WeightFormat(bits=6, block=32, rounding="mse", packed=False)}
"""Formats that heads and embeddings may have beside those of a precision. A session unpacks 0.1 billion weights a
second, and heads have up to 0.5 billion: theirs are bytes in a file."""
CALIBRATED = {name: replace(form, block=128, rounding="gptq") for name, form in DEFAULTS.items()}
"""Formats by precision, with a calibration text: blocks of 128 then lose no more than blocks of 32 without one, and
are faster (docs/explanation/quantization.md)."""


@dataclass(frozen=True, kw_only=True)
class QuantizationOverrides:
    """The options that replace the defaults of a precision. None and () replace nothing.

    Raises ConfigError for a value of a wrong type or range.
    """

    TITLE: ClassVar[str] = "Precision and quantization"

    head: str | None = option(
        None, "Data type of the head and the embeddings, with int4 and int8.", choices=("fp32", *DEFAULTS, *HEADS),
        cli=True, flag="--head-precision",
    )  # fmt: skip
    block: int | None = option(
        None, "Inputs that share a scale, in matrices of the precision.",
        unset="32 for int4, 128 for int8; 128 with a calibration text",
        choices=BLOCKS, cli=True, metavar="N",
    )  # fmt: skip
    symmetric: bool | None = option(
        None, "Store no zero points.", unset="True", cli=True,
        flags=(("--asymmetric", False, "Store a zero point for every block."),),
    )  # fmt: skip
    rounding: Rounding | None = option(
        None, "How weights are rounded.", unset="mse for int4, nearest for int8; gptq with a calibration text", cli=True
    )
    scales: Scales | None = option(
        None, "Data type of stored scales, on the CPU; fp16 saves half a bit of a weight in blocks of 32.",
        unset="fp32; fp16 with a target size", cli=True,
    )  # fmt: skip
    activations: Activations | None = option(
        None, "Dynamic quantization of activations with int8 weights; per token is faster for encoders.", unset="block",
        cli=True,
    )  # fmt: skip
    tower: str | None = option(
        None, "Data type of the weights of a tower before a decoder, with int4 and int8.", unset="fp32",
        choices=("fp32", "int8"), cli=True, flag="--tower-precision",
    )  # fmt: skip
    keep: tuple[str, ...] = option(
        (), "Do not quantize parameters whose names match.", "A shell pattern, such as `blocks.0.*`.", cli=True,
        metavar="PATTERN",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_options(self, ConfigError)


NO_OVERRIDES = QuantizationOverrides()


def make_quantization(
    precision: str,
    overrides: QuantizationOverrides = NO_OVERRIDES,
    *,
    calibrated: bool = False,
    everywhere: bool = False,
    tower: bool = False,
) -> Quantization:
    """Return the quantization config of a precision, `int4` or `int8`.

    calibrated: a calibration text is given. Rounding is then `gptq` unless it is overridden, and the defaults are those
    of CALIBRATED. everywhere: dynamic per-token activation quantization includes embeddings, heads and all of the
    decoder of an encoder-decoder, for runtimes that have no kernels for blocks. Otherwise these stay in blocks, except
    for the cross-attention layers that read all encoder outputs at once. tower: the model has one before its decoder.

    Raises ConfigError for a combination that no kernel computes.
    """
    per_token = overrides.activations == "per_token"
    if per_token and (precision != "int8" or overrides.symmetric is False):
        raise ConfigError(
            "dynamic per-token activation quantization needs symmetric int8 weights. Choose the precision int8 "
            "without zero points, or leave activations out."
        )
    chosen = _weight_format(precision, overrides, calibrated)
    rules: list[tuple[str, WeightFormat | None]] = [
        (pattern, None) for pattern in (*overrides.keep, *SMALL_TABLES, *ROUTERS)
    ]
    if tower:
        # A block is asked for with a precision: small ones, of int4 matrices, would make a tower of int8 slower alone.
        of_tower = overrides if overrides.tower == precision else replace(overrides, block=None)
        seeing = _weight_format(overrides.tower or "fp32", of_tower, calibrated)
        if seeing is not None:
            seeing = replace(seeing.without_calibration(), block=None if per_token else seeing.block)
        rules += [(pattern, seeing) for pattern in TOWERS]
    if overrides.head is not None or (per_token and not everywhere):
        head = _weight_format(overrides.head or precision, overrides, calibrated)
        rules += [(pattern, head) for pattern in VOCABULARY]
    if per_token:
        assert chosen is not None
        per_channel = replace(chosen, block=None, scales="fp32")
        if not everywhere:
            rules += [*((pattern, per_channel) for pattern in CROSS_ATTENTION_KEYS_VALUES), (DECODER_MATRICES, chosen)]
        rules.append((MATRICES, per_channel))
    if not (per_token and everywhere):
        # This rule is last because embedding gathers skip per-channel rules: it gives them their format.
        rules.append((MATRICES, chosen))
    return Quantization(rules=tuple(QuantizationRule(pattern=pattern, format=form) for pattern, form in rules))


def _weight_format(precision: str, overrides: QuantizationOverrides, calibrated: bool) -> WeightFormat | None:
    """Return the format of matrices of a precision, None for `fp32`."""
    if precision == "fp32":
        return None
    if precision not in DEFAULTS | HEADS:
        raise ConfigError(f"the precision of weights is {precision!r}; it must be one of fp32, {', '.join(DEFAULTS)}.")
    rounding = overrides.rounding or ("gptq" if calibrated else None)
    form = (HEADS | (CALIBRATED if rounding == "gptq" else DEFAULTS))[precision]
    return replace(
        form,
        block=form.block if overrides.block is None else overrides.block,
        symmetric=form.symmetric if overrides.symmetric is None else overrides.symmetric,
        rounding=rounding or form.rounding,
        scales=overrides.scales or form.scales,
    )
