"""Every family and every kind of block, in every op set: one capture, six graphs, run by onnxruntime.

The reference is edgeformer's module in float64, over whole texts and without a cache. The graphs process them at
once, in pieces, and in batches of unequal lengths, padded on the right and, with a dynamic cache, on the left.
Error: max |Δ| / max |expected|. Other runtimes are in `test_op_set_runtimes.py`.

What covers what: the families whose graphs differ, and every kind of block, are computed in every op set, and each of
these graphs is valid ONNX of its version; on CUDA's tables of kernels (`test_cuda_graphs.py`) they are audited. The
other families are variants, which have the same ops of the same types: two op sets show that they are.
"""

import functools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from op_set_kinds import KINDS
from op_set_models import (
    ENCODERS,
    FAMILIES,
    PAIRS,
    TARGETS,
    WAYS,
    captured,
    computed,
    errors,
    family_config,
    make_texts,
    reference,
)
from op_set_rules import OPSETS, assert_domains, check, foreign_ops, inputs_without_a_call
from rows import DISTINCT, WITH_ALL_OPS
from slow_rows import slow_after, slow_unless
from vision_rows import TOWERS

from edgeformer.check.providers.audit import audit_graph
from edgeformer.check.providers.kernel_table import kernel_table
from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import DecoderConfig
from edgeformer.export.lower import LoweringOptions, lower
from edgeformer.export.passes import fold_rotary, fuse_skip_norm, pack_qkv, transpose_weights
from edgeformer.families import family_names

LIMITS = {torch.float32: 1e-5, torch.float16: 5e-3}
NAMES = [*FAMILIES, *PAIRS, *ENCODERS, *KINDS]
FAST = {*KINDS, "llama", "t5", "bert"}
"""The models that are made of few blocks, and a few of whole families; the others are slow."""
DIFFERENT = WITH_ALL_OPS | KINDS.keys() | {"mobilebert", "xlm-roberta"}
"""The models that have every op, also those of embeddings and heads, between them."""
CUDA_FAST = {"llama", "gemma2", "gpt_oss", "qwen3_next", "t5", "bert", "chunk", "t5-bias", "experts of gpt-oss"}
CUDA_FAST |= {"experts in groups", "experts of Gemma 4"}
CUDA_MODELS = slow_unless(CUDA_FAST, [name for name in NAMES if name in DIFFERENT])
AUDITED = [case for case in CUDA_MODELS if case.values[0] in DISTINCT | KINDS.keys()]


IN_ALL = {"llama", "t5", "bert", "chunk", "sinks", "t5-bias"}
"""Models that are computed in every op set by default; the others in one of each, with a dynamic cache."""
COMPUTED = [(name, target) for name in NAMES for target in (TARGETS if name in DIFFERENT else ["portable"])]
"""Variants in one other op set than that of onnxruntime, in which test_parity.py and its like verify every family."""
COMPUTED_FAST = [
    (name, target)
    for name, target in COMPUTED
    if name in FAST and (name in IN_ALL or target in ("ort", "standard", "portable"))
]


@functools.cache
def model(name, dtype=torch.float32):
    return captured(KINDS[name] if name in KINDS else family_config(name), dtype)


@functools.cache
def outcome(name, target, dtype=torch.float32):
    """Check the graphs of a model in an op set, and return their outputs."""
    graphs = model(name, dtype).lowered(target)
    for graph in graphs:
        assert_valid(graph, target)
    return computed(model(name, dtype), target, graphs=graphs)


def assert_valid(graph, target):
    """Raise AssertionError, or the checker's error, unless a graph is valid ONNX of its op set's version."""
    check(graph)
    assert inputs_without_a_call(graph) == {}
    if target == "ort":  # whose functions stand for kernels of ours, and have bodies of onnxruntime's ops
        nodes = [*graph.graph.node, *(node for function in graph.functions for node in function.node)]
        functions = {(function.domain, function.name) for function in graph.functions}
        others = {(node.domain, node.op_type) for node in nodes} - functions
        assert {domain for domain, _ in others} <= {"", "com.microsoft"}
    else:
        assert_domains(graph, OPSETS[target])
        assert foreign_ops(graph, OPSETS[target]) == set()
        assert bool(graph.functions) == (target == "portable functions")


