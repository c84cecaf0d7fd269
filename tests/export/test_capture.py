"""Stages that capture skips in torch.onnx.export, and in itself: graphs are the same as with all of them."""

import functools
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import onnx_ir as ir
import pytest
import torch
from slow_rows import slow_unless
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.nn import functional
from torch.onnx._internal.fx.passes.type_promotion import InsertTypePromotion

from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.contract.tensors import TensorSpec
from edgeformer.export.capture import checked_torch, known_shapes, reused_tables, torch_export
from edgeformer.export.capture import trace as capture_module
from edgeformer.export.graph.canonical import OPS
from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.models.model_spec import model_spec_of

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
BART_SIZES = {
    "vocab_size": 61, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "forced_eos_token_id": None,
}  # fmt: skip
WHISPER = BART_SIZES | {"pad_token_id": 0, "num_mel_bins": 8, "max_source_positions": 15, "max_target_positions": 64}
GPT2_SIZES = {"vocab_size": 61, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}
CAUSAL, PAIR = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
# By name: the class of transformers, its config, and the precision.
MODELS = {
    "llama": (CAUSAL, SIZES, torch.float32),
    "gpt2": (CAUSAL, GPT2_SIZES, torch.float16),
    "bloom": (CAUSAL, {"vocab_size": 61, "hidden_size": 32, "n_layer": 1, "n_head": 4}, torch.float32),
    "gemma2": (CAUSAL, SIZES | {"head_dim": 8, "num_key_value_heads": 2}, torch.float16),
    "opt": (CAUSAL, {
        "vocab_size": 61, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    }, torch.float32),
    "bart": (PAIR, BART_SIZES, torch.float32),
    "whisper": ("AutoModelForSpeechSeq2Seq", WHISPER, torch.float16),
    "bert": ("AutoModelForMaskedLM", SIZES, torch.float16),
    "modernbert": ("AutoModelForMaskedLM", SIZES | {"local_attention": 8, "num_hidden_layers": 2}, torch.float16),
    "roberta": ("AutoModelForMaskedLM", SIZES | {"max_position_embeddings": 66}, torch.float16),
    "qwen3": (CAUSAL, SIZES | {"num_key_value_heads": 2}, torch.float32),
}  # fmt: skip

PROMOTING = {"gemma2"}
"""Models in which types are promoted: half embeddings times a number."""
FAST = {"gemma2", "whisper"}
"""One promotes types, the other is a pair; the others are slow."""


def described(graph: ir.Graph) -> list[object]:
    """All that a graph says, but for the names of values within, which torch counts up."""
    numbers: dict[ir.Value, int] = {}

    def read(value):
        if value is None or not value.is_initializer():
            return value and numbers.setdefault(value, len(numbers))
        if isinstance(value.const_value, StreamedTensor):
            return value.name, value.const_value.dtype, str(value.const_value.shape)
        return value.const_value.dtype, value.const_value.numpy().tolist()

    def made(value):
        return numbers.setdefault(value, len(numbers)), str(value.shape), value.dtype

    inputs = [(value.name, made(value)) for value in graph.inputs]
    nodes = [
        (node.domain, node.op_type, node.name, [read(value) for value in node.inputs],
         [made(value) for value in node.outputs], sorted((name, str(each)) for name, each in node.attributes.items()))
        for node in graph
    ]  # fmt: skip
    return [*inputs, *nodes, *((value.name, made(value)) for value in graph.outputs)]


@pytest.fixture(autouse=True)
def nothing_comes_from_the_cache(monkeypatch):
    """Trace in this process, as the product does: tracing is what these tests are about."""
    monkeypatch.setattr(capture_module, "_trace_once", functools.lru_cache(maxsize=8)(capture_module._trace))


@pytest.fixture
def traces(monkeypatch):
    """The programs that torch.onnx.export traced a second time, to decompose them."""
    traced, real = [], ExportedProgram.run_decompositions
    monkeypatch.setattr(
        ExportedProgram, "run_decompositions", lambda self, table: traced.append(self) or real(self, table)
    )
    return traced


@pytest.fixture
def promotions(monkeypatch):
    """The graph modules in which torch.onnx.export looked for type promotions."""
    looked, real = [], InsertTypePromotion.run
    monkeypatch.setattr(InsertTypePromotion, "run", lambda self: looked.append(self) or real(self))
    return looked


