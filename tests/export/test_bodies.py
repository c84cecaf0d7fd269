"""The ONNX body of each canonical op computes in float64 what its torch op computes.

Each op is captured by itself through the real translation table, written out in primitives, and run by onnxruntime in
double precision; agreement is to 1e-12, far below what any wrong formula could reach.
"""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import nn

from edgeformer import ops
from edgeformer.export.bodies import write_out_all
from edgeformer.export.canonical import OPS, translation_table

D64 = torch.float64


class Call(nn.Module):
    """One op with fixed attributes as a module."""

    def __init__(self, op, order, attributes):
        super().__init__()
        self.op, self.order, self.attributes = op, order, attributes

    def forward(self, *tensors):
        given = dict(zip(self.order, tensors, strict=True))
        return self.op(**given, **self.attributes)


def body_of(op, tensors, attributes):
    """Capture the op on these tensors (None stays absent), write it out, and return a function that runs it."""
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    absent = {name: None for name, tensor in tensors.items() if tensor is None}
    module = Call(op, list(present), attributes | absent)
    arguments = tuple(present.values())
    exported = torch.export.export(module, arguments, strict=False)
    program = torch.onnx.export(
        exported, dynamo=True, optimize=False, verbose=False, custom_translation_table=translation_table(),
        input_names=list(present),
    )  # fmt: skip
    model = program.model
    model.ir_version = 10
    assert [node.domain for node in model.graph] == ["edgeformer"]
    write_out_all(model)
    assert all(node.domain == "" for node in model.graph)
    session = ort.InferenceSession(ir.serde.serialize_model(model).SerializeToString())
    return lambda **feeds: session.run(None, {name: np.asarray(tensor) for name, tensor in feeds.items()})


def check(op, tensors, attributes, tolerance=1e-12):
    expected = op(**tensors, **attributes)
    expected = expected if isinstance(expected, tuple) else (expected,)
    feeds = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    actual = body_of(op, tensors, attributes)(**feeds)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=tolerance)
    return actual


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=D64, generator=torch.Generator().manual_seed(seed))


def test_rms_norm():
    # ONNX attributes are float32, so epsilon is one that float32 holds exactly.
    check(ops.rms_norm, {"x": random(2, 3, 16), "weight": random(16, seed=1)}, {"epsilon": 2**-10})


def test_rms_norm_without_a_weight():
    check(ops.rms_norm, {"x": random(2, 3, 16), "weight": None}, {"epsilon": 2**-10})


def test_rms_norm_tells_another_epsilon():
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        actual = body_of(ops.rms_norm, {"x": random(2, 16), "weight": random(16)}, {"epsilon": 2**-10})
        expected = ops.rms_norm(random(2, 16), random(16), 2**-11)
        np.testing.assert_allclose(actual(x=random(2, 16), weight=random(16))[0], expected, rtol=0, atol=1e-12)


def test_skip_rms_norm():
    tensors = {"x": random(2, 3, 16), "skip": random(2, 3, 16, seed=2), "weight": random(16, seed=1)}
    check(ops.skip_rms_norm, tensors, {"epsilon": 2**-10})


def test_token_positions_of_a_padded_first_prompt_and_of_a_later_step():
    first = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert check(ops.token_positions, {"attention_mask": first, "input_ids": first}, {})[0].tolist() == [[0, 1, 2]] * 2
    later = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    step = check(ops.token_positions, {"attention_mask": later, "input_ids": later[:, :1]}, {})[0]
    assert step.tolist() == [[3], [1]]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [8, 6, 2])
