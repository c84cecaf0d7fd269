"""The plan of an export: every choice, made once, before anything is read or written.

    ExportOptions (asked for) + Deployment (proposed) + ModelConfig (what kind of model)  →  ExportPlan (will be done)

Nothing here imports torch, so that what cannot be exported is said at once.
"""

from dataclasses import fields, replace

from edgeformer.config import ModelConfig, TowerTextConfig
from edgeformer.errors import ExportError
from edgeformer.manifest.deployment import DEPLOYMENTS, Proposal
from edgeformer.manifest.manifest import TOWER_TASKS
from edgeformer.manifest.parts import CachePrecision, Precision
from edgeformer.manifest.plan import ExportPlan
from edgeformer.manifest.providers import find_provider
from edgeformer.manifest.quantization import (
    DEFAULTS,
    NO_OVERRIDES,
    Quantization,
    QuantizationOverrides,
    make_quantization,
)
from edgeformer.options.export import OPTIONS, ExportOptions
from edgeformer.options.target_size import target_size


def make_plan(options: ExportOptions, config: ModelConfig | None) -> ExportPlan:
    """Decide what an export does. config: None for a decoder whose module is not ours.

    Raises ExportError for options that exclude each other, or that a model of this kind cannot have.
    """
    proposal = DEPLOYMENTS[options.deployment].proposal(config, options.ops, options.provider)
    target = target_size(options.target_size, options.bits)
    precision = options.precision or (proposal.precision if target is None else "int4")
    asked = {each.name: getattr(options, each.name) for each in fields(ExportPlan) if each.name in OPTIONS}
    decided = {
        "cache_form": "any" if options.ops == "ort" else options.cache or "dynamic",
        "precision": precision,
        "arithmetic": options.arithmetic or find_provider(options.provider).arithmetic[precision],
        "quantization": _quantization(options, proposal, precision, tower=_has_tower(config))
        if target is None
        else _quantization_of_target(options, precision, config),
    }
    plan = ExportPlan(**asked | decided)
    plan = replace(plan, cache_precision=_cache_precision(plan, options, proposal, config))
    if target is None and options.sensitivities is not None:
        raise ExportError("sensitivities are measured for a target size. Give target_size or bits, or leave them out.")
    _check_quantization(plan, options)
    _check_op_set(plan, options, config)
    _check_smoothing(plan, options)
    _check_calibration(plan, options)
    _check_cache_precision(plan, config)
    _check_arithmetic(plan, config)
    _check_ort_format(plan)
    if options.adapters:
        _check_adapters(plan, config)
    _check_pictures(plan, config)
    if options.mtp:
        _check_mtp(plan, options, config)
    _check_clients(plan, config)
    return plan


def _has_tower(config: ModelConfig | None) -> bool:
    return config is not None and config.task in TOWER_TASKS


def _quantization(
    options: ExportOptions, proposal: Proposal, precision: Precision, *, tower: bool
) -> Quantization | None:
    """Return the quantization config that is asked for, or the default one with what is asked for and proposed.

    tower: whether the model has one before its decoder. Raises ExportError for overrides of a precision that is not
    quantized, and of a tower where there is none.
    """
    asked = options.quantization or NO_OVERRIDES
    if isinstance(asked, QuantizationOverrides) and precision == proposal.precision:
        asked = proposal.completed(asked)
    if precision not in DEFAULTS and asked != NO_OVERRIDES:
        raise ExportError(
            "a quantization config and its overrides (--block, --asymmetric, --rounding, --scales, --activations, "
            f"--head-precision, --tower-precision, --keep) are for {' and '.join(DEFAULTS)}, and the precision is "
            f"{precision}. Leave them out, or choose one of these precisions."
        )
    if isinstance(asked, QuantizationOverrides) and asked.tower is not None and not tower:
        raise ExportError(
            "--tower-precision is for models that see or hear, whose towers stand before a decoder. Leave it out."
        )
    if precision not in DEFAULTS or isinstance(asked, Quantization):
        return asked if isinstance(asked, Quantization) else None
    everywhere = not DEPLOYMENTS[options.deployment].on(options.provider).block_kernels
    calibrated = options.calibration is not None
    return make_quantization(precision, asked, calibrated=calibrated, everywhere=everywhere, tower=tower)