@pytest.mark.parametrize(("name", "target"), slow_unless(COMPUTED_FAST, COMPUTED))
def test_every_op_set_computes_what_our_module_computes(name, target):
    """The graphs are valid ONNX of their version: `outcome` checks them."""
    found = errors(model(name), outcome(name, target))
    assert len(found) >= (3 if "tokens" in model(name).texts else 2)
    assert max(found.values()) <= LIMITS[torch.float32], found
    assert not np.isnan(list(found.values())).any(), found


def kinds_of_nodes(name):
    """Return the ops of a model's canonical graphs, each with the names of its attributes and the inputs it has."""
    return {
        (node.domain, node.op_type, *sorted(node.attributes), *(value is not None for value in node.inputs))
        for graph in model(name).graphs
        for node in graph.graph
    }


@pytest.mark.slow
def test_variants_have_the_ops_of_the_families_that_differ():
    known = set().union(*map(kinds_of_nodes, DIFFERENT))
    assert {name: found for name in NAMES if (found := kinds_of_nodes(name) - known)} == {}


@pytest.fixture
def cuda_targets(monkeypatch):
    """Op sets with kernels of CUDA: in float32, and the float32 twin of a graph in half precision."""
    monkeypatch.setitem(TARGETS, "cuda", LoweringOptions(provider="cuda"))
    monkeypatch.setitem(TARGETS, "twin", LoweringOptions(provider="cuda", twin=True))
    for target in ("cuda", "twin"):
        monkeypatch.setitem(WAYS, (target, "any"), WAYS["ort", "any"])


@pytest.mark.parametrize("target", ["cuda", "twin"])
@pytest.mark.parametrize("name", CUDA_MODELS)
def test_graphs_for_cuda_compute_what_our_module_computes(name, target, cuda_targets):
    found = errors(model(name), computed(model(name), target))
    assert max(found.values()) <= LIMITS[torch.float32], found
    assert not np.isnan(list(found.values())).any(), found


@pytest.mark.parametrize("name", AUDITED)
def test_no_node_of_a_float32_layer_for_cuda_runs_on_the_cpu(name, cuda_targets):
    for target in ("ort", "standard", "standard static", "portable static"):
        for graph in model(name).graphs:
            graph = graph.clone()
            lower(graph, replace(TARGETS[target], provider="cuda"))
            assert audit_graph(target, ir.serde.serialize_model(graph), kernel_table()).findings == ()


@pytest.mark.parametrize("name", slow_after(2, ["chunk", "experts of gpt-oss", "t5"]))
def test_a_twin_has_the_nodes_of_its_graph(name, cuda_targets):
    """Casts between types of numbers are none between equal types."""
    half = [graph.clone() for graph in model(name, torch.float16).graphs]
    for graph in half:
        lower(graph, TARGETS["cuda"])
    for expected, twin in zip(half, model(name).lowered("twin"), strict=True):
        nodes = [(node.domain, node.op_type) for node in twin.graph.node if node.op_type != "Cast"]
        assert nodes == [(node.domain, node.op_type) for node in expected.graph if node.op_type != "Cast"]
        # Attention of float32 is another graph.
        assert ("com.microsoft", "MultiHeadAttention") in nodes or ("com.microsoft", "GroupQueryAttention") in nodes


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", slow_after(1, ["bert", "gemma2", "bart"]))
def test_half_precision(name, target):
    found = errors(model(name, torch.float16), outcome(name, target, torch.float16))
    assert max(found.values()) <= LIMITS[torch.float16], found
    assert max(found.values()) > 10 * max(errors(model(name), outcome(name, target)).values())


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "ort"])
@pytest.mark.parametrize("name", ["wide-rotary", "partial-rotary", "gpt2"])
def test_packed_and_fused_ops_lower_too(name, target):
    """As modules of users may have them: rotation inside the attention, query, key and value in one, sums in norms."""
    graph = model(name).graphs[0].clone()
    fold_rotary(graph)
    for rewrite in (transpose_weights, pack_qkv, fuse_skip_norm):
        assert rewrite(graph).changed
    found = errors(model(name), computed(replace(model(name), graphs=[graph]), target))
    assert max(found.values()) <= LIMITS[torch.float32], found


