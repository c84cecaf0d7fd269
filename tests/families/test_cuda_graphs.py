"""Graphs for CUDA of every family and every kind of block: onnxruntime runs all nodes of their layers on the GPU.

The audit compares the files with the kernels that onnxruntime's CUDA provider lists; no GPU is needed.
`test_op_sets.py` has the same for float32, and runs float32 twins of these graphs.
"""

import functools

import onnx_ir as ir
import pytest
import torch
from op_set_kinds import KINDS
from op_set_models import ENCODERS, FAMILIES, PAIRS, family_config

from edgeformer.check.cuda.audit import audit_graph
from edgeformer.check.cuda.kernel_table import kernel_table
from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.export.capture.trace import capture
from edgeformer.export.lower import LoweringOptions, lower
from edgeformer.export.reference.reference import CastWeights
from edgeformer.manifest.quantization import make_quantization
from edgeformer.models.model_spec import model_spec_of

LOWERINGS = {
    "ort": LoweringOptions(provider="cuda"),
    "ort, int4": LoweringOptions(provider="cuda", quantization=make_quantization("int4")),
    "ort, int8": LoweringOptions(provider="cuda", quantization=make_quantization("int8")),
    "standard": LoweringOptions(provider="cuda", ops="standard", cache_form="dynamic"),
    "standard static": LoweringOptions(provider="cuda", ops="standard", cache_form="static"),
    "portable": LoweringOptions(provider="cuda", ops="portable", cache_form="dynamic"),
    "portable static": LoweringOptions(provider="cuda", ops="portable", cache_form="static"),
}
FAST = {"llama", "bert", "t5-bias", "chunk", "experts of gpt-oss", "experts in groups"}
"""Models that have between them the ops that differ on CUDA; the others are slow."""
NAMES = [*FAMILIES, *PAIRS, *ENCODERS, *KINDS]
MODELS = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in NAMES]


@functools.lru_cache(maxsize=1)
def captured(name, dtype):
    """The canonical graphs of a model."""
    config = KINDS[name] if name in KINDS else family_config(name)
    spec, weights = model_spec_of(config), CastWeights(RandomWeights(config, 0), dtype)
    return [capture(each, spec, weights, dtype) for each in spec.graphs]


def findings(name, lowering, dtype=torch.float16):
    """The audit of a model's graphs in a lowering."""
    found = []
    for graph in captured(name, dtype):
        graph = graph.clone()
        lower(graph, lowering)
        found += audit_graph(name, ir.serde.serialize_model(graph), kernel_table()).findings
    return [str(each) for each in found]


@pytest.mark.parametrize("name", MODELS)
def test_no_node_of_a_layer_runs_on_the_cpu(name):
    found = {title: findings(name, lowering) for title, lowering in LOWERINGS.items()}
    assert {title: each for title, each in found.items() if each} == {}


BFLOAT16 = {"llama", "experts in groups"}
"""Models whose graphs in bfloat16 are audited by default: the other one has ops without kernels."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in BFLOAT16 else pytest.mark.slow) for each in NAMES]
)
def test_no_node_of_a_layer_lacks_a_bfloat16_kernel(name):
    titles = ("ort", "ort, int4", "ort, int8", "standard static")
    found = {title: findings(name, LOWERINGS[title], torch.bfloat16) for title in titles}
    assert {title: each for title, each in found.items() if each} == {}


def test_a_graph_for_the_cpu_is_found():
    """Its attention has a bias of scores beside sinks, which the CUDA kernel does not take."""
    (found,) = findings("t5-bias", LoweringOptions())
    assert "it has a bias of scores and a sink, of which the kernel takes one" in found