def _quantization_of_target(options: ExportOptions, precision: Precision, config: ModelConfig | None) -> Quantization:
    """Return the quantization config of a target size before the format of each matrix is chosen.

    Raises ExportError for options that say what is to be chosen, and where nothing tells what a format loses.
    """
    asked = options.quantization or NO_OVERRIDES
    is_open = isinstance(asked, QuantizationOverrides) and (
        asked == replace(NO_OVERRIDES, keep=asked.keep, tower=asked.tower)
    )
    if options.precision not in (None, "int4") or not is_open or isinstance(asked, Quantization):
        raise ExportError(
            "a target size chooses among 3 to 8 bits in blocks of 32, 64 and 128 for each matrix. Leave the "
            "precision, a quantization config and its overrides but --keep and --tower-precision out, or the target "
            "size."
        )
    if config is not None and config.form != "decoder":
        raise ExportError(
            "a target size is for decoders, whose predictions of the next token tell what a format loses. Choose a "
            "precision."
        )
    if not DEPLOYMENTS[options.deployment].block_kernels:
        raise ExportError(
            f"the deployment {options.deployment} has no kernels for the formats that a target size chooses among. "
            "Leave one of them out."
        )
    if options.calibration is None:
        raise ExportError(
            "a target size needs a text of what the model is for, on which the loss of each format is measured. Give "
            "one (--calibrate TEXT.txt, or calibration= of export_model), or choose a precision."
        )
    return make_quantization(precision, asked, calibrated=True, tower=_has_tower(config))


def _check_quantization(plan: ExportPlan, options: ExportOptions) -> None:
    if plan.quantization is None:
        return
    if plan.quantization.needs_calibration and options.calibration is None:
        raise ExportError(
            "the rounding gptq needs a text of what the model is for. Give one (--calibrate TEXT.txt, or "
            "calibration= of export_model), or choose the rounding mse."
        )
    if plan.ops != "ort":
        raise ExportError(
            f"quantized products are ops of onnxruntime's own. Leave ops {plan.ops} out, or quantization."
        )
    if plan.per_token and not plan.runs_on.per_token:
        raise ExportError("only the CPU has products that quantize activations per token. Leave activations out.")
    forms = [rule.format for rule in plan.quantization.rules if rule.format is not None]
    largest = plan.runs_on.largest_int4_block
    if largest is not None and any(form.bits == 4 and (form.block or 0) > largest for form in forms):
        raise ExportError(
            f"onnxruntime's {plan.runs_on.title} kernel for a single token takes int4 blocks of {largest} weights at "
            "most. Choose a block of 16, 32, 64 or 128, or int8."
        )


def _check_op_set(plan: ExportPlan, options: ExportOptions, config: ModelConfig | None) -> None:
    if options.functions and plan.ops != "portable":
        raise ExportError(
            f"functions are for the op set portable; {plan.ops} has ops of its own for what they compute."
        )
    if options.cache is not None and plan.ops == "ort":
        raise ExportError("a graph of the op set ort takes a dynamic cache and a static one; leave cache out.")
    if options.cache is not None and config is not None and config.form == "encoder":
        raise ExportError("the model is an encoder, which has no cache; leave cache out.")
    if plan.ops == "standard" and not plan.runs_on.standard_attention:
        raise ExportError(
            f"onnxruntime has no {plan.runs_on.title} kernel of ONNX's own Attention, which would run on the CPU in "
            "every layer. Choose the op set ort or portable."
        )
    if options.backend is not None and (options.pooling is not None or options.normalize is not None):
        raise ExportError("pooling is for encoders, and a backend exports only decoders.")


def _check_smoothing(plan: ExportPlan, options: ExportOptions) -> None:
    if not plan.smooth:
        return
    if not plan.per_token:
        raise ExportError(
            "smoothing is for activations that are quantized per token: int8 with per-token activations. Leave smooth "
            "out, or choose these."
        )
    if options.calibration is None:
        raise ExportError(
            "smoothing needs a text of what the model is for. Give one (--calibrate TEXT.txt, or calibration= of "
            "export_model), or leave smooth out."
        )