def test_functions_are_valid_where_nobody_knows_our_ops(tmp_path):
    """In this process `edgeformer.GroupQueryAttention` has a schema, which a checker may read in a function's place."""
    for name in ("gemma2", "t5", "bert", "shaw"):
        for index, graph in enumerate(model(name).lowered("portable functions")):
            onnx.save(graph, tmp_path / f"{name}-{index}.onnx")
    script = (
        "import onnx, pathlib, sys\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    onnx.checker.check_model(onnx.load(path), full_check=True); print(path.name)\n"
        "assert not onnx.defs.has('GroupQueryAttention', domain='edgeformer')\n"
    )
    line = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stdout.split())) == (0, 5), done.stderr


def test_ops_that_a_version_lacks_are_seen():
    def lowered(name, target):
        return model(name).lowered(target)[0]

    contrib = {"GroupQueryAttention", "SkipSimplifiedLayerNormalization"}
    assert foreign_ops(lowered("llama", "ort"), 20) == {"SimplifiedLayerNormalization", *contrib}
    assert foreign_ops(lowered("llama", "standard"), 18) == {"RMSNormalization", "RotaryEmbedding", "Attention"}
    # Attention itself is there, and has no lengths yet.
    assert foreign_ops(lowered("llama", "standard static"), 23) == {"TensorScatter", "Attention"}
    assert foreign_ops(ir.serde.serialize_model(model("gpt_bigcode").graphs[0]), 18) >= {"Gelu"}
    functions = lowered("llama", "portable functions")
    functions.functions[0].node[0].op_type = "Attention"
    assert foreign_ops(functions, 18) == {"Attention"}
    del functions.functions[:]
    assert foreign_ops(functions, 18) >= {"GroupQueryAttention", "RMSNorm"}
    for target in ("ort", "standard"):
        with pytest.raises(AssertionError):
            assert_domains(lowered("llama", target), 18)


@pytest.mark.parametrize("target", TARGETS)
def test_the_checker_sees_types_that_do_not_fit(target):
    graph = model("llama").lowered(target)[0]
    graph.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.STRING
    with pytest.raises(onnx.shape_inference.InferenceError, match="type"):
        check(graph)


def neighbour(config, **attention):
    """The same model, but for one field of its attention."""
    blocks = tuple(replace(block, attention=replace(block.attention, **attention)) for block in config.blocks)
    return replace(config, blocks=blocks)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "other"), [("mistral", {"window": 7}), ("gemma2", {"softcap": 2.5}), ("chunk", {"chunk": 6})]
)
def test_the_comparison_sees_a_neighbouring_model(name, other, target):
    config = neighbour(model(name).config, **other)
    assert isinstance(config, DecoderConfig)
    expected = reference(config, RandomWeights(config, 0), make_texts(config))
    found = errors(replace(model(name), expected=expected), outcome(name, target))
    assert min(found.values()) > 100 * LIMITS[torch.float32], found


@pytest.mark.parametrize(
    ("name", "target", "reasons"),
    [
        ("sinks", "standard", ["GroupQueryAttention decomposed in 2 places: Attention has no sinks"]),
        ("shaw", "standard static", ["GroupQueryAttention decomposed in 1 place: Attention has no relation vectors"]),
        ("gemma2", "standard", []),
        ("odd-heads", "standard", []),
    ],
)
def test_what_an_op_set_cannot_say_is_written_out_and_reported(name, target, reasons):
    assert lower(model(name).graphs[0].clone(), TARGETS[target]).fallbacks == reasons


def test_every_family_is_here():
    # `generic` may be anything: the kinds of blocks are models of it. Towers of pictures are in test_vision_parity.py,
    # and those before a decoder in test_picture_to_text.py.
    texts = {*FAMILIES, *PAIRS, *(name.replace("-", "_") for name in ENCODERS)}
    assert texts | TOWERS.keys() | {"generic", "vision_encoder_decoder"} == set(family_names())
