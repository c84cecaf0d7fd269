"""Choose the format of each matrix so that a model has a target size and loses the least on a text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from edgeformer.errors import ExportError
from edgeformer.export.calibrate.groups import FORMATS, Group
from edgeformer.export.calibrate.sensitivity import measure_groups
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.graph.tensors import stored_bytes
from edgeformer.export.lower import GraphJob
from edgeformer.export.passes.storage.compute_tables import computed_tables
from edgeformer.export.progress import Progress
from edgeformer.export.quantize.budget import Choice, choose
from edgeformer.manifest.quantization import MATRICES, QuantizationRule, Scales, WeightFormat
from edgeformer.options.target_size import TargetSize


def with_target_formats(
    job: GraphJob, text: CalibrationTokens, target: TargetSize, kept: Path | None, progress: Progress
) -> GraphJob:
    """Return a job whose plan has a rule for each matrix, so that the weights are at most as large as the target.

    The rule that fits all matrices decides about those that the text does not reach. kept: as `measure_groups` has it.
    Raises ExportError for a target that is out of reach, and as `measure_groups`.
    """
    groups = measure_groups(job, text, kept, progress)
    if not groups:
        raise ExportError("the calibration text reaches no matrix to choose a format for. Leave the target size out.")
    # Files in ORT format are loaded as they are, without what widens float16 scales and unpacks integers.
    loaded = job.plan.place.ort_format
    scales: Scales = "fp32" if loaded else "fp16"
    forms = [form for form in FORMATS if not (loaded and form.unused_bits)]
    options = [[_choice(group, form, scales, target) for form in forms] for group in groups]
    fixed = 0 if target.bytes is None else _other_bytes(job, groups)
    weights = sum(outputs * inputs for group in groups for outputs, inputs in group.sizes)
    in_words = _words(target, fixed, weights)
    _check_reach(target, options, fixed, weights, in_words)
    budget = target.bytes - fixed if target.bytes is not None else math.floor((target.bits or 0) * weights / 8)
    chosen = choose(options, budget)
    form_of = {name: choice.form for group, choice in zip(groups, chosen, strict=True) for name in group.names}
    quantization = job.plan.quantization
    assert quantization is not None
    rules = sorted(form_of.items(), key=lambda pair: (pair[1].bits, -(pair[1].block or 0)))  # stable: layers in order
    before = [rule for rule in quantization.rules if rule.pattern != MATRICES]
    last = [rule for rule in quantization.rules if rule.pattern == MATRICES]
    own = [QuantizationRule(pattern=name, format=form) for name, form in rules]
    return replace(job, plan=replace(job.plan, quantization=replace(quantization, rules=(*before, *own, *last))))


def _choice(group: Group, form: WeightFormat, scales: Scales, target: TargetSize) -> Choice:
    stored = replace(form, scales=scales)
    return Choice(stored, group.bytes_of(stored, _stored(target)), group.loss(form))


def _stored(target: TargetSize) -> Callable[[int], int]:
    """Return the bytes that a tensor counts for: with what aligns it in a file, where the target is a size of one."""
    return int if target.bytes is None else stored_bytes


def _other_bytes(job: GraphJob, groups: Sequence[Group]) -> int:
    """Return the bytes of all parameters and constants that no format is chosen for."""
    quantization, spec = job.plan.quantization, job.model_spec
    assert quantization is not None
    chosen, total = {name for group in groups for name in group.names}, 0
    for name, shape in spec.parameter_shapes().items():
        if name in chosen:
            continue
        form = quantization.format_of(name, gathered=True) if len(shape) > 1 else None
        fitted = form and form.fitted_to_product(shape[-1])
        size = 4 * math.prod(shape) if fitted is None else fitted.bytes_of(math.prod(shape[:-1]), shape[-1])
        total += stored_bytes(size)
    tables = spec.constants()
    computed = () if job.plan.place.ort_format else computed_tables(tables)  # the graph has them
    return total + sum(stored_bytes(4 * value.numel()) for name, value in tables.items() if name not in computed)


def _words(target: TargetSize, fixed: int, weights: int) -> Callable[[int], str]:
    """Return a function that says bytes of quantized matrices as the target is said, rounded up."""
    if target.bytes is not None:
        return lambda size: f"{math.ceil((size + fixed) / 1e4) / 100:,g} MB"
    return lambda size: f"{math.ceil(8e3 * size / weights) / 1e3:g} bits per weight"


def _check_reach(
    target: TargetSize, options: Sequence[Sequence[Choice]], fixed: int, weights: int, in_words: Callable[[int], str]
) -> None:
    smallest, largest = (sum(pick(choice.bytes for choice in group) for group in options) for pick in (min, max))
    asked = target.bytes - fixed if target.bytes is not None else (target.bits or 0) * weights / 8
    if not smallest <= asked <= largest:
        raise ExportError(
            f"{target} is out of reach: the weights take {in_words(smallest)} with every matrix in the smallest "
            f"format, and {in_words(largest)} in the largest. Choose a size between these, or a precision."
        )