@pytest.mark.parametrize("family", slow_unless(FAST, MODELS))
def test_a_program_is_traced_once(make_model, monkeypatch, traces, promotions, family):
    auto, options, dtype = MODELS[family]
    config = open_source(make_model(family, auto=auto, **options), context_length=64).config
    model_spec, weights = model_spec_of(config), RandomWeights(config, 0)
    plain = {spec.file: capture_module.capture(spec, model_spec, weights, dtype) for spec in model_spec.graphs}
    assert (len(traces), len(promotions)) == (0, family in PROMOTING)
    monkeypatch.setattr(capture_module, "skip_needless_stages", lambda program: program)
    monkeypatch.setattr(capture_module, "traced_leanly", nullcontext)
    for spec in model_spec.graphs:
        expected = capture_module._trace(spec, model_spec, dtype)
        assert described(plain[spec.file].graph) == described(expected.graph)
        # Negative control: one other input of one node is seen.
        expected.graph[-1].replace_input_with(0, expected.graph.inputs[-1])
        assert described(plain[spec.file].graph) != described(expected.graph)
    assert len(traces) == len(model_spec.graphs)


class EveryOp(torch.nn.Module):
    """A module that runs every op of both tables, except our own ops and numbers minus tensors."""

    def __init__(self, dtype):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(7, 8, dtype=dtype))
        self.kernel = torch.nn.Parameter(torch.zeros(8, 8, 3, dtype=dtype))
        self.square_kernel = torch.nn.Parameter(torch.zeros(8, 8, 3, 3, dtype=dtype))
        self.norm = torch.nn.LayerNorm(8, dtype=dtype)
        self.register_buffer("rows", torch.zeros(9, dtype=torch.int64))

    def forward(self, ids, mask):
        x = functional.linear(self.norm(functional.embedding(ids, self.table)), self.table[:, :].t() @ self.table)
        batch, length = ids.shape
        total = mask.shape[1]
        heads = x.view(batch, length, 2, 4)
        for name in ("abs", "exp", "neg", "relu", "rsqrt", "sigmoid", "sqrt", "square", "tanh", "log"):
            x = x + getattr(x, name)()
        x = functional.gelu(x) / functional.silu(x) - functional.softplus(x)
        x = torch.minimum(x, x.clamp(min=0.5)).to(torch.float32) * x.pow(3)
        x = torch.where((x > 0.5) | torch.bitwise_or(x < 0.25, ~(x == 0.0)), x, x.transpose(0, 1).permute(1, 0, 2))
        heads = torch.cat((heads, functional.pad(x.unflatten(-1, (2, 4)), (0, 2))[..., :4]), 2)
        x = x + torch.stack((heads.reshape(batch, length, 16)[:, :, 8:], x), 2).mean(2) + heads.flatten(2)[..., 1::2]
        past = torch.arange(length) + ids.view(batch * length).view(batch, length)
        found = self.rows.index_select(0, past.flatten()).view(past.shape)
        x = (
            x
            + torch.zeros(batch, total - length, 1).sum([1], True)
            + (self.rows[found] == found).to(x.dtype).unsqueeze(-1)
        )
        x = x + torch.einsum("bse,fe->bsf", x, self.table).gather(2, ids.unsqueeze(-1).expand(-1, -1, 8) * 0)
        x = x + functional.conv1d(x.transpose(1, 2), self.kernel, padding=1).transpose(1, 2)
        x = x + functional.conv2d(x.transpose(1, 2).unsqueeze(2), self.square_kernel, padding=1).squeeze(2).transpose(
            1, 2
        )
        moved = x.transpose(1, 2).contiguous().transpose(1, 2)
        first, second = torch.maximum(moved, x.reciprocal()).split_with_sizes([4, 4], -1)
        thirds = x[:, :, :6].split(2, -1)
        first = first + torch.cat((thirds[2] % 0.5, thirds[0] % first[..., :2]), -1) + torch.tensor([0.5, 1, 2, 3])
        first = first + (ids // 2 + ids % 3).unsqueeze(-1) + torch.zeros(batch, 3 * total // 2, 1).sum([1], True)
        values, _ = torch.cat((second, first), -1).topk(8, -1)
        x = values.masked_fill(mask.sum([1], True).unsqueeze(-1) == 0, 0.0) + x.select(1, 0).unsqueeze(1)
        x = (
            x / torch.linalg.vector_norm(x, 2, [-1], True)
            + torch.zeros(batch, length, 1)
            + torch.ones(batch, length, 8)
        )
        x = x + mask.cumsum(1).amax([1], True).unsqueeze(-1).to(x.dtype)
        x = torch.where((x >= 0.5) | (ids != 3).unsqueeze(-1), x, torch.ones_like(x))
        first, second = torch.stack((x, x.to(torch.promote_types(x.dtype, torch.float32))), -1).unbind(-1)
        return first + second, x.to(torch.float32)


def test_composite_ops_become_what_torch_decomposes_them_into(monkeypatch, traces):
    inputs = (
        TensorSpec("ids", ("batch_size", "sequence_length"), True),
        TensorSpec("mask", ("batch_size", "total_sequence_length"), True),
    )
    graph_spec = SimpleNamespace(inputs=inputs, outputs=("x", "again"), module=lambda model: model)
    model_spec = SimpleNamespace(build=EveryOp)
    ops = set()

    def seen(program, skip=torch_export.skip_needless_stages):
        ops.update(node.target for node in program.graph.nodes if node.op == "call_function")
        return skip(program)

    monkeypatch.setattr(capture_module, "skip_needless_stages", seen)
    plain = capture_module._trace(graph_spec, model_spec, torch.float32)
    left = {*torch_export.NOT_COMPOSITE, *torch_export.DECOMPOSED} - ops
    assert left == {*OPS.values(), torch.ops.aten.rsub.Scalar}, "that one has a test of its own"
    assert traces == []
    monkeypatch.setattr(capture_module, "skip_needless_stages", lambda program: program)
    monkeypatch.setattr(capture_module, "traced_leanly", nullcontext)
    assert described(plain.graph) == described(capture_module._trace(graph_spec, model_spec, torch.float32).graph)
    assert len(traces) == 1


def test_sums_in_half_precision_are_those_of_torch(monkeypatch, traces):
    class Pooled(torch.nn.Module):
        def forward(self, ids):
            x = ids.unsqueeze(-1).to(torch.float16) * 0.5
            return x.sum(1).to(torch.promote_types(x.dtype, torch.float32)), x.mean(1), x.cumsum(1).amax([1], True)

    inputs = (TensorSpec("ids", ("batch_size", "sequence_length"), True),)
    graph_spec = SimpleNamespace(inputs=inputs, outputs=("sum", "mean", "last"), module=lambda model: model)
    model_spec = SimpleNamespace(build=lambda dtype: Pooled())
    ours = described(capture_module._trace(graph_spec, model_spec, torch.float16).graph)
    assert traces == []
    monkeypatch.setattr(capture_module, "skip_needless_stages", lambda program: program)
    assert ours == described(capture_module._trace(graph_spec, model_spec, torch.float16).graph)


def test_a_number_minus_a_tensor_is_a_difference(monkeypatch, traces):
    class Differences(torch.nn.Module):
        def forward(self, ids):
            return 2 - ids, 1.0 - ids.to(torch.float32)

    class WithAFactor(torch.nn.Module):
        def forward(self, ids):
            return torch.rsub(ids, 3, alpha=2), ids

    def traced(module):
        inputs = (TensorSpec("ids", ("batch_size", "sequence_length"), True),)
        graph_spec = SimpleNamespace(inputs=inputs, outputs=("first", "second"), module=lambda model: model)
        model_spec = SimpleNamespace(build=lambda dtype: module())
        return described(capture_module._trace(graph_spec, model_spec, torch.float32).graph)

    ours = traced(Differences)
    assert traces == []
    traced(WithAFactor)
    assert len(traces) == 1, "a factor is left to torch"
    monkeypatch.setattr(capture_module, "skip_needless_stages", lambda program: program)
    assert ours == traced(Differences)


def test_the_shim_was_checked_with_the_installed_torch():
    """A new torch: run this file with its version in CHECKED, and keep the version there if all tests pass."""
    assert torch.__version__.rpartition(".")[0] in checked_torch.CHECKED


def test_on_another_torch_nothing_is_skipped(make_llama, traces, promotions, monkeypatch):
    model_spec = model_spec_of(open_source(make_llama(num_hidden_layers=1)).config)
    arguments = model_spec.graphs[-1], model_spec, torch.float32
    expected = capture_module._trace(*arguments)
    assert (traces, promotions) == ([], [])
    monkeypatch.setattr(
        capture_module, "skip_needless_stages", lambda program: torch_export.skip_needless_stages(program, "2.0.1")
    )
    assert described(capture_module._trace(*arguments).graph) == described(expected.graph)
    assert (len(traces), len(promotions)) == (1, 1)


def test_an_export_reuses_the_tables_of_the_last_one():
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    real = ONNXRegistry.from_torchlib
    with reused_tables.tables_built_once():
        first, second = ONNXRegistry.from_torchlib(18), ONNXRegistry.from_torchlib(18)
    assert ONNXRegistry.from_torchlib == real
    op = next(iter(first.functions))
    assert first.functions == second.functions == real(18).functions
    first.functions[op].append("a translation of its own")
    first.functions["another"] = []
    with reused_tables.tables_built_once():
        assert ONNXRegistry.from_torchlib(18).functions == second.functions != first.functions
    with reused_tables.tables_built_once("2.0.1"):
        assert ONNXRegistry.from_torchlib == real


def test_no_stack_of_a_node_is_noted():
    def noted(version):
        with torch_export.traced_leanly(version):
            program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),), strict=False)
        assert not torch.fx.config.do_not_emit_stack_traces
        return [node.stack_trace for node in program.graph.nodes if node.stack_trace]

    assert noted(torch.__version__) == []
    assert len(noted("2.0.1")) == 1, "on another torch nothing is left out"