def _check_calibration(plan: ExportPlan, options: ExportOptions) -> None:
    used = (
        plan.quantized_cache is not None
        or plan.smooth
        or (plan.quantization is not None and plan.quantization.needs_calibration)
    )
    if options.calibration is not None and not used:
        raise ExportError(
            "a text to calibrate with is for int4 and int8 with the rounding gptq, and for a quantized cache. Leave "
            "calibration out, or choose one of these."
        )


def _cache_precision(
    plan: ExportPlan, options: ExportOptions, proposal: Proposal, config: ModelConfig | None
) -> CachePrecision | None:
    """Return what is asked for, or proposed for a model that can have it; None for the precision of activations."""
    if options.cache_precision is not None:
        return None if options.cache_precision == plan.arithmetic else options.cache_precision
    if config is None or config.form != "decoder":
        return None
    if options.adapters or options.mtp:  # no check runs these over such a cache
        return None
    stack = config.output_stack
    fits = stack.keys_are_its_own and all(each.head_dim % 8 == 0 for each in stack.attentions)
    return proposal.cache if fits and plan.ops == "ort" and plan.quantization is not None else None


def _check_cache_precision(plan: ExportPlan, config: ModelConfig | None) -> None:
    if plan.cache_precision is None:
        return
    cache = f"an {plan.cache_precision} cache"
    if config is not None and config.form != "decoder":
        raise ExportError(f"{cache} is for decoders alone, and this model has an encoder. Leave cache_precision out.")
    stack = None if config is None else config.output_stack
    if stack is not None and not (stack.keys_are_its_own if plan.half_cache else stack.cache_geometry.is_uniform):
        what = "each for itself" if plan.half_cache else "all of one shape, and nothing else"
        raise ExportError(
            f"{cache} is for models whose layers keep keys and values, {what}. Leave cache_precision out."
        )
    if plan.ops != "ort":
        raise ExportError(f"{cache} needs onnxruntime's attention op: --ops ort. Leave cache_precision out.")
    if plan.cache_precision == "fp32":
        raise ExportError(
            f"the graph computes in {plan.arithmetic}, and so does its attention. Leave cache_precision out."
        )
    if plan.half_cache and (plan.runs_on.on_device or plan.quantization is None or plan.arithmetic != "fp32"):
        raise ExportError(
            "a float16 cache of a graph that computes in float32 is for int4 and int8 weights on the CPU, whose "
            "products round their inputs more than it does. Choose one of these precisions, or leave cache_precision "
            "out."
        )
    if plan.cache_precision not in plan.runs_on.cache_precisions:
        if not plan.runs_on.cache_precisions:
            raise ExportError(
                f"onnxruntime's attention op has no quantized cache on {plan.runs_on.title}. Leave cache_precision out."
            )
        raise ExportError(
            "onnxruntime's attention op has an fp8 cache on CUDA alone. Choose cache_precision int8, which the CPU has "
            "too, or --provider cuda."
        )
    if plan.arithmetic == "fp32" and not plan.runs_on.float32_attention:
        raise ExportError(
            f"onnxruntime's attention op has no float32 CUDA kernel, with {cache} or without. Choose another "
            "precision than fp32 for --provider cuda, or leave cache_precision out."
        )


def _check_arithmetic(plan: ExportPlan, config: ModelConfig | None) -> None:
    default = plan.runs_on.arithmetic[plan.precision]
    chosen = plan.quantization is not None and plan.arithmetic in plan.runs_on.quantized_arithmetic
    if plan.arithmetic != default and not chosen:
        raise ExportError(
            f"{plan.precision} weights for {plan.runs_on.title} are computed with in {default}. A graph for CUDA "
            "with int4 or int8 weights may compute in fp16 or bf16, one for WebGPU in fp16; leave arithmetic out of "
            "every other."
        )
    if plan.arithmetic == "bf16" and plan.cache_form == "dynamic" and (config is None or config.form != "encoder"):
        raise ExportError(
            "numpy has no bfloat16, so this runtime cannot read a dynamic cache of it, which every run returns anew. "
            "Choose a static cache (--cache static), or fp16."
        )


