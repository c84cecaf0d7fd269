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


@pytest.mark.parametrize("name", slow_unless(FAST, DIFFERENT))
def test_no_node_of_a_layer_runs_on_the_cpu(name):
    found = {title: findings(name, lowering, device="webgpu") for title, lowering in ON_WEBGPU.items()}
    assert {title: each for title, each in found.items() if each} == {}


def test_experts_of_a_graph_for_the_cpu_are_found():
    found = findings("experts of gpt-oss", LoweringOptions(ops="portable", cache_form="dynamic"), device="webgpu")
    assert any(": Loop blocks.0.feed_forward.experts/MixtureOfExperts/Loop_" in each for each in found)


def test_attention_of_onnx_is_refused():
    options = ExportOptions(ops="standard", provider="webgpu")
    with pytest.raises(ExportError, match="^onnxruntime has no WebGPU kernel of ONNX's own Attention, which would run"):
        make_plan(options, KINDS["experts of gpt-oss"])
    assert make_plan(replace(options, ops="portable"), KINDS["experts of gpt-oss"]).ops == "portable"
