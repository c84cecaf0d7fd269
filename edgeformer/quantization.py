"""How weights are quantized: plain data, which the manifest of a bundle keeps.

A weight [out, in] is stored as integers. Each row is cut into blocks of `block` inputs, and a block has one scale and,
unless the format is symmetric, one zero point:

    w ≈ scale · (integer − zero point)          zero point = half of the range, where none is stored
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Literal, get_args

from edgeformer.errors import ConfigError
from edgeformer.schema import check

Bits = Literal[4, 8]
Rounding = Literal["nearest", "mse", "gptq"]
Activations = Literal["block", "per_token"]
"""Which inputs of a product share an activation scale: those that a block of weights reads, or all of a token."""
BLOCKS = (16, 32, 64, 128, 256)

VOCABULARY = ("*head.weight", "*embedding.weight")
"""Parameters with a row for each token."""
MATRICES = "*.weight"
"""Parameters of linear layers and embeddings; what is named otherwise is a table that a model computes with."""
SMALL_TABLES = ("*position_embedding.weight", "*token_type_embedding.weight", "*relative.*.weight")
"""Parameters of which a row is added to every token's, or to scores: small."""
OF_DECODERS = "decoder.*.weight"
"""Of an encoder and decoder pair: parameters of the half that reads one token after the other."""
OF_SOURCES = ("decoder.*cross_attention.key.weight", "decoder.*cross_attention.value.weight")
"""Except these, which read all tokens of the source at once."""


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """Integers of so many bits, with a scale for every block of inputs.

    block: None for one scale for all inputs of an output, int8 alone; the inputs of a product with such a matrix are
    rounded to 8 bits, too, with one scale for each token. rounding: `nearest` takes the scale from the largest weight
    of a block; `mse` searches the scale, and with it the integers, that have the least squared error; `gptq` chooses
    scale and integers whose products err least on the inputs that a calibration text makes.
    """

    bits: Bits
    block: int | None
    symmetric: bool = True
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        per_channel = self.block is None and self.bits == 8 and self.symmetric
        for name, choices in (("bits", get_args(Bits)), ("block", BLOCKS), ("rounding", get_args(Rounding))):
            allowed = getattr(self, name) in choices or (name == "block" and per_channel)
            check(allowed, self, name, f"one of {', '.join(map(str, choices))}")

    @property
    def zero(self) -> int:
        """The integer that means 0 where no zero points are stored."""
        return 1 << (self.bits - 1)

    def fitted(self, inputs: int) -> "WeightFormat | None":
        """This format with the largest block, at most its own, that divides so many inputs; None where none does."""
        if self.block is None:
            return self
        blocks = [block for block in BLOCKS if block <= self.block and inputs % block == 0]
        return replace(self, block=blocks[-1]) if blocks else None

    def bytes_of(self, outputs: int, inputs: int) -> int:
        """What a weight takes, with float32 scales."""
        blocks = inputs // (self.block or inputs)
        zeros = 0 if self.symmetric else -(-blocks * self.bits // 8)
        return outputs * (inputs * self.bits // 8 + 4 * blocks + zeros)

    def __str__(self) -> str:
        extras = [] if self.symmetric else ["asymmetric"]
        extras += [self.rounding] if self.rounding != "nearest" else []
        where = "with a scale an output" if self.block is None else f"in blocks of {self.block}"
        return ", ".join([f"int{self.bits} {where}", *extras])


@dataclass(frozen=True, kw_only=True)
class QuantizationRule:
    """What becomes of parameters whose names fit a shell pattern; format: None to leave them as they are."""

    pattern: str
    format: WeightFormat | None


@dataclass(frozen=True, kw_only=True)
class CalibrationText:
    """What a model read while its weights were rounded: the name of the file, how many of its tokens, its SHA-256."""

    name: str
    tokens: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SmoothedNorm:
    """A norm whose channels were divided by powers of two, and the layers whose columns were multiplied by the same.

    parameters: the norm's weight [K] and, where it has one, its bias [K]. readers: weights [N, K] of all that reads it.
    """

    parameters: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """How weights were smoothed before they were quantized. text: what the factors were chosen by."""

    norms: tuple[SmoothedNorm, ...]
    text: CalibrationText

    def __str__(self) -> str:
        return f"{len(self.norms)} norms, by {self.text.tokens:,} tokens of {self.text.name}"


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """A recipe: the first rule whose pattern fits a matrix's name decides; what fits none is left as it is.

    calibration: the text that `gptq` went by; None before there is one, and in recipes that need none. A matrix that no
    layer multiplies the text's states with is rounded by `mse` instead.
    """

    rules: tuple[QuantizationRule, ...]
    calibration: CalibrationText | None = None

    def format_of(self, parameter: str, *, gathered: bool = False) -> WeightFormat | None:
        """The format for a parameter of the module (`blocks.0.attention.query.weight`).

        looked_up: its rows are read, for which a format with one scale an output will not do: such rules are passed
        over.
        """
        fits = (rule.format for rule in self.rules if fnmatchcase(parameter, rule.pattern))
        return next((form for form in fits if not (gathered and form is not None and form.block is None)), None)

    @property
    def per_token(self) -> bool:
        """Whether any rule rounds the inputs of products token by token."""
        return any(rule.format is not None and rule.format.block is None for rule in self.rules)

    @property
    def needs_calibration(self) -> bool:
        """Whether any rule needs a text to calibrate with."""
        return any(rule.format is not None and rule.format.rounding == "gptq" for rule in self.rules)

    def __str__(self) -> str:
        shown: list[str] = []
        others = True
        for form, rules in groupby(self.rules, lambda rule: rule.format):
            patterns = [rule.pattern for rule in rules if rule.pattern not in SMALL_TABLES]
            if MATRICES in patterns:
                # What comes after a rule for all is for lookups, which pass over one scale an output.
                shown.append(str(form) if others else f"lookups {form}")
                others = False
            elif patterns:
                shown.append(f"{', '.join(patterns)} {form or 'as it is'}")
        if self.calibration is not None:
            shown.append(f"calibrated with {self.calibration.tokens:,} tokens of {self.calibration.name}")
        return "; ".join(shown)


DEFAULTS: dict[str, WeightFormat] = {
    "int4": WeightFormat(bits=4, block=32, rounding="mse"),
    "int8": WeightFormat(bits=8, block=128),
}
"""By precision."""
CALIBRATED = {name: replace(form, block=128, rounding="gptq") for name, form in DEFAULTS.items()}
"""With a text to go by, longer blocks lose no more than short ones without, and are faster."""


@dataclass(frozen=True, kw_only=True)
class QuantizationOverrides:
    """What a user asks for instead of the defaults of a precision. None and () override nothing.

    block, symmetric, rounding: fields of `WeightFormat`, for all quantized matrices. activations: int8 only, how the
    inputs of products are quantized. head: the precision of the head and the embeddings (`fp32`, `int8`, `int4`).
    keep: shell patterns of parameter names that are not quantized.
    """

    block: int | None = None
    symmetric: bool | None = None
    rounding: Rounding | None = None
    activations: Activations | None = None
    head: str | None = None
    keep: tuple[str, ...] = ()


NO_OVERRIDES = QuantizationOverrides()


def make_quantization(
    precision: str,
    overrides: QuantizationOverrides = NO_OVERRIDES,
    *,
    calibrated: bool = False,
    everywhere: bool = False,
) -> Quantization:
    """Return the quantization config of a precision, `int4` or `int8`.

    calibrated: a calibration text is given. Rounding is then `gptq` unless it is overridden, and the defaults are those
    of CALIBRATED. everywhere: dynamic per-token activation quantization includes embeddings, heads and all of the
    decoder of an encoder-decoder, for runtimes that have no kernels for blocks. Otherwise these stay in blocks, except
    for the cross-attention layers that read all encoder outputs at once.

    Raises ConfigError for a combination that no kernel computes.
    """
    per_token = overrides.activations == "per_token"
    if overrides.activations not in (None, *get_args(Activations)):
        allowed = ", ".join(get_args(Activations))
        raise ConfigError(f"activations is {overrides.activations!r}; it must be one of {allowed}.")
    if per_token and (precision != "int8" or overrides.symmetric is False):
        raise ConfigError(
            "dynamic per-token activation quantization needs symmetric int8 weights. Choose the precision int8 "
            "without zero points, or leave activations out."
        )
    chosen = _weight_format(precision, overrides, calibrated)
    rules: list[tuple[str, WeightFormat | None]] = [(pattern, None) for pattern in (*overrides.keep, *SMALL_TABLES)]
    if overrides.head is not None or (per_token and not everywhere):
        head = _weight_format(overrides.head or precision, overrides, calibrated)
        rules += [(pattern, head) for pattern in VOCABULARY]
    if per_token:
        assert chosen is not None
        per_channel = replace(chosen, block=None)
        if not everywhere:
            rules += [*((pattern, per_channel) for pattern in OF_SOURCES), (OF_DECODERS, chosen)]
        rules.append((MATRICES, per_channel))
    if not (per_token and everywhere):
        # This rule is last because embedding gathers skip per-channel rules: it gives them their format.
        rules.append((MATRICES, chosen))
    return Quantization(rules=tuple(QuantizationRule(pattern=pattern, format=form) for pattern, form in rules))


def _weight_format(precision: str, overrides: QuantizationOverrides, calibrated: bool) -> WeightFormat | None:
    """Return the format of matrices of a precision, None for `fp32`."""
    if precision == "fp32":
        return None
    if precision not in DEFAULTS:
        raise ConfigError(f"the precision of weights is {precision!r}; it must be one of fp32, {', '.join(DEFAULTS)}.")
    rounding = overrides.rounding or ("gptq" if calibrated else None)
    form = (CALIBRATED if rounding == "gptq" else DEFAULTS)[precision]
    return WeightFormat(
        bits=form.bits,
        block=form.block if overrides.block is None else overrides.block,
        symmetric=form.symmetric if overrides.symmetric is None else overrides.symmetric,
        rounding=rounding or form.rounding,
    )


def prefill_quantization(quantization: Quantization | None, calibration: CalibrationText | None = None) -> Quantization:
    """The recipe of a view for prompts beside a graph of another recipe, whose embedding and head it shares.

    What that graph leaves as it is, the view leaves, too, and what is looked up is what it is there, whatever its name.
    calibration: the text to round the view's own matrices by, if there is one.
    """
    rules = () if quantization is None else quantization.rules
    shared = [
        QuantizationRule(pattern=pattern, format=None if quantization is None else quantization.format_of(pattern))
        for pattern in VOCABULARY
    ]
    kept = [rule for rule in rules if rule.format is None]
    per_token = WeightFormat(bits=8, block=None, rounding="nearest" if calibration is None else "gptq")
    own = QuantizationRule(pattern=MATRICES, format=per_token)
    return Quantization(rules=(*kept, *shared, own, *rules), calibration=calibration)
