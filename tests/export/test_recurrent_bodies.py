"""The bodies of the ops of recurrent layers compute in float64 what their torch ops compute one token at a time."""

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from slow_rows import slow_unless
from test_function_bodies import body_of, random

from edgeformer import ops
from edgeformer.export.graph.recurrent_bodies import CHUNK

MASKS = {
    "full": lambda length: [[1] * length, [1] * length],
    "right-padded": lambda length: [[1] * length, [1] * (length - length // 2) + [0] * (length // 2)],
    "left-padded": lambda length: [[1] * length, [0] * (length // 2) + [1] * (length - length // 2)],
    "padded anywhere": lambda length: [[1] * length, [int(t % 3 != 1) for t in range(length)]],
}


@pytest.mark.parametrize("form", ["any", "static", "dynamic"])
def test_tokens_of_a_padded_first_prompt_and_of_a_later_step(form):
    first = torch.tensor([[1, 1, 1], [1, 0, 0]])
    tensors = {"attention_mask": first, "input_ids": first}
    assert body_of(ops.token_mask, tensors, {}, form)(**tensors)[0].tolist() == first.bool().tolist()
    assert ops.token_mask(**tensors).tolist() == first.bool().tolist()
    later = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1] if form == "dynamic" else [1, 1, 1, 0]])
    tensors = {"attention_mask": later, "input_ids": later[:, :2]}
    assert body_of(ops.token_mask, tensors, {}, form)(**tensors)[0].all()
    if form != "dynamic":
        assert ops.token_mask(**tensors).all()


def conv_tensors(length, mask, biased=True):
    return {
        "x": random(2, length, 6),
        "weight": random(6, 4, seed=1),
        "bias": random(6, seed=2) if biased else None,
        "past": random(2, 6, 3, seed=3),
        "token_mask": torch.tensor(mask).bool(),
    }


def of_tokens(tensors, value):
    return np.asarray(value)[tensors["token_mask"].numpy()]


def feeds_of(tensors):
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def agree(op, tensors, attributes, form, tolerance=1e-12):
    """Compare the body with the op: outputs of tokens, and the present state."""
    output, present = op(**tensors, **attributes)
    actual, state = body_of(op, tensors, attributes, form)(**feeds_of(tensors))
    np.testing.assert_allclose(of_tokens(tensors, actual), of_tokens(tensors, output), rtol=0, atol=tolerance)
    np.testing.assert_allclose(state, present.numpy(), rtol=0, atol=tolerance)
    return output, present


def without_padding(op, tensors, attributes, row, sequences):
    """Return what the op makes of the tokens of one row alone."""
    tokens = tensors["token_mask"][row]
    own = {
        name: each if each is None or name not in sequences else each[row : row + 1] for name, each in tensors.items()
    }
    own |= {name: own[name][:, tokens] for name in sequences if name != "past" and own[name] is not None}
    return op(**own, **attributes)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("padding", MASKS)
def test_causal_conv(padding, length, biased):
    tensors = conv_tensors(length, MASKS[padding](length), biased)
    for form in ["dynamic"] if padding in ("left-padded", "padded anywhere") else ["any", "static", "dynamic"]:
        output, present = agree(ops.causal_conv, tensors, {"silu": biased}, form)
    for row in range(2):
        sequences = ("x", "past", "token_mask")
        alone, state = without_padding(ops.causal_conv, tensors, {"silu": biased}, row, sequences)
        torch.testing.assert_close(output[row, tensors["token_mask"][row]], alone[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(present[row], state[0], rtol=0, atol=0)


def test_chunks_of_a_causal_conv_are_the_whole():
    tensors = conv_tensors(9, MASKS["full"](9))
    whole, state = ops.causal_conv(**tensors, silu=True)
    past, parts = tensors["past"], []
    for start, end in ((0, 1), (1, 3), (3, 9)):
        cut = {name: tensors[name][:, start:end] for name in ("x", "token_mask")}
        part, past = ops.causal_conv(**tensors | cut | {"past": past}, silu=True)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(past, state, rtol=0, atol=0)
    # Negative controls: a state that is not carried, and a convolution off by one.
    fresh, _ = ops.causal_conv(**tensors | {"past": torch.zeros_like(tensors["past"])}, silu=True)
    assert (fresh - whole).abs()[:, :3].min(1).values.max() > 1e-3
    late, _ = ops.causal_conv(**tensors | {"weight": tensors["weight"].roll(1, 1)}, silu=True)
    assert (late - whole).abs().max() > 1e-1


RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


def attention_tensors(rule, length, mask, groups=2, heads=4, key_dim=8, value_dim=5):
    decayed, corrected = RULES[rule]
    key = random(2, length, groups, key_dim, seed=1)
    return {
        "query": random(2, length, groups * key_dim),
        "key": (key / key.norm(dim=-1, keepdim=True)).flatten(2),
        "value": random(2, length, heads * value_dim, seed=2),
        "past": random(2, heads, key_dim, value_dim, seed=3),
        "token_mask": torch.tensor(mask).bool(),
        "decay": -random(2, length, heads, seed=4).exp() if decayed else None,
        "beta": random(2, length, heads, seed=5).sigmoid() if corrected else None,
    }


SCALE = {"scale": 0.25}
SEQUENCES = ("query", "key", "value", "past", "token_mask", "decay", "beta")


@pytest.mark.parametrize("length", slow_unless((1, CHUNK), (1, 5, CHUNK, 2 * CHUNK + 3)))
@pytest.mark.parametrize("rule", RULES)
def test_linear_attention(rule, length):
    for padding in MASKS:
        tensors = attention_tensors(rule, length, MASKS[padding](length))
        output, present = agree(ops.linear_attention, tensors, SCALE, "any")
        for row in range(2):
            alone, state = without_padding(ops.linear_attention, tensors, SCALE, row, SEQUENCES)
            tokens = tensors["token_mask"][row]
            torch.testing.assert_close(output[row, tokens], alone[0], rtol=0, atol=1e-12)
            torch.testing.assert_close(present[row], state[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("groups", "heads"), [(1, 1), (1, 6), (4, 4)])
def test_heads_share_queries_and_keys(groups, heads):
    tensors = attention_tensors("gated_delta", 4, MASKS["full"](4), groups, heads)
    agree(ops.linear_attention, tensors, SCALE, "any")


@pytest.mark.parametrize("rule", RULES)
def test_the_rules_are_those_of_onnx(rule):
    """ONNX's LinearAttention (opset 27), run by its reference evaluator in float32, computes the same."""
    tensors = attention_tensors(rule, 6, MASKS["full"](6), groups=4)
    names = {"query": "query", "key": "key", "value": "value", "past": "past_state", "decay": "decay", "beta": "beta"}
    inputs = [name for name in names if tensors[name] is not None]
    listed = [name if name in inputs else "" for name in names]
    node = onnx.helper.make_node(
        "LinearAttention", listed, ["output", "present"], update_rule=rule, q_num_heads=4, kv_num_heads=4, scale=0.25
    )
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, tensors[name].shape) for name in inputs]
    results = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None) for name in ("output", "present")
    ]
    graph = onnx.helper.make_graph([node], "graph", infos, results)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 27)])
    expected = ReferenceEvaluator(model).run(None, {name: tensors[name].numpy() for name in inputs})
    for ours, theirs in zip(ops.linear_attention(**tensors, **SCALE), expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("rule", RULES)
def test_wrong_linear_attention_is_told(rule):
    tensors = attention_tensors(rule, 40, MASKS["full"](40))
    right, _ = ops.linear_attention(**tensors, **SCALE)
    wrong = {"past": torch.zeros_like(tensors["past"])}
    wrong |= {"decay": -0.1 * tensors["decay"]} if tensors["decay"] is not None else {}
    wrong |= {"beta": 0.9 * tensors["beta"]} if tensors["beta"] is not None else {}
    for name, value in wrong.items():
        assert (ops.linear_attention(**tensors | {name: value}, **SCALE)[0] - right).abs().max() > 1e-3, name


def in_precision(tensors, dtype):
    return {
        name: each.to(dtype) if each is not None and each.is_floating_point() else each
        for name, each in tensors.items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_neither_strong_nor_weak_decays_lose_digits(dtype):
    """Decays of e⁻³⁰⁰⁰ stand beside those of e⁻⁰·⁰⁰¹: differences of running sums would have no digit left of these."""
    tensors = attention_tensors("gated_delta", 2 * CHUNK, MASKS["full"](2 * CHUNK))
    tensors["decay"] = torch.where(random(2, 2 * CHUNK, 4, seed=6) > 1, -3e3, -1e-3).double()
    tensors = in_precision(tensors, dtype)
    exact, state = ops.linear_attention(**in_precision(tensors, torch.float64), **SCALE)
    actual, present = body_of(ops.linear_attention, tensors, SCALE)(**feeds_of(tensors))
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
    for ours, theirs in ((actual, exact), (present, state)):
        assert np.abs(ours - theirs.numpy()).max() < tolerance * np.abs(theirs.numpy()).max()


def test_equal_keys_do_not_make_the_delta_rule_overflow():
    """With equal keys and β of 1, the powers of the relations between tokens would grow like binomials."""
    tensors = attention_tensors("delta", 3 * CHUNK, MASKS["full"](3 * CHUNK))
    tensors["key"] = tensors["key"][:, :1].expand_as(tensors["key"]).contiguous()
    tensors["beta"] = torch.ones_like(tensors["beta"])
    tensors = in_precision(tensors, torch.float32)
    exact, _ = ops.linear_attention(**in_precision(tensors, torch.float64), **SCALE)
    actual, _ = body_of(ops.linear_attention, tensors, SCALE)(**feeds_of(tensors))
    assert np.abs(actual - exact.numpy()).max() < 1e-5 * exact.abs().max()
