"""The ONNX body of each canonical op computes in float64 what its torch op computes.

Each op is captured by itself through the real translation table, decomposed, and run by onnxruntime in
double precision; agreement is to 1e-12, far below what any wrong formula could reach.
"""

import inspect
import re

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx.defs import OpSchema
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.contract.ops import DOMAIN
from edgeformer.export.capture.reused_tables import tables_built_once
from edgeformer.export.capture.torch_export import skip_needless_stages
from edgeformer.export.graph.canonical import OPS, translation_table
from edgeformer.export.graph.function_bodies import FUNCTION_BODIES, decompose_all

D64 = torch.float64


class Call(nn.Module):
    """One op with fixed attributes as a module."""

    def __init__(self, op, order, attributes):
        super().__init__()
        self.op, self.order, self.attributes = op, order, attributes

    def forward(self, *tensors):
        given = dict(zip(self.order, tensors, strict=True))
        return self.op(**given, **self.attributes)


def in_onnx(exported, names):
    """Translate a program into ONNX as `capture` does: without needless stages, and torch's tables are built once."""
    with tables_built_once():
        program = torch.onnx.export(
            skip_needless_stages(exported), dynamo=True, optimize=False, verbose=False, input_names=names,
            custom_translation_table=translation_table(),
        )  # fmt: skip
    program.model.ir_version = 10
    return program.model


def body_of(op, tensors, attributes, form="any", decompose=decompose_all):
    """Capture the op on these tensors (None stays absent), write it out, and return a function that runs it."""
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    absent = {name: None for name, tensor in tensors.items() if tensor is None}
    module = Call(op, list(present), attributes | absent)
    arguments = tuple(present.values())
    model = in_onnx(torch.export.export(module, arguments, strict=False), list(present))
    assert [node.domain for node in model.graph] == ["edgeformer"]
    decompose(model, form)
    assert all(node.domain == "" for node in model.graph)
    session = ort.InferenceSession(ir.serde.serialize_model(model).SerializeToString())
    return lambda **feeds: session.run(None, {name: np.asarray(tensor) for name, tensor in feeds.items()})


def check(op, tensors, attributes, tolerance=1e-12, **options):
    expected = op(**tensors, **attributes)
    expected = expected if isinstance(expected, tuple) else (expected,)
    feeds = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    actual = body_of(op, tensors, attributes, **options)(**feeds)
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


@pytest.mark.parametrize("biased", [False, True])
def test_skip_layer_norm(biased):
    tensors = {"x": random(2, 3, 16), "skip": random(2, 3, 16, seed=2), "weight": random(16, seed=1)}
    tensors["bias"] = random(16, seed=3) if biased else None
    normed, total = check(ops.skip_layer_norm, tensors, {"epsilon": 2**-10})
    np.testing.assert_array_equal(total, tensors["x"] + tensors["skip"])
    other, _ = ops.skip_layer_norm(**tensors, epsilon=2**-9)
    assert np.abs(normed - other.numpy()).max() > 1e-4


def test_token_positions_of_a_padded_prompt_and_a_step():
    first = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert check(ops.token_positions, {"attention_mask": first, "input_ids": first}, {})[0].tolist() == [[0, 1, 2]] * 2
    later = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    step = check(ops.token_positions, {"attention_mask": later, "input_ids": later[:, :1]}, {})[0]
    assert step.tolist() == [[3], [1]]


def test_key_positions():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert check(ops.key_positions, {"attention_mask": mask}, {})[0].tolist() == [[0, 1, 2]] * 2


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


def test_the_body_takes_a_cache_longer_than_the_tokens():
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
    model = in_onnx(exported, present)
    decompose_all(model)
    session = ort.InferenceSession(ir.serde.serialize_model(model).SerializeToString())
    return lambda **feeds: session.run(None, {name: np.asarray(tensor) for name, tensor in feeds.items()})