class Products(torch.nn.Module):
    """Linear layers, products and norms of many shapes, of which only some are found without torch."""

    def __init__(self):
        super().__init__()
        self.layer, self.plain = torch.nn.Linear(4, 3), torch.nn.Linear(4, 4, bias=False)
        self.norm, self.bare = torch.nn.LayerNorm(4), torch.nn.LayerNorm((1, 4), elementwise_affine=False)

    def forward(self, x):
        rows = self.plain(x[:, 0]) @ self.plain.weight
        scores = x.unsqueeze(1) @ x.unsqueeze(1).transpose(-1, -2)
        return (
            self.layer(x),
            self.layer(x.unsqueeze(2)),
            rows,
            scores,
            scores @ x.unsqueeze(1),
            x @ x[:1].mT,
            x @ rows[0],
            self.norm(x.mT.contiguous().mT),
            self.bare(x.unsqueeze(2)),
        )


class Elementwise(torch.nn.Module):
    """Elementwise ops over tensors of every arrangement, of which some are left to torch."""

    def forward(self, x, ids):
        half, part, mask, third = x.half(), x[:, :1], ids > 2, x.unsqueeze(2)
        clamped = x.clamp(-1.0, 1.0), x.clamp(min=0.5), x.mT.clamp(max=1), ids.clamp(0), x.sum().clamp(0)
        sums = x + part, x - x[:1], third * x.unsqueeze(1), x.mT * part.mT, x / ids.unsqueeze(-1), ids.sum() + x
        numbers = ids / 2, ids * 2, ids - 3.5, half * 2.5, x.sum() * half, half * x
        chosen = torch.where(mask.unsqueeze(-1), x, 0.0), torch.where(mask, ids, ids.double())
        masks = mask | (ids == 0), mask.unsqueeze(1) | (ids < 9).unsqueeze(2), ~mask, ids | 1, ids != 3, ids >= 2
        filled = ids.masked_fill(mask, 7), x.masked_fill(mask.unsqueeze(-1), 0.0), torch.minimum(ids, ids[:, :1])
        of_integers = ids.sqrt(), ids.exp(), ids.tanh(), ids.sigmoid(), -ids, ids.abs(), ids == ids[:1], ids.rsqrt()
        strided = x.permute(2, 0, 1).relu(), functional.silu(x[..., ::2]), -x.expand(2, -1, -1, -1), x[:, :0].log()
        return clamped, sums, numbers, chosen, masks, filled, of_integers, strided, functional.gelu(x)


