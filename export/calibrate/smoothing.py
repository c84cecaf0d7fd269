"""Smoothing: large channels of a norm are made smaller, and the weights that read them larger.

All inputs of a token share a scale where they are rounded to 8 bits together, so one channel that is far larger than
the others takes their digits. Where nothing but linear layers reads a norm,

    norm(x)ⱼ · Wₙⱼ  =  (norm(x)ⱼ / sⱼ) · (Wₙⱼ · sⱼ)

and s goes into the weights: the norm's own are divided by it, the columns of the layers multiplied (SmoothQuant, arXiv
2211.10438). Every sⱼ here is a power of two, which rounds nothing. So the model stays the same to the last bit, and the
smoothed weights stand in for the original ones, whatever is done next.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from edgeformer.errors import ExportError
from edgeformer.export.calibrate.forward_hooks import Enough, padded, read_with_hooks, valid_tokens
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.capture import capture_graph
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.editing import producer, streamed
from edgeformer.export.reference.reference import Reference
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import Quantization, SmoothedNorm

NORMS = {(DOMAIN, "RMSNorm"), ("", "LayerNormalization")}
FARTHEST = 2.0**16
"""The largest factor, and one over the smallest."""
NEGLIGIBLE = 1e-30
"""What a norm multiplies a channel with that is left alone: nothing comes of it, and dividing it might round."""


def smoothing_factors(
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    recipes: list[Quantization],
    text: CalibrationTokens,
) -> dict[SmoothedNorm, Tensor]:
    """Factors that make channels and columns alike: sⱼ² = max |norm(x)ⱼ| / max |Wⱼ|, to the nearest power of two.

    Of all norms whose channels a recipe rounds token by token. Raises ExportError where there is none, and for inputs
    that are not finite.
    """
    per_token = [
        norm
        for norm in smoothable_norms(model_spec, weights)
        if any((form := recipe.format_of(name)) and form.block is None for recipe in recipes for name in norm.readers)
    ]
    largest = _largest_inputs(model_spec, weights, text, [norm.readers[0] for norm in per_token])
    factors = {}
    for norm in per_token:
        inputs = largest[norm.readers[0]]
        if not torch.isfinite(inputs).all():
            raise ExportError(
                f"the calibration text makes inputs of {norm.readers[0]} that are not finite; nothing can be smoothed "
                "by them. Export without smoothing."
            )
        columns = torch.stack([weights[name].float().abs().amax(0) for name in norm.readers]).amax(0)
        factors[norm] = _factors(inputs, columns, weights[norm.parameters[0]].float())
    if not factors:
        raise ExportError(
            "nothing of this model can be smoothed: no norm is read by linear layers alone whose inputs are rounded "
            "token by token. Export without smoothing."
        )
    return factors


def _factors(inputs: Tensor, columns: Tensor, gains: Tensor) -> Tensor:
    """Of the largest magnitudes of channels and columns, and the weight of the norm, [K] each."""
    octaves = (inputs.log2() - columns.log2()) / 2
    left_alone = ~torch.isfinite(octaves) | (gains.abs() < NEGLIGIBLE)
    octaves = octaves - octaves[~left_alone].median()
    # ldexp and exp2 of torch may be off by a digit.
    exact = [2.0 ** round(octave) for octave in octaves.masked_fill(left_alone, 0).tolist()]
    return torch.tensor(exact).clamp(1 / FARTHEST, FARTHEST)


def smoothable_norms(model_spec: ModelSpec, weights: Mapping[str, Tensor]) -> list[SmoothedNorm]:
    """Norms that linear layers alone read, and what reads them; nothing else may read any of their parameters."""
    graphs = [capture_graph(model_spec, weights, "fp32", spec).graph for spec in model_spec.graphs]
    count = Counter(name for graph in graphs for name in graph.initializers)
    with torch.device("meta"):
        module = model_spec.build(torch.float32)
    own = {name for name, _ in module.named_parameters() if count[name] == 1}
    linear = {f"{name}.weight" for name, part in module.named_modules() if type(part) is nn.Linear}
    found = [norm for graph in graphs for node in graph if (norm := _smoothable(node))]
    return [norm for norm in found if own.issuperset(norm.parameters) and own & linear >= set(norm.readers)]


def _smoothable(node: ir.Node) -> SmoothedNorm | None:
    """The norm that a node of a canonical graph is, if products alone read it and nothing else has their weights."""
    if (node.domain, node.op_type) not in NORMS or node.outputs[0].is_graph_output():
        return None
    parameters = [_parameter(value) for value in node.inputs[1:] if value is not None]
    readers = [_matrix(use.node) if use.idx == 0 else None for use in node.outputs[0].uses()]
    if not parameters or not readers or None in parameters or None in readers:
        return None
    return SmoothedNorm(parameters=tuple(parameters), readers=tuple(readers))  # type: ignore[arg-type]


def _matrix(node: ir.Node) -> str | None:
    """The name of the weight [N, K] of a product MatMul(x, Transpose(W))."""
    transpose = producer(node.inputs[1], "Transpose") if (node.domain, node.op_type) == ("", "MatMul") else None
    return None if transpose is None or len(transpose.outputs[0].uses()) > 1 else _parameter(transpose.inputs[0])


def _parameter(value: ir.Value | None) -> str | None:
    """The name of a weight that one node reads."""
    return value.name if value is not None and streamed(value) is not None and len(value.uses()) == 1 else None


def _largest_inputs(
    model_spec: ModelSpec, weights: Mapping[str, Tensor], text: CalibrationTokens, names: list[str]
) -> dict[str, Tensor]:
    """The largest magnitude [K] of each input that a text makes, by the names of the layers' weights."""
    reference, largest = Reference(model_spec, weights, torch.float32), dict[str, Tensor]()
    ids, mask = padded(text)

    def note(name: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        largest[name] = valid_tokens(inputs[0], mask.bool()).abs().amax(0)
        if len(largest) == len(names):
            raise Enough

    layers = {name: reference.module.get_submodule(name.removesuffix(".weight")) for name in names}
    hooks = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in layers.items()]
    read_with_hooks(reference, model_spec, ids, mask, hooks)
    return largest
