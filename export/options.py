"""What can be asked of an export, checked before anything is done."""

from typing import get_args

from edgeformer.config import EncoderConfig, ModelConfig, Seq2SeqConfig
from edgeformer.deployment import Chosen, Deployment
from edgeformer.errors import ExportError
from edgeformer.export.calibrate.text import Calibration
from edgeformer.export.lower import CacheChoice, LoweringOptions, lowering_options
from edgeformer.export.parity import Mode
from edgeformer.manifest import (
    Arithmetic,
    Backend,
    CachePrecision,
    DeploymentName,
    OpSet,
    Precision,
    Prefill,
    PrefillChoice,
    Provider,
)
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import DEFAULTS, Quantization, make_quantization


def check_options(
    precision: Precision | None,
    provider: Provider,
    verify: Mode | None,
    backend: Backend | None = None,
    ops: OpSet = "ort",
    cache: CacheChoice | None = None,
    deployment: DeploymentName | None = None,
) -> None:
    """Raise ExportError for an option that does not exist."""
    for name, value, choices in (
        ("deployment", deployment, (None, *get_args(DeploymentName))),
        ("precision", precision or "fp32", get_args(Precision)),
        ("provider", provider, get_args(Provider)),
        ("verify", verify, (None, *get_args(Mode))),
        ("backend", backend, (None, *get_args(Backend))),
        ("ops", ops, get_args(OpSet)),
        ("cache", cache, (None, *get_args(CacheChoice))),
    ):
        if value not in choices:
            raise ExportError(f"{name} is {value!r}; it must be one of {', '.join(map(str, choices))}.")


def _recipe_of(
    precision: Precision, quantization: Quantization | None, calibration: Calibration | None
) -> Quantization | None:
    """How weights are quantized, if they are. Raises ExportError for a recipe that nothing asks for, or that lacks a
    text.
    """
    if precision in DEFAULTS:
        chosen = quantization or make_quantization(precision, calibrated=calibration is not None)
        if chosen.needs_calibration and calibration is None:
            raise ExportError(
                "the rounding gptq goes by a text of what the model is for. Give one (--calibrate TEXT.txt, or "
                "calibration= of export_model), or choose the rounding mse."
            )
        return chosen
    if quantization is not None:
        raise ExportError(
            f"a recipe of quantization is for {' and '.join(DEFAULTS)}, and the precision is {precision}."
        )
    return None


def choose(
    deployment: Deployment,
    config: ModelConfig | None,
    *,
    ops: OpSet,
    provider: Provider,
    cache: CacheChoice | None,
    functions: bool,
    precision: Precision | None,
    quantization: Quantization | None,
    calibration: Calibration | None,
    prefill: PrefillChoice | None,
) -> tuple[Chosen, LoweringOptions]:
    """What is asked for or else proposed, and what graphs are lowered to; config: None for a decoder of any module."""
    chosen = deployment.choose(
        config,
        ops=ops,
        provider=provider,
        precision=precision,
        quantization=quantization,
        calibrated=calibration is not None,
        prefill=prefill,
    )
    recipe = _recipe_of(chosen.precision, chosen.quantization, calibration)
    return chosen, lowering_options(
        ops, provider, cache, functions, recipe, primitive_gathers=deployment.primitive_gathers
    )


def arithmetic_of(precision: Precision, target: LoweringOptions) -> Arithmetic:
    """What activations, caches and weights that are not quantized are made of."""
    return precision if precision in ("fp32", "fp16") else target.arithmetic


def check_parts(
    model_spec: ModelSpec,
    precision: Precision,
    target: LoweringOptions,
    cache_precision: CachePrecision | None,
    prefill: Prefill | None,
    calibration: Calibration | None,
    smooth: bool,
) -> None:
    """Raise ExportError for parts of a bundle that a model of this kind cannot have, or that do not go together."""
    _check_activations(target)
    _check_prefill(model_spec, target, prefill)
    _check_smoothing(precision, target, prefill, calibration, smooth)
    _check_calibration(target, prefill, calibration, cache_precision, smooth)
    _check_cache(model_spec, precision, target, cache_precision)
    _check_bf16(precision, target, prefill)