X, IDS = torch.rand(3, 5, 4), torch.ones(3, 5, dtype=torch.int64)


@pytest.mark.parametrize(("module", "inputs"), [(Products, (X,)), (Elementwise, (X, IDS))])
def test_shapes_by_rule_are_those_that_torch_finds(module, inputs):
    axes = tuple({0: torch.export.Dim("batch"), 1: torch.export.Dim("length")} for _ in inputs)
    asked = Counter()

    def seen(op, *args, answer=known_shapes._elementwise, **named):
        asked[op] += 1
        return answer(op, *args, **named)

    def shapes(version):
        with torch_export.traced_leanly(version), torch.no_grad():
            program = torch.export.export(module(), inputs, dynamic_shapes=axes, strict=False)
        found = [node.meta["val"] for node in program.graph.nodes if node.op == "call_function"]
        return [(str(each.shape), each.dtype, str(each.stride())) for each in found if isinstance(each, torch.Tensor)]

    with patch.object(known_shapes, "_elementwise", seen):
        ours = shapes(torch.__version__)
        assert module is Products or asked.keys() == known_shapes.ELEMENTWISE.keys()
        asked.clear()
        assert ours == shapes("2.0.1")
        assert not asked, "on another torch, all is left to it"
    if module is Elementwise:
        with patch.object(known_shapes, "_is_contiguous", lambda tensor: True):
            assert shapes(torch.__version__) != ours, "strides are compared"