GAPS = {
    "left-padded prompts": (5, 0, [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]),
    "right-padded prompts": (5, 0, [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
    "steps of rows of different lengths": (1, 4, [[1, 1, 1, 1, 1], [0, 1, 1, 0, 1]]),
    "a chunk behind a gap": (3, 4, [[1] * 7, [1, 0, 0, 0, 1, 1, 1]]),
}


@pytest.mark.parametrize("feature", ["plain", "rotary", "window", "bias", "value_relations"])
@pytest.mark.parametrize("name", GAPS)
def test_a_growing_cache_has_padding_anywhere(name, feature):
    """Each row comes to what the op makes of its own tokens alone; the present is the past with the new ones behind."""
    new, past, mask = GAPS[name]
    tensors = attention_tensors(new=new, past=past, mask=mask, rotary=feature == "rotary")
    attributes = ATTENTION | ({"window": 2} if feature == "window" else {})
    if feature == "bias":
        tensors["attention_bias"] = random(2, 4, new, past + new, seed=8)
    if feature == "value_relations":
        tensors["value_relations"] = random(5, 8, seed=9)
    feeds = {part: tensor for part, tensor in tensors.items() if tensor is not None}
    output, present_key, present_value = body_of(ops.group_query_attention, tensors, attributes, "dynamic")(**feeds)
    for present, part in ((present_key, "key"), (present_value, "value")):
        if feature == "rotary" and part == "key":
            continue  # new keys are turned first
        grown = torch.cat((tensors[f"past_{part}"], tensors[part].unflatten(-1, (2, 8)).transpose(1, 2)), 2)
        np.testing.assert_array_equal(present, grown.numpy())
    for row, slots in enumerate(mask):
        held, fresh = (torch.tensor(part).bool() for part in (slots[:past], slots[past:]))
        own = {part: tensor[row : row + 1] for part, tensor in feeds.items() if tensor.shape[0] == 2}
        own |= {f"past_{part}": tensors[f"past_{part}"][row : row + 1, :, held] for part in ("key", "value")}
        own |= {part: own[part][:, fresh] for part in ("query", "key", "value")}
        own["attention_mask"] = torch.ones(1, int(held.sum() + fresh.sum()), dtype=torch.int64)
        if feature == "bias":
            own["attention_bias"] = own["attention_bias"][:, :, fresh][..., torch.cat((held, fresh))]
        alone, *_ = ops.group_query_attention(**(tensors | own), **attributes)
        np.testing.assert_allclose(output[row, fresh.numpy()], alone[0].numpy(), rtol=0, atol=1e-12)
    # Negative control: the mask is read.
    seen = body_of(ops.group_query_attention, tensors, attributes, "dynamic")
    full, *_ = seen(**feeds | {"attention_mask": torch.ones_like(tensors["attention_mask"])})
    assert np.abs(full[1] - output[1]).max() > 1e-3


@pytest.mark.parametrize("form", ["any", "static"])
def test_a_buffer_is_written_to_at_the_positions(form):
    tensors = attention_tensors(new=1, past=5, mask=[[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    feeds = {part: tensor for part, tensor in tensors.items() if tensor is not None}
    expected = ops.group_query_attention(**tensors, **ATTENTION)
    for actual, theirs in zip(
        body_of(ops.group_query_attention, tensors, ATTENTION, form)(**feeds), expected, strict=True
    ):
        np.testing.assert_allclose(actual, theirs.numpy(), rtol=0, atol=1e-12)


def test_positions_in_a_growing_cache_count_tokens():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 1, 0]])
    keys = body_of(ops.key_positions, {"attention_mask": mask}, {}, "dynamic")(attention_mask=mask)[0]
    assert keys.tolist() == [[0, 0, 0, 1, 2], [0, 1, 1, 2, 2]]
    tensors = {"attention_mask": mask, "input_ids": mask[:, :2]}
    assert body_of(ops.token_positions, tensors, {}, "dynamic")(**tensors)[0].tolist() == [[1, 2], [2, 2]]


TEXTS = [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]


def encoder_tensors(**options):
    """Two texts, one of them padded, and nothing before them."""
    return attention_tensors(new=5, past=0, mask=TEXTS, **options) | {"past_key": None, "past_value": None}


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_a_past(causal, packed, rotary):
    tensors = encoder_tensors(packed=packed, rotary=rotary)
    output, key, value = check(ops.group_query_attention, tensors, ATTENTION | {"causal": causal})
    assert key.shape == value.shape == (2, 2, 5, 8)
    other, *_ = ops.group_query_attention(**tensors, **ATTENTION, causal=not causal)
    changed = np.abs(output - other.numpy()).max(-1) > 1e-3
    assert changed[0].tolist() == [True] * 4 + [False]  # the last token sees all of its text either way


@pytest.mark.parametrize(
    "features",
    [{"softcap": 0.5}, {"sinks": random(4, seed=6)}, {"bias": (1, 1)}, {"bias": (2, 4)}],
    ids=lambda features: "-".join(features),
)
def test_features_of_attention_that_looks_both_ways(features):
    features = dict(features)
    tensors = encoder_tensors()
    plain, *_ = ops.group_query_attention(**tensors, **ATTENTION, causal=False)
    if shape := features.pop("bias", None):
        tensors["attention_bias"] = random(*shape, 5, 5, seed=8)
    tensors["sinks"] = features.pop("sinks", None)
    output, *_ = check(ops.group_query_attention, tensors, ATTENTION | features | {"causal": False})
    assert np.abs(output - plain.numpy()).max() > 1e-3, "the feature changes nothing here, so this test cannot fail"


def test_padding_that_overflows_harms_nobody_who_looks_both_ways():
    tensors, attributes = encoder_tensors(), ATTENTION | {"causal": False}
    clean, *_ = check(ops.group_query_attention, tensors, attributes)
    for part in ("query", "key", "value"):
        tensors[part][1, 2:] = float("nan")
    output, *_ = ops.group_query_attention(**tensors, **attributes)
    feeds = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    actual = body_of(ops.group_query_attention, tensors, attributes)(**feeds)[0]
    for each in (output.numpy(), actual):
        np.testing.assert_allclose(each[0], clean[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(each[1, :2], clean[1, :2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("new", [1, 3])
def test_cross_attention(new):
    tensors = {
        "query": random(2, new, 4 * 8),
        "key": random(2, 4, 5, 8, seed=1),
        "value": random(2, 4, 5, 8, seed=2),
        "attention_mask": torch.tensor(TEXTS),
    }
    (output,) = check(ops.cross_attention, tensors, {"scale": 0.25})
    tensors["attention_mask"] = torch.ones(2, 5, dtype=torch.int64)
    without_padding = ops.cross_attention(**tensors, scale=0.25).numpy()
    np.testing.assert_allclose(output[0], without_padding[0], rtol=0, atol=1e-12)
    assert np.abs(output[1] - without_padding[1]).max() > 1e-3
    assert np.abs(output - ops.cross_attention(**tensors, scale=0.5).numpy()).max() > 1e-3
    (capped,) = check(ops.cross_attention, tensors, {"scale": 0.25, "softcap": 0.5})
    assert np.abs(capped - without_padding).max() > 1e-3


def test_no_padding_of_a_source_is_seen():
    tensors = {
        "query": random(2, 3, 4 * 8),
        "key": random(2, 4, 5, 8, seed=1),
        "value": random(2, 4, 5, 8, seed=2),
        "attention_mask": torch.tensor(TEXTS),
    }
    body = body_of(ops.cross_attention, tensors, {"scale": 0.25})
    (clean,) = body(**tensors)
    for part in ("key", "value"):
        tensors[part][1, :, 2:] = 1e9
    np.testing.assert_allclose(body(**tensors)[0], clean, rtol=0, atol=1e-12)
    tensors["value"][1, :, 1:] = 1e9
    assert np.abs(body(**tensors)[0] - clean).max() > 1e6


def test_every_canonical_op_has_a_body_and_a_test():
    tested = {
        "RMSNorm", "SkipRMSNorm", "SkipLayerNorm", "TokenPositions", "RotaryEmbedding", "GroupQueryAttention",
        "SharedAttention", "CrossAttention", "KeyPositions", "TokenMask", "CausalConv", "LinearAttention",
        "ExpertRouter", "MixtureOfExperts",
    }  # fmt: skip
    assert set(OPS) == set(FUNCTION_BODIES) == tested


@pytest.mark.parametrize("name", OPS)
def test_the_schema_of_an_op_is_the_signature_of_its_function(name):
    translation_table()  # registers schemas
    schema = onnx.defs.get_schema(name, domain=DOMAIN)
    function = getattr(ops, re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=S)(?=Norm)", "_", name).lower())
    signature = inspect.signature(function._init_fn)
    annotations = {each.name: each.annotation for each in signature.parameters.values()}
    tensors = {each: kind for each, kind in annotations.items() if kind in (Tensor, Tensor | None)}
    option = OpSchema.FormalParameterOption
    assert [each.name for each in schema.inputs] == list(tensors)
    assert [each.option for each in schema.inputs] == [
        option.Optional if kind == Tensor | None else option.Single for kind in tensors.values()
    ]
    types = {float: OpSchema.AttrType.FLOAT, int: OpSchema.AttrType.INT, bool: OpSchema.AttrType.INT} | {
        str: OpSchema.AttrType.STRING
    }
    assert {each: attribute.type for each, attribute in schema.attributes.items()} == {
        each: types[kind] for each, kind in annotations.items() if each not in tensors
    }
    returns = signature.return_annotation
    assert len(schema.outputs) == (1 if returns is Tensor else len(returns.__args__))
