"""Smoothing: scale large channels of a norm down, and the weights that read them up (SmoothQuant, arXiv 2211.10438).

Dynamic per-token activation quantization gives all inputs of a token one scale, so a channel that is far larger than
the others takes their digits. Where only linear layers read a norm,

    norm(x)ⱼ · Wₙⱼ  =  (norm(x)ⱼ / sⱼ) · (Wₙⱼ · sⱼ)

so the norm's own weights are divided by s and the layers' columns multiplied by it. Every sⱼ here is a power of two,
which rounds nothing: the model stays the same to the last bit, and smoothed weights replace the original ones in all
that follows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

import onnx_ir as ir
import torch
from torch import Tensor, nn

from edgeformer.checkpoints.expert_weights import LazyWeights, read_expert
from edgeformer.contract.ops import CANONICAL_RMS_NORM, LAYER_NORM, PRODUCT
from edgeformer.errors import ExportError
from edgeformer.export.calibrate.forward_hooks import inputs_of, run_observed, valid_tokens
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.graph.editing import producer, streamed
from edgeformer.export.lower import GraphJob
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.quantization import Quantization, SmoothedNorm
from edgeformer.models.without_values import without_values

NORMS = {CANONICAL_RMS_NORM.key, LAYER_NORM.key}
"""Domain and op type of the canonical norms."""
MAX_SCALE = 2.0**16
"""The largest factor; the smallest is its inverse. Such factors leave float32 weights far from its largest exponent."""
NEGLIGIBLE = 1e-30
"""Channels whose norm weight is below this are not smoothed: they contribute nothing, and dividing may round them."""


class Smoothed(LazyWeights):
    """Weights whose norms are divided by factors that multiply the columns of the layers that read them.

    factors: for each norm, powers of two s, float32 [K].
    """

    def __init__(self, weights: Mapping[str, Tensor], factors: Mapping[SmoothedNorm, Tensor]):
        self._weights = weights
        self._factors: dict[str, Tensor] = {}
        for norm, s in factors.items():
            self._factors |= dict.fromkeys(norm.parameters, 1 / s) | dict.fromkeys(norm.readers, s)

    def __getitem__(self, name: str) -> Tensor:
        # float16 and bfloat16 weights times float32 factors are float32, whose exponents have room for the result.
        return self._weights[name] * self._factors[name] if name in self._factors else self._weights[name]

    def read_expert(self, name: str, expert: int) -> Tensor:
        """Return one expert of a stacked parameter, which smoothing leaves alone."""
        return read_expert(self._weights, name, expert)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def smoothing_factors(job: GraphJob, quantization: Quantization, text: CalibrationTokens) -> dict[SmoothedNorm, Tensor]:
    """Return the factors [K] of each norm that a layer reads whose inputs are quantized per token.

    They give channels and columns the same largest magnitude: sⱼ² = max |norm(x)ⱼ| / max |Wⱼ|, to the nearest power of
    two. Raises ExportError if there is no such norm, and for inputs that are not finite.
    """
    weights = job.weights
    per_token = [
        norm
        for norm in smoothable_norms(job)
        if any((form := quantization.format_of(name)) and form.block is None for name in norm.readers)
    ]
    largest = _largest_inputs(job, text, [norm.readers[0] for norm in per_token])
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
            "this model has no norm to smooth: none is read only by linear layers whose inputs are quantized per "
            "token. Export without smoothing."
        )
    return factors


def _factors(inputs: Tensor, columns: Tensor, gains: Tensor) -> Tensor:
    """Return the factors by the largest magnitudes of channels and columns and the norm's weight, float32 [K] each."""
    octaves = (inputs.log2() - columns.log2()) / 2
    left_alone = ~torch.isfinite(octaves) | (gains.abs() < NEGLIGIBLE)
    octaves = octaves - octaves[~left_alone].median()
    # torch's ldexp and exp2 may be off in the last digit.
    exact = [2.0 ** round(octave) for octave in octaves.masked_fill(left_alone, 0).tolist()]
    return torch.tensor(exact).clamp(1 / MAX_SCALE, MAX_SCALE)


def smoothable_norms(job: GraphJob) -> list[SmoothedNorm]:
    """Return the norms that only linear layers read, where nothing else reads the parameters of either."""
    graphs = [job.captured(spec).graph for spec in job.model_spec.graphs]
    count = Counter(name for graph in graphs for name in graph.initializers)
    with without_values():
        module = job.model_spec.build(torch.float32)
    own = {name for name, _ in module.named_parameters() if count[name] == 1}
    linear = {f"{name}.weight" for name, part in module.named_modules() if type(part) is nn.Linear}
    found = [norm for graph in graphs for node in graph if (norm := _smoothable(node))]
    return [norm for norm in found if own.issuperset(norm.parameters) and own & linear >= set(norm.readers)]


def _smoothable(node: ir.Node) -> SmoothedNorm | None:
    """Return the norm of a node of a canonical graph if only products with weights of their own read it."""
    if (node.domain, node.op_type) not in NORMS or node.outputs[0].is_graph_output():
        return None
    parameters = [_parameter(value) for value in node.inputs[1:] if value is not None]
    readers = [_matrix(use.node) if use.idx == 0 else None for use in node.outputs[0].uses()]
    if not parameters or not readers or None in parameters or None in readers:
        return None
    return SmoothedNorm(parameters=tuple(parameters), readers=tuple(readers))  # type: ignore[arg-type]


def _matrix(node: ir.Node) -> str | None:
    """Return the name of the weight W [N, K] of a product MatMul(x, Transpose(W))."""
    transpose = producer(node.inputs[1], "Transpose") if (node.domain, node.op_type) == PRODUCT.key else None
    return None if transpose is None or len(transpose.outputs[0].uses()) > 1 else _parameter(transpose.inputs[0])


def _parameter(value: ir.Value | None) -> str | None:
    """Return the name of a weight that only one node reads."""
    return value.name if value is not None and streamed(value) is not None and len(value.uses()) == 1 else None


def _largest_inputs(job: GraphJob, text: CalibrationTokens, names: list[str]) -> dict[str, Tensor]:
    """Return the largest magnitude [K] of the inputs of layers on a text, by the names of the layers' weights."""
    reference, largest = Reference(job.model_spec, job.weights, torch.float32), dict[str, Tensor]()
    inputs = inputs_of(reference, text)

    def note(name: str, x: Tensor) -> None:
        largest[name] = valid_tokens(x, inputs.mask.bool()).abs().amax(0)

    before = [(reference.module.get_submodule(name.removesuffix(".weight")), partial(note, name)) for name in names]
    run_observed(reference, job.model_spec, inputs, until=lambda: len(largest) == len(names), before=before)
    return largest
