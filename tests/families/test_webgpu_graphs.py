"""Graphs for WebGPU of all that differ and of every kind of block: the plugin takes all nodes of their layers.

The audit compares the files with what the plugin took when it was asked; no adapter is needed. `standard` is refused.
"""

from dataclasses import replace

import pytest
from op_set_kinds import KINDS
from slow_rows import slow_unless
from test_cuda_graphs import DIFFERENT, LOWERINGS, findings

from edgeformer.errors import ExportError
from edgeformer.export import ExportOptions
from edgeformer.export.lower import LoweringOptions
from edgeformer.export.plan import make_plan

ON_WEBGPU = {title: replace(each, provider="webgpu") for title, each in LOWERINGS.items() if each.ops != "standard"}
FAST = {"experts in groups"}
"""A model with ops that are lowered for WebGPU alone; the others are slow."""


def said_of(name, lowering):
    """The audit of a model's graphs; a recurrence in primitives is refused."""
    try:
        return findings(name, lowering, device="webgpu")
    except ExportError as refusal:
        known = lowering.ops == "portable" and "computes recurrent layers by a Scan, which" in str(refusal)
        return [] if known else [str(refusal)]


@pytest.mark.parametrize("name", slow_unless(FAST, DIFFERENT))
def test_no_node_of_a_layer_runs_on_the_cpu(name):
    found = {title: said_of(name, lowering) for title, lowering in ON_WEBGPU.items()}
    assert {title: each for title, each in found.items() if each} == {}


def test_a_recurrence_in_primitives_is_refused():
    message = "^the op set portable computes recurrent layers by a Scan, .* provider webgpu, .* Choose the op set ort"
    with pytest.raises(ExportError, match=message):
        findings("mamba2", ON_WEBGPU["portable"], device="webgpu")


def test_experts_of_a_graph_for_the_cpu_are_found():
    found = findings("experts of gpt-oss", LoweringOptions(ops="portable", cache_form="dynamic"), device="webgpu")
    assert any(": Loop blocks.0.feed_forward.experts/MixtureOfExperts/Loop_" in each for each in found)


def test_attention_of_onnx_is_refused():
    options = ExportOptions(ops="standard", provider="webgpu")
    with pytest.raises(ExportError, match="^onnxruntime has no WebGPU kernel of ONNX's own Attention, which would run"):
        make_plan(options, KINDS["experts of gpt-oss"])
    assert make_plan(replace(options, ops="portable"), KINDS["experts of gpt-oss"]).ops == "portable"