def test_rules_for_products_are_used_and_taken_back():
    kernels = {op: op.py_kernels.get(known_shapes.COMPOSITE) for op in known_shapes.COMPOSITES}
    with torch_export.traced_leanly():
        ours = {op: op.py_kernels[known_shapes.COMPOSITE].func for op in kernels}
    assert ours == known_shapes.COMPOSITES
    with torch_export.traced_leanly("2.0.1"):
        assert kernels == {op: op.py_kernels.get(known_shapes.COMPOSITE) for op in kernels}
    assert kernels == {op: op.py_kernels.get(known_shapes.COMPOSITE) for op in kernels}


def test_wrong_shapes_are_left_to_torch():
    axes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length")},)
    assert known_shapes._broadcast([(3, 5), (3, 4)]) is None
    with torch_export.traced_leanly(), pytest.raises(RuntimeError, match="same reduction dim"):
        torch.export.export(Products(), (torch.ones(3, 5, 6),), dynamic_shapes=axes, strict=False)
    with torch_export.traced_leanly(), pytest.raises(RuntimeError, match="normalized_shape"):
        torch.export.export(torch.nn.LayerNorm(4), (torch.ones(3, 5),), strict=False)


def test_a_trace_remembers_no_shapes():
    def remembered(version):
        hits = FakeTensorMode.cache_info().hits
        with torch_export.traced_leanly(version):
            torch.export.export(Products(), (torch.ones(3, 5, 4),), strict=False)
        return FakeTensorMode.cache_info().hits - hits

    assert remembered(torch.__version__) == 0
    assert remembered("2.0.1") > 0


def test_a_method_that_torch_no_longer_has_is_not_overridden():
    with pytest.raises(AssertionError, match=r"torch has no object.run_decompositions any more"):
        torch_export._override(object(), "run_decompositions", None)


def test_our_model_is_traced_once_and_graphs_share_nothing(make_llama, monkeypatch):
    config = open_source(make_llama(num_hidden_layers=1)).config
    model_spec, spec, traced = model_spec_of(config), model_spec_of(config).graphs[-1], []
    real = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **named: traced.append(args) or real(*args, **named))
    capture_module._trace_once.cache_clear()
    graphs = [capture_module.capture(spec, model_spec, RandomWeights(config, seed), torch.float32) for seed in (0, 1)]
    assert len(traced) == 1
    before = described(graphs[1].graph)
    assert before == described(graphs[0].graph)
    first, second = (graph.graph.initializers["embedding.weight"].const_value.read() for graph in graphs)
    assert not torch.equal(first, second)
    graphs[0].graph[-1].replace_input_with(0, graphs[0].graph.inputs[-1])
    graphs[0].graph.initializers.clear()
    again = capture_module.capture(spec, model_spec, RandomWeights(config, 2), torch.float32)
    assert before == described(graphs[1].graph) == described(again.graph)
    assert len(traced) == 1
    for other in ((spec, model_spec, torch.float16), (spec, replace(model_spec, vocab_size=7), torch.float32)):
        capture_module.capture(*other[:2], RandomWeights(config, 0), other[2])
    assert len(traced) == 3