def check_deployment(deployment: Deployment, precision: Precision) -> None:
    """Raise ExportError for weights that a target has no use for."""
    if deployment.ort_format and precision in ("fp16", "bf16"):
        raise ExportError(
            f"{precision} weights are widened to float32 when a graph is loaded, and files in ORT format are loaded as "
            "they are: it would be done at every step. Choose the precision int4, int8 or fp32 for the target "
            f"{deployment.name}."
        )


def _check_activations(target: LoweringOptions) -> None:
    """Raise ExportError where there is no product of int8 with int8."""
    if target.quantization is not None and target.quantization.per_token and target.provider != "cpu":
        raise ExportError("activations are rounded token by token on the CPU alone. Leave activations out.")


def _check_prefill(model_spec: ModelSpec, target: LoweringOptions, prefill: Prefill | None) -> None:
    """Raise ExportError where there can be no view for prompts."""
    if prefill is None:
        return
    if prefill not in get_args(Prefill):
        raise ExportError(f"prefill is {prefill!r}; it must be one of {', '.join(get_args(Prefill))}, or None.")
    if isinstance(model_spec.config, Seq2SeqConfig | EncoderConfig):
        raise ExportError(
            "a view for prompts is for decoders; this model's prompts are its encoder's. Leave prefill out."
        )
    if target.ops != "ort" or target.provider != "cpu":
        raise ExportError("a view for prompts is made of onnxruntime's ops for the CPU. Leave prefill out.")


def _check_smoothing(
    precision: Precision,
    target: LoweringOptions,
    prefill: Prefill | None,
    calibration: Calibration | None,
    smooth: bool,
) -> None:
    """Raise ExportError where there is nothing to smooth for, or to smooth by."""
    per_token = prefill is not None or (target.quantization is not None and target.quantization.per_token)
    if smooth and (not per_token or arithmetic_of(precision, target) != "fp32"):
        raise ExportError(
            "smoothing is for inputs that are rounded token by token, beside float32: for the view for prompts, and "
            "for int8 with activations by token. Leave smooth out, or choose one of these."
        )
    if smooth and calibration is None:
        raise ExportError(
            "smoothing goes by a text of what the model is for. Give one (--calibrate TEXT.txt, or calibration= of "
            "export_model), or leave smooth out."
        )


def _check_calibration(
    target: LoweringOptions,
    prefill: Prefill | None,
    calibration: Calibration | None,
    cache_precision: CachePrecision | None,
    smooth: bool,
) -> None:
    """Raise ExportError for a text that nothing is rounded by."""
    needs_calibration = target.quantization is not None and target.quantization.needs_calibration
    if calibration is not None and prefill is None and cache_precision is None and not needs_calibration and not smooth:
        raise ExportError(
            "a text to calibrate with is for int4 and int8 with the rounding gptq, for the view for prompts, and for "
            "an int8 cache. Leave calibration out, or choose one of these."
        )


def _check_cache(
    model_spec: ModelSpec, precision: Precision, target: LoweringOptions, cache_precision: CachePrecision | None
) -> None:
    """Raise ExportError where the cache cannot be of another precision than the graph."""
    if cache_precision is None:
        return
    if cache_precision not in get_args(CachePrecision):
        choices = ", ".join(get_args(CachePrecision))
        raise ExportError(f"cache_precision is {cache_precision!r}; it must be one of {choices}, or None.")
    if isinstance(model_spec.config, Seq2SeqConfig | EncoderConfig):
        raise ExportError(
            "an int8 cache is for decoders alone, and this model has an encoder. Leave cache_precision out."
        )
    if target.ops != "ort" or target.provider != "cpu" or arithmetic_of(precision, target) != "fp32":
        raise ExportError(
            "an int8 cache is one of onnxruntime's attention op for the CPU, beside float32 activations: of --ops ort, "
            "--provider cpu and every precision but fp16. Leave cache_precision out."
        )


def _check_bf16(precision: Precision, target: LoweringOptions, prefill: Prefill | None) -> None:
    """Raise ExportError where bf16 weights would be of no use."""
    if precision == "bf16" and target.provider == "cuda":
        raise ExportError(
            "bf16 weights are computed with in float32, on the CPU. Export with --precision fp16 for CUDA."
        )
    if precision == "bf16" and prefill is not None:
        raise ExportError(
            "a view for prompts stands beside int4, int8 or fp32 weights; choose one of these precisions."
        )
