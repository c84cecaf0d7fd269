"""The float64 reference is float64 all through, and the figures of error are what their names say."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edgeformer import ops
from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.export.parity.figures import Errors, margins, relative_rmse, vector_errors, worst_of
from edgeformer.export.reference.reference import CastWeights, Reference
from edgeformer.families import read_model_config
from edgeformer.models import Decoder, model_constants
from edgeformer.models.model_spec import ModelSpec, model_spec_of

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}  # fmt: skip


def config(**options):
    data = {
        "model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "attention_bias": True,
    }  # fmt: skip
    return read_model_config(data | options)[1]


class Audit(TorchDispatchMode):
    """Records every op that makes a floating tensor narrower than float64, inside our custom ops too."""

    def __init__(self):
        super().__init__()
        self.narrow = []
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        ours = {
            torch.ops.edgeformer.rms_norm.default: ops.rms_norm,
            torch.ops.edgeformer.rotary_embedding.default: ops.rotary_embedding,
            torch.ops.edgeformer.group_query_attention.default: ops.group_query_attention,
            torch.ops.edgeformer.token_positions.default: ops.token_positions,
        }
        self.seen.add(str(func))
        if func in ours:
            with self:  # look inside
                return ours[func]._init_fn(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64:
                self.narrow.append(f"{func} made {tensor.dtype}")
        return result


@pytest.mark.parametrize("rope", ROPES)
def test_no_op_of_the_reference_is_narrower_than_float64(rope):
    model = config(rope_parameters=ROPES[rope])
    weights = {name: tensor.double() for name, tensor in RandomWeights(model, 0).items()}
    with Audit() as audit:
        reference = Reference(model_spec_of(model), weights)
        logits, _ = reference.run(torch.arange(20)[None])
    assert logits.dtype == torch.float64
    assert audit.narrow == []
    for op in ("mm", "cos", "softmax", "rsqrt", "index"):
        assert any(op in name for name in audit.seen), f"{op} was not looked at"


def test_the_audit_finds_a_hidden_float32():
    with Audit() as audit:
        ops.rms_norm(torch.ones(2, 4, dtype=torch.float64), torch.ones(4, dtype=torch.float64), 1e-5).float().double()
    assert audit.narrow == ["aten._to_copy.default made torch.float32"]


@pytest.mark.parametrize("tied", [False, True])
def test_the_reference_loads_one_module_at_a_time(tied):
    model = config(tie_word_embeddings=tied)
    weights = RandomWeights(model, 0)
    module = Decoder(model, torch.float64)
    module.load_state_dict(weights, strict=False)  # a tied head is in it by its first name alone
    for name, value in model_constants(model).items():
        module.get_buffer(name).copy_(value)
    ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    empty = torch.zeros(2, 2, 0, 8, dtype=torch.float64)
    with torch.no_grad():
        expected, caches = module(ids, torch.ones(2, 9, dtype=torch.int64), [(empty, empty)] * 2)
    logits, presents = Reference(model_spec_of(model), weights).run(ids)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)
    torch.testing.assert_close(presents, caches, rtol=0, atol=0)


class TwoNames(torch.nn.Module):
    """One table under two names, as where every layer has a rotary module of its own."""

    def __init__(self, dtype):
        super().__init__()
        table = torch.empty(3, dtype=dtype)
        self.head = torch.nn.Linear(3, 3, bias=False, dtype=dtype)
        for name in ("first", "second"):
            self.register_buffer(name, table, persistent=False)

    def forward(self, input_ids, attention_mask, caches):
        x = self.head(self.first[input_ids].unsqueeze(-1) * self.second)
        return x, caches


@pytest.mark.parametrize("streams", [False, True])
def test_a_buffer_of_two_names_has_its_value_under_both(streams):
    table, weight = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64), torch.eye(3)
    model_spec = ModelSpec(
        build=TwoNames,
        constants=lambda: {"first": table},
        cache=CacheGeometry.of_attention(num_layers=1, num_kv_heads=1, head_dim=1),
        vocab_size=3,
        context_length=3,
        streams=streams,
    )
    logits, _ = Reference(model_spec, {"head.weight": weight}).run(torch.arange(3)[None])
    torch.testing.assert_close(logits[0], table[:, None] * table, rtol=0, atol=0)


def test_a_past_continues_a_text():
    model = config()
    reference = Reference(model_spec_of(model), RandomWeights(model, 0))
    ids = torch.arange(12)[None]
    whole, _ = reference.run(ids)
    _, past = reference.run(ids[:, :7])
    rest, _ = reference.run(ids[:, 7:], past.__getitem__, 7)
    torch.testing.assert_close(rest, whole[:, 7:], rtol=0, atol=1e-12)


def test_rounded_weights_are_those_that_the_graph_stores():
    model = config()
    weights = RandomWeights(model, 0)
    rounded = CastWeights(weights, torch.float16)
    assert set(rounded) == set(weights)
    assert rounded["embedding.weight"].dtype == torch.float16


def logits(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_figures_of_a_known_error():
    expected = logits(10, 20)
    eager, graph = expected + 1e-3, expected + 2e-3
    errors = Errors(2.0**-24)
    errors.add(graph, vector_errors(eager, expected), expected)
    figures = errors.figures()
    assert figures["median ratio"][0] == pytest.approx(2.0)
    assert figures["worst ratio"][0] == pytest.approx(2.0)
    assert figures["max error"] == pytest.approx((2e-3 / np.abs(expected).max(), 1e-3 / np.abs(expected).max()))
    assert figures["nmse"][0] == pytest.approx(4e-6 / np.square(expected).mean())
    assert figures["max KL"][0] < 1e-12  # a constant added to all logits changes no probability


def test_a_few_positions_are_held_to_eagers_worst():
    expected = logits(30, 20)
    eager = expected + 1e-3 * logits(30, 20, seed=1)
    eager[20] = expected[20] + 1e-2 * logits(20, seed=3)
    of_eager, few = vector_errors(eager, expected), slice(0, 4)
    worst = worst_of([of_eager])
    errors = Errors(2.0**-24)
    errors.add(expected[few] + 2e-3 * logits(4, 20, seed=2), of_eager.part(few), expected[few])
    for figure in ("worst ratio", "max error", "max KL"):
        (value, here), (same, anywhere) = (errors.figures(given)[figure] for given in (None, worst))
        if figure == "worst ratio":  # eager's own is in it
            assert same < value / 3
        else:
            assert same == value and anywhere > 3 * here
    largest = np.abs(eager[20] - expected[20]).max() / np.abs(expected[few]).max()
    assert errors.figures(worst)["max error"][1] == pytest.approx(largest)


def test_kl_is_that_of_the_distributions():
    expected, graph = logits(5, 7), logits(5, 7, seed=1)
    errors = Errors(2.0**-24)
    errors.add(graph, vector_errors(expected, expected), expected)
    p, q = (torch.from_numpy(each).softmax(-1).numpy() for each in (expected, graph))
    assert errors.graph_kl == pytest.approx((p * np.log(p / q)).sum(-1))
    assert max(errors.eager_kl) < 1e-12


def test_one_bad_position_shows_in_the_worst_ratio_alone():
    expected = logits(101, 20)
    eager = expected + 1e-3 * logits(101, 20, seed=1)
    graph = expected + 1e-3 * logits(101, 20, seed=2)
    graph[50] = expected[50] + 1e-2 * logits(20, seed=3)
    errors = Errors(2.0**-24)
    errors.add(graph, vector_errors(eager, expected), expected)
    figures = errors.figures()
    assert figures["median ratio"][0] < 1.5
    assert figures["worst ratio"][0] > 5


def test_another_top_1_token_is_excused_only_by_the_error():
    expected = np.array([[1.0, 0.999, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 1.0]])
    graph = np.array([[1.0, 1.001, 0.0], [0.4, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert margins(graph, expected) == pytest.approx([0.001, 0.5, 0.0])
    errors = Errors(2.0**-24)
    errors.add(graph, vector_errors(expected, expected), expected)
    assert errors.top1_agreement(allowed_error=0.0) == pytest.approx(1 / 3)
    assert errors.top1_agreement(allowed_error=0.01) == pytest.approx(2 / 3)
    assert errors.top1_agreement(allowed_error=0.3) == 1.0


def test_relative_rmse():
    assert relative_rmse(np.array([1.1, 0.9]), np.array([1.0, 1.0])) == pytest.approx(0.1)