def test_rotary_embedding(interleaved, rotary_dim):
    angles = random(20, rotary_dim // 2, seed=3)
    tensors = {
        "x": random(2, 5, 3 * 8),
        "positions": torch.arange(10).reshape(2, 5),
        "cos": angles.cos(),
        "sin": angles.sin(),
    }
    check(ops.rotary_embedding, tensors, {"num_heads": 3, "interleaved": interleaved})


ATTENTION = {
    "num_heads": 4, "num_kv_heads": 2, "scale": 0.25, "rotary_interleaved": False, "window": 0, "softcap": 0.0,
}  # fmt: skip


def attention_tensors(*, new, past, mask, packed=False, rotary=False):
    width, batch = 8, len(mask)
    q, k, v = (
        random(batch, new, 4 * width),
        random(batch, new, 2 * width, seed=1),
        random(batch, new, 2 * width, seed=2),
    )
    angles = random(32, width // 2, seed=5)
    return {
        "query": torch.cat((q, k, v), -1) if packed else q,
        "key": None if packed else k,
        "value": None if packed else v,
        "past_key": random(batch, 2, past, width, seed=3),
        "past_value": random(batch, 2, past, width, seed=4),
        "attention_mask": torch.tensor(mask),
        "cos": angles.cos() if rotary else None,
        "sin": angles.sin() if rotary else None,
        "attention_bias": None,
        "sinks": None,
        "value_relations": None,
    }


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("new", "past", "mask"),
    [
        (5, 0, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),  # a right-padded first prompt
        (1, 4, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),  # one step of rows of different lengths
        (3, 4, [[1] * 7, [1] * 7]),  # a chunk after a past
    ],
)
def test_group_query_attention(new, past, mask, packed, rotary):
    tensors = attention_tensors(new=new, past=past, mask=mask, packed=packed, rotary=rotary)
    check(ops.group_query_attention, tensors, ATTENTION)


SHAPES = [
    (5, 0, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),
    (1, 4, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),
    (3, 4, [[1] * 7, [1] * 7]),
]


@pytest.mark.parametrize(("new", "past", "mask"), SHAPES)
@pytest.mark.parametrize(
    "features",
    [
        {"window": 2},
        {"softcap": 0.5},
        {"sinks": random(4, seed=6)},
        {"bias": (1, 1)},
        {"bias": (1, 4)},
        {"bias": (2, 1)},
        {"bias": (2, 4)},
        {"value_relations": random(5, 8, seed=7)},
        {"window": 3, "softcap": 1.0, "sinks": random(4, seed=6), "bias": (2, 4), "value_relations": random(3, 8)},
    ],
    ids=lambda features: "-".join(features),
)
def test_every_feature_of_attention(new, past, mask, features):
    features = dict(features)
    tensors = attention_tensors(new=new, past=past, mask=mask)
    if shape := features.pop("bias", None):
        tensors["attention_bias"] = random(*shape, new, len(mask[0]), seed=8)
    for name in ("sinks", "value_relations"):
        tensors[name] = features.pop(name, None)
    plain, *_ = ops.group_query_attention(**attention_tensors(new=new, past=past, mask=mask), **ATTENTION)
    output, *_ = check(ops.group_query_attention, tensors, ATTENTION | features)
    assert np.abs(output - plain.numpy()).max() > 1e-3, "the feature changes nothing here, so this test cannot fail"


def test_attention_reads_nothing_behind_the_valid_tokens():
    mask = [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    tensors = attention_tensors(new=1, past=4, mask=mask)
    clean, *_ = check(ops.group_query_attention, tensors, ATTENTION)
    for part in ("past_key", "past_value"):
        tensors[part][1, :, 2:] = float("nan")
    output, _, _ = ops.group_query_attention(**tensors, **ATTENTION)
    feeds = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    actual = body_of(ops.group_query_attention, tensors, ATTENTION)(**feeds)[0]
    np.testing.assert_allclose(actual, clean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(output.numpy(), clean, rtol=0, atol=1e-12)


def test_padding_that_overflows_harms_nobody():
    tensors = attention_tensors(new=5, past=0, mask=[[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    clean, *_ = check(ops.group_query_attention, tensors, ATTENTION)
    for part in ("query", "key", "value"):
        tensors[part][1, 2:] = float("nan")
    output, _, _ = ops.group_query_attention(**tensors, **ATTENTION)
    feeds = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    actual = body_of(ops.group_query_attention, tensors, ATTENTION)(**feeds)[0]
    for each in (output.numpy(), actual):
        np.testing.assert_allclose(each[0], clean[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(each[1, :2], clean[1, :2], rtol=0, atol=1e-12)


def test_the_body_also_takes_a_cache_longer_than_the_tokens_so_far():
    mask = [[1, 1, 1, 1, 1]]
    tensors = attention_tensors(new=1, past=4, mask=mask)
    expected = ops.group_query_attention(**tensors, **ATTENTION)
    static = dict(tensors)
    for part in ("past_key", "past_value"):
        static[part] = torch.full((1, 2, 9, 8), float("nan"), dtype=D64)
        static[part][:, :, :4] = tensors[part]
    # Captured with a past no longer than the mask, as the op demands; run with a longer one, as the runtime does.
    program = body_of_dynamic(tensors)
    actual = program(**{name: tensor for name, tensor in static.items() if tensor is not None})
    np.testing.assert_allclose(actual[0], expected[0].numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(actual[1][:, :, :5], expected[1].numpy(), rtol=0, atol=1e-12)
    assert np.isnan(actual[1][:, :, 5:]).all()


def body_of_dynamic(tensors):
    """The attention body with free past and total lengths."""
    present = [name for name, tensor in tensors.items() if tensor is not None]
    absent = {name: None for name, tensor in tensors.items() if tensor is None}
    module = Call(ops.group_query_attention, present, ATTENTION | absent)
    past, total = torch.export.Dim("past"), torch.export.Dim("total")
    axes = {"past_key": {2: past}, "past_value": {2: past}, "attention_mask": {1: total}}
    exported = torch.export.export(
        module, tuple(tensors[name] for name in present), strict=False,
        dynamic_shapes=(tuple(axes.get(name) for name in present),),
    )  # fmt: skip
    program = torch.onnx.export(
        exported, dynamo=True, optimize=False, verbose=False, custom_translation_table=translation_table(),
        input_names=present,
    )  # fmt: skip
    program.model.ir_version = 10
    write_out_all(program.model)
    session = ort.InferenceSession(ir.serde.serialize_model(program.model).SerializeToString())
    return lambda **feeds: session.run(None, {name: np.asarray(tensor) for name, tensor in feeds.items()})


def test_every_canonical_op_has_a_body_and_a_test():
    from edgeformer.export.bodies import BODIES

    tested = {"RMSNorm", "SkipRMSNorm", "TokenPositions", "RotaryEmbedding", "GroupQueryAttention"}
    assert set(OPS) == set(BODIES) == tested
