"""A job of capture: what the graphs of a bundle are captured and lowered from.

GraphJob ─ captured(spec) → canonical graph ─ lower(graph, spec) → graph of the op set
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir
from torch import Tensor

from edgeformer.export.capture import capture_graph
from edgeformer.export.lower.lowering import Lowered, lower_captured
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.kernels.float_functions import read_bfloat16
from edgeformer.export.passes import bf16_weights
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.graph_forms import AlignmentGraph
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.plan import ExportPlan
from edgeformer.models.graph_specs import GraphSpec
from edgeformer.models.model_spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class GraphJob:
    """A model, its weights, and the plan of its graphs.

    Attributes:
        model_spec: the model.
        weights: its parameters by name, each read when it is needed.
        plan: what the graphs are to be.
        cache_scales: scales of a quantized cache.
        calibrated: matrices that GPTQ has rounded.
        twin: whether float32 graphs for CUDA get the nodes of graphs in half precision, so that the CPU can run them.
        adapted: parameters that adapters change; the adapter graph has inputs for their products.
        alignment: the alignment graph that a speech model is to have.
        placeholder: the token in whose places a graph is to put the states of pictures; None for no such graph.
    """

    model_spec: ModelSpec
    weights: Mapping[str, Tensor]
    plan: ExportPlan = field(default_factory=ExportPlan)
    cache_scales: CacheScales | None = None
    calibrated: Calibrated | None = None
    twin: bool = False
    adapted: frozenset[str] = frozenset()
    alignment: AlignmentGraph | None = None
    placeholder: int | None = None
    _captured: dict[str, ir.Model] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def lowering(self) -> LoweringOptions:
        """The options of the lowering."""
        return LoweringOptions(
            **vars(self.plan), cache_scales=self.cache_scales, calibrated=self.calibrated, twin=self.twin
        )

    def captured(self, spec: GraphSpec) -> ir.Model:
        """Return a canonical graph of the model, to be changed by whoever asks; it is captured once."""
        if spec.file not in self._captured:
            self._captured[spec.file] = capture_graph(self.model_spec, self.weights, self.plan.arithmetic, spec)
        return self._captured[spec.file].clone()

    def lower(self, graph: ir.Model, spec: GraphSpec, *, adapted: bool = False) -> Lowered:
        """Lower a captured graph in place. adapted: whether its products take adapters as inputs."""
        lowering = replace(self.lowering, adapted=self.adapted) if adapted else self.lowering
        return self.with_half_weights(graph, lower_captured(graph, spec, lowering))

    def with_half_weights(self, graph: ir.Model, lowered: Lowered) -> Lowered:
        """Store the weights of a lowered graph in bfloat16, where the plan says so for a graph of float32."""
        if (self.plan.precision, self.plan.arithmetic) != ("bf16", "fp32"):
            return lowered
        stored = bf16_weights(graph, self.model_spec.parameter_shapes())
        return replace(lowered, passes=[*lowered.passes, stored, read_bfloat16(graph)])


def job_of_bundle(manifest: Manifest, model_spec: ModelSpec, weights: Mapping[str, Tensor]) -> GraphJob:
    """Return the job whose graphs a bundle has."""
    return GraphJob(
        model_spec=model_spec, weights=weights, plan=manifest.plan, cache_scales=manifest.cache_scales,
        alignment=manifest.alignment,
        adapted=frozenset() if manifest.adapter_graph is None else manifest.adapter_graph.parameters,
    )  # fmt: skip