def _check_ort_format(plan: ExportPlan) -> None:
    if plan.place.ort_format and plan.precision in ("fp16", "bf16"):
        raise ExportError(
            f"{plan.precision} weights are widened to float32 when a graph is loaded. Files in ORT format are loaded "
            "as they are, so the widening would happen at every step. Choose the precision int4, int8 or fp32 for the "
            f"deployment {plan.deployment}."
        )
    if plan.place.ort_format and plan.quantization is not None and plan.quantization.half_scales:
        # Worse than slow: onnxruntime 1.31 prepacks products whose scales are no constants, and computes zeros.
        raise ExportError(
            "float16 scales are widened to float32 when a graph is loaded, and files in ORT format are loaded as they "
            f"are. Leave scales out for the deployment {plan.deployment}."
        )
    if plan.place.ort_format and plan.quantization is not None and plan.quantization.packed:
        raise ExportError(
            "integers of 3, 5 and 6 bits are unpacked when a graph is loaded, and files in ORT format are loaded as "
            f"they are. Use 4 and 8 bits for the deployment {plan.deployment}."
        )


def _check_adapters(plan: ExportPlan, config: ModelConfig | None) -> None:
    instead = "Merge one adapter instead: --merge-adapter, or merge_adapter= of export_model."
    if config is not None and config.form != "decoder":
        raise ExportError(f"adapters are kept apart for decoders alone, and this model has an encoder. {instead}")
    if plan.half_cache:
        raise ExportError(f"no check runs adapters over an fp16 cache. Leave cache_precision out. {instead}")
    if plan.ops != "ort" or "bf16" in (plan.precision, plan.arithmetic):
        raise ExportError(f"adapters are kept apart with --ops ort, and without bf16. {instead}")
    if plan.place.ort_format or not plan.place.shared_data:
        raise ExportError(
            f"adapters are kept apart for edgeformer's own runtime, and the deployment {plan.deployment} is for "
            f"others. {instead}"
        )


def _check_pictures(plan: ExportPlan, config: ModelConfig | None) -> None:
    if not isinstance(config, TowerTextConfig):
        return
    instead = "" if config.bidirectional == "prompt" else " The text model can be exported by itself: --text-only."
    if plan.runs_on.on_device or plan.place.ort_format:
        where = plan.runs_on.title if plan.runs_on.on_device else f"the deployment {plan.deployment}"
        raise ExportError(
            f"models that read pictures are exported for ONNX files on the CPU this time, and not for {where}.{instead}"
        )
    if plan.cache_precision not in (None, "fp16"):
        raise ExportError(
            f"no check compares keys and values of pictures that are cached as {plan.cache_precision}. Choose "
            f"cache_precision fp16, or leave it out.{instead}"
        )


def _check_mtp(plan: ExportPlan, options: ExportOptions, config: ModelConfig | None) -> None:
    if config is None:
        raise ExportError("mtp is for models of edgeformer's own families. Leave mtp out.")
    if plan.runs_on.on_device or plan.place.ort_format or not plan.place.shared_data:
        where = plan.runs_on.title if plan.runs_on.on_device else f"the deployment {plan.deployment}"
        raise ExportError(f"drafts by mtp are for edgeformer's runtime on the CPU, and not for {where}. Leave mtp out.")
    if plan.cache_precision is not None:
        raise ExportError(f"no check runs drafts by mtp over {plan.cache_precision} caches. Leave cache_precision out.")
    if options.adapters:
        raise ExportError("no check runs drafts by mtp with adapters. Leave mtp out, or merge the adapter.")


def _check_clients(plan: ExportPlan, config: ModelConfig | None) -> None:
    merged = plan.place.clients == ("transformers.js",) and not plan.runs_on.merged_decoder
    if merged and config is not None and config.form == "encoder-decoder":
        raise ExportError(
            f"the deployment {plan.deployment} is for transformers.js, which runs encoder-decoders by one graph for "
            f"all steps, and none is written for {plan.runs_on.title}. Leave provider {plan.provider} out."
        )
