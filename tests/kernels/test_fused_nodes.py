"""Nodes that kernels compute run as one, and give the bits that they give one by one."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from test_mat_mul_n_bits import random_weights, session_of

from edgeformer.errors import BundleError
from edgeformer.export import export_model
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.runtime import load
from edgeformer.runtime.sessions.graphs import fused_nodes
from edgeformer.runtime.sessions.graphs.fused_nodes import NAME, fused, with_fused_nodes
from edgeformer.runtime.sessions.kernels import KernelChoice, choose_kernels
from edgeformer.runtime.sessions.session import onnxruntime_errors, open_session, profiled

PER_TOKEN = make_quantization("int8", QuantizationOverrides(activations="per_token"))
OPS = {NAME, "MatMulNBits", "AddRMSNorm"}
WIDTH = 32
SHARED = {
    "vocab_size": 131, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "vocab_size_per_layer_input": 131,
    "sliding_window": 8, "num_kv_shared_layers": 1, "laurel_rank": 12, "altup_num_inputs": 2,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "hidden_size_per_layer_input": 24,
    "activation_sparsity_pattern": [0.9, 0.0, 0.5],
}  # fmt: skip
"""A layer that reads the cache of an earlier one."""


def product(name, x, y):
    return helper.make_node(
        "MatMulNBits", [x, f"{name}.B", f"{name}.scales"], [y], domain="edgeformer", name=name,
        K=WIDTH, N=WIDTH, bits=4, block_size=16,
    )  # fmt: skip


def norm(x, skip, *outputs):
    return helper.make_node(
        "AddRMSNorm", [x, skip, "gamma"], outputs, domain="edgeformer", name=f"norm of {x}", epsilon=1e-6
    )


def model_of(nodes, *outputs):
    """A model of products p0 to p4 and norms, from x on."""
    weights = [from_array(np.linspace(0.5, 2, WIDTH, dtype=np.float32), "gamma")]
    for each in range(5):
        parts = random_weights(WIDTH, WIDTH, 4, 16, zero_points=False, seed=each)
        weights += [from_array(value * (value.dtype.type(1) if part == "B" else np.float32(0.02)), f"p{each}.{part}")
                    for part, value in parts.items()]  # fmt: skip
    floats = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, WIDTH]) for name in names]
              for names in (("x",), outputs)]  # fmt: skip
    graph = helper.make_graph(nodes, "g", *floats, weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("edgeformer", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


BRANCHES = [
    product("p0", "x", "a"),
    norm("x", "a", "b", "c"),
    product("p1", "b", "d"),
    helper.make_node("Tanh", ["d"], ["e"], name="not ours"),
    product("p2", "b", "f"),
    product("p3", "f", "y"),
    norm("y", "e", "g", "unread"),
    product("p4", "g", "h"),
    norm("c", "h", "i", "z"),
]
"""Two branches, one of which leaves the kernels; an output of the graph that is read; an output that nothing reads."""


def nodes_of(content):
    return [(node.op_type, list(node.input), list(node.output)) for node in onnx.load_from_string(content).graph.node]


def steps_of(content, index=0):
    node = [each for each in onnx.load_from_string(content).graph.node if each.op_type == NAME][index]
    return next(each.s.decode() for each in node.attribute if each.name == "steps").split("\n")


LIGHT = {
    "a number": ("Mul", 0.37),
    "a divisor": ("Div", 3.3),
    "a divisor of each number": ("Div", np.linspace(1, 3, WIDTH)),
    "a number of one axis": ("Add", [0.37]),
    "a row": ("Mul", np.linspace(-1, 1, WIDTH)),
    "a number for each row": ("Add", [[0.5], [-2.0], [0.0]]),
    "numbers for each batch": ("Mul", [[[2.0]], [[3.0]]]),
    "more axes": ("Add", np.linspace(-1, 1, 8 * WIDTH).reshape(4, 2, 1, WIDTH)),
    "all of it": ("Mul", np.linspace(-1, 1, 6 * WIDTH).reshape(2, 3, WIDTH)),
}
"""Ops of ONNX behind a product [2, 3, WIDTH], and their other operand."""


def light_model(op, other, *, first=False):
    """A product, and an op of ONNX that reads it and another operand."""
    reads = ["other", "a"] if first else ["a", "other"]
    model = model_of([product("p0", "x", "a"), helper.make_node(op, reads, ["y"])], "y")
    model.graph.initializer.append(from_array(np.array(other, np.float32), "other"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model.SerializeToString()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("case", LIGHT)
def test_light_ops_are_those_of_onnxruntime(library, case, first):
    content = light_model(*LIGHT[case], first=first)
    together = fused(content, OPS)
    assert [op for op, *_ in nodes_of(together)] == [NAME]
    x = np.random.default_rng(0).standard_normal((2, 3, WIDTH)).astype(np.float32)
    expected, found = (session_of(each, library).run(None, {"x": x})[0] for each in (content, together))
    np.testing.assert_array_equal(found, expected)


def test_operands_that_do_not_fit_are_refused(library):
    together = session_of(fused(light_model("Add", np.ones((2, 5))), OPS), library)
    with pytest.raises(onnxruntime_errors(), match="edgeformer::Add: A and B have shapes that do not broadcast"):
        together.run(None, {"x": np.ones((2, 3, WIDTH), np.float32)})


SHAPED = {
    "split": ([("Split", ["a", "sizes"], ["b", "c", "d"], {"axis": -1})], {"sizes": [20, 0, 12]}, ["b", "c", "d"]),
    "reshaped": ([("Reshape", ["a", "shape"], ["y"], {})], {"shape": [0, 0, 4, 8]}, ["y"]),
    "reshaped to what is left": ([("Reshape", ["a", "shape"], ["y"], {})], {"shape": [3, -1, 16]}, ["y"]),
    "more axes": ([("Unsqueeze", ["a", "axes"], ["y"], {})], {"axes": [-1, 1]}, ["y"]),
    "heads": (
        [
            ("Reshape", ["a", "heads"], ["b"], {}),
            ("Mul", ["b", "b"], ["c"], {}),
            ("Sigmoid", ["c"], ["d"], {}),
            ("Mul", ["b", "d"], ["e"], {}),  # b is a, whose place nothing may have taken
            ("Reshape", ["e", "joined"], ["y"], {}),
        ],
        {"heads": [0, 0, 2, 16], "joined": [0, 0, 32]},
        ["y", "d"],
    ),
    "shapes of shapes": (
        [
            ("Reshape", ["a", "heads"], ["b"], {}),
            ("Unsqueeze", ["b", "axes"], ["c"], {}),
            ("Sigmoid", ["a"], ["d"], {}),
            ("Softplus", ["d"], ["e"], {}),
            ("Unsqueeze", ["e", "axes"], ["f"], {}),
            ("Reshape", ["f", "heads"], ["g"], {}),
            ("Reshape", ["c", "flat"], ["y"], {}),
            ("Add", ["d", "e"], ["z"], {}),
        ],
        {"heads": [2, -1], "axes": [0], "flat": [-1]},
        ["y", "z", "g"],
    ),
}
"""Ops behind a product whose result is a [2, 3, WIDTH], their constants, and what the graph returns."""


def shaped_model(case):
    ops, constants, outputs = SHAPED[case]
    nodes = [product("p0", "x", "a"), *(helper.make_node(op, *values, **given) for op, *values, given in ops)]
    model = model_of(nodes, *outputs)
    model.graph.initializer.extend(from_array(np.array(value, np.int64), name) for name, value in constants.items())
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model.SerializeToString()


@pytest.mark.parametrize("case", SHAPED)
def test_shapes_and_functions_of_numbers_are_onnxruntimes(library, case):
    content = shaped_model(case)
    together = fused(content, OPS)
    assert [op for op, *_ in nodes_of(together)] == [NAME]
    x = np.random.default_rng(0).standard_normal((2, 3, WIDTH)).astype(np.float32) * 4
    one_by_one, as_one = (session_of(each, library).run(None, {"x": x}) for each in (content, together))
    for expected, found in zip(one_by_one, as_one, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_functions_of_numbers_are_exact_at_both_ends(library):
    """Softplus keeps the digits of small results, and Sigmoid those of large ones; both keep a NaN."""
    nodes = [product("p0", "x", "a"), helper.make_node("Add", ["a", "other"], ["b"])]
    nodes += [helper.make_node(op, ["b"], [op]) for op in ("Softplus", "Sigmoid")]
    model = model_of(nodes, "Softplus", "Sigmoid")
    numbers = np.array([-80, -30, -1e-3, 0, 1e-3, 5, 17, 30, 200, np.nan, np.inf, -np.inf] + [1.0] * 20, np.float32)
    model.graph.initializer.append(from_array(numbers, "other"))
    opened = session_of(fused(model.SerializeToString(), OPS), library)
    softplus, sigmoid = (each[0, 0] for each in opened.run(None, {"x": np.zeros((1, 3, WIDTH), np.float32)}))
    wide = numbers.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_allclose(softplus, np.logaddexp(0, wide), rtol=3e-7)
        np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-wide)), rtol=3e-7, atol=1e-38)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"axis": 1}, "Split"),
        ({"sizes": "x"}, "Split"),
        ({"allowzero": 1}, "Reshape"),
        ({"input": "fixed"}, "Reshape"),
    ],
    ids=["a split of another axis", "sizes that a node computes", "sizes of 0 that are 0", "sizes that are an input"],
)
def test_other_forms_of_these_ops_stay_with_onnxruntime(change, left):
    ours = [product("p0", "x", "a"), norm("a", "a", "b", "c")]
    if left == "Split":
        sizes = [helper.make_node("Identity", ["fixed"], ["sizes"])] if "sizes" in change else []
        other = helper.make_node("Split", ["b", "sizes" if sizes else "fixed"], ["y", "z"], axis=change.get("axis", -1))
        nodes = [*ours, *sizes, other]
    else:
        attributes = {name: value for name, value in change.items() if name == "allowzero"}
        nodes = [*ours, helper.make_node("Reshape", ["b", "fixed"], ["y"], **attributes)]
    model = model_of(nodes, "y")
    if "input" in change:
        model.graph.input.append(helper.make_tensor_value_info("fixed", TensorProto.INT64, [2]))
    model.graph.initializer.append(from_array(np.array([16, 16], np.int64), "fixed"))
    assert left in [op for op, *_ in nodes_of(fused(model.SerializeToString(), OPS))]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([5, -1], "Reshape: shape must have the numbers of X"),
        ([-1, -1], "Reshape: shape must have sizes, and -1 once at most"),
        ([0, 0, -2], "Reshape: shape must have sizes"),
        ([2**32, 2**32, 3], "Reshape: shape must have the numbers of X"),
        ([2, 3, 8, 4, 0, 1], "Reshape: shape must have the numbers of X"),
    ],
)
def test_a_shape_of_other_numbers_is_refused(library, shape, message):
    model = model_of([product("p0", "x", "a"), helper.make_node("Reshape", ["a", "shape"], ["y"])], "y")
    model.graph.initializer.append(from_array(np.array(shape, np.int64), "shape"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    opened = session_of(fused(model.SerializeToString(), OPS), library)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::{message}"):
        opened.run(None, {"x": np.ones((2, 3, WIDTH), np.float32)})


@pytest.mark.parametrize("sizes", [[16, 15], [40, -8], [], [16, 8, 8]])
def test_parts_that_are_not_the_whole_are_refused(library, sizes):
    model = model_of(
        [product("p0", "x", "a"), helper.make_node("Split", ["a", "sizes"], ["y", "z"], axis=-1)], "y", "z"
    )
    model.graph.initializer.append(from_array(np.array(sizes, np.int64), "sizes"))
    content = fused(model.SerializeToString(), OPS)
    with pytest.raises(
        onnxruntime_errors(), match="edgeformer::Split: (split must have|steps has no place for output 2)"
    ):
        session_of(content, library).run(None, {"x": np.ones((2, 3, WIDTH), np.float32)})


def test_what_shares_memory_is_not_read_behind_a_write_to_it(library):
    content = fused(shaped_model("heads"), OPS)
    steps = "\n".join(steps_of(content))
    assert "Reshape t0 i3 -> t1\nMul t1 t1 -> t2\nSigmoid t2 -> o0\nMul t1 o0 -> " in steps
    opened = session_of(with_steps(content, b"Mul t1 t1 -> t2\nSigmoid t2", b"Mul t1 t1 -> t0\nSigmoid t0"), library)
    with pytest.raises(onnxruntime_errors(), match="FusedNodes: steps reads t1 behind a write to what it shares"):
        opened.run(None, {"x": np.ones((2, 3, WIDTH), np.float32)})


def test_an_input_of_another_type_is_refused(library):
    """onnxruntime looks at the types of single nodes, and not at what FusedNodes has inside."""
    model = model_of([product("p0", "half", "a"), norm("a", "a", "b", "c")], "b")
    model.graph.input[0].name = "half"
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(onnxruntime_errors()):
        session_of(model.SerializeToString(), library)
    opened = session_of(fused(model.SerializeToString(), OPS), library)
    with pytest.raises(onnxruntime_errors(), match="edgeformer::MatMulNBits: input 0 is of another type"):
        opened.run(None, {"half": np.ones((2, 3, WIDTH), np.float16)})


def norm_model(axis=-1, outputs=("y",)):
    norm = helper.make_node("SimplifiedLayerNormalization", ["a", "gamma"], outputs, axis=axis, epsilon=1e-3)
    return model_of([product("p0", "x", "a"), norm], "y")


def test_norms_agree_with_onnxruntime(library):
    content = norm_model().SerializeToString()
    together = fused(content, OPS)
    assert [op for op, *_ in nodes_of(together)] == [NAME]
    x = np.random.default_rng(0).standard_normal((40, 3, WIDTH)).astype(np.float32)
    expected, found = (session_of(each, library).run(None, {"x": x})[0] for each in (content, together))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.abs(found[:, 1:] - expected[:, :-1]).max() > 0.1, "a bound that cannot fail"


def test_ops_of_other_types_or_forms_stay_with_onnxruntime():
    """They compute with weights alone or with integers, or are norms over another axis than the last."""
    ours = [product("p0", "x", "a"), norm("a", "a", "b", "c")]
    of_weights = [helper.make_node("Add", ["gamma", "gamma"], ["twice"])]
    of_sizes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Mul", ["shape", "shape"], ["square"])]
    nodes = nodes_of(fused(model_of([*ours, *of_weights, *of_sizes], "b").SerializeToString(), OPS))
    assert [op for op, *_ in nodes] == ["Add", "Shape", "Mul", NAME]
    for other in (norm_model(axis=1), norm_model(outputs=("y", "deviation"))):
        assert fused(other.SerializeToString(), OPS) is None
    other = norm_model()
    other.graph.node[1].input[0] = "x"
    assert fused(other.SerializeToString(), OPS) is None, "nothing says that it is of float32"


def with_steps(content, old, new):
    """A model whose first fused node has other steps."""
    model = onnx.load_from_string(content)
    node = next(each for each in model.graph.node if each.op_type == NAME)
    steps = next(each for each in node.attribute if each.name == "steps")
    assert old in steps.s
    steps.s = steps.s.replace(old, new)
    return model.SerializeToString()


@pytest.fixture
def branches():
    return model_of(BRANCHES, "y", "i", "z").SerializeToString()


def test_nodes_run_in_two_turns_around_another_op(branches):
    content = fused(branches, OPS)
    assert [op for op, *_ in nodes_of(content)] == [NAME, "Tanh", NAME]
    first, second = (nodes_of(content)[each] for each in (0, 2))
    assert first[2] == ["c", "d", "y"] and second[1][:3] == ["y", "e", "gamma"] and second[2] == ["i", "z"]
    assert steps_of(content) == [
        "MatMulNBits i0 i1 i2 -> t0",
        "AddRMSNorm i0 t0 i3 -> t1 o0",
        "MatMulNBits t1 i4 i5 -> o1",
        "MatMulNBits t1 i6 i7 -> t0",
        "MatMulNBits t0 i8 i9 -> o2",
    ]
    assert steps_of(content, 1)[0] == "AddRMSNorm i0 i1 i2 -> t0 t1", "what nothing reads has a place, too"
    onnx.checker.check_model(onnx.load_from_string(content))


def test_attributes_belong_to_their_steps(branches):
    node = onnx.load_from_string(fused(branches, OPS)).graph.node[0]
    found = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    assert found.pop("steps") and found.pop("1.epsilon") == pytest.approx(1e-6)
    sizes = {"K": WIDTH, "N": WIDTH, "bits": 4, "block_size": 16}
    assert found == {f"{step}.{name}": size for step in (0, 2, 3, 4) for name, size in sizes.items()}


@pytest.mark.parametrize("team", [None, 2])
def test_fused_nodes_give_the_same_bits(branches, library, team):
    one_by_one, together = (session_of(each, library, team=team) for each in (branches, fused(branches, OPS)))
    for rows in (1, 40, 2):  # what is between them grows, and is used again
        x = np.random.default_rng(rows).standard_normal((rows, 3, WIDTH)).astype(np.float32)
        expected, found = (each.run(None, {"x": x}) for each in (one_by_one, together))
        for name, *both in zip(("y", "i", "z"), expected, found, strict=True):
            np.testing.assert_array_equal(*both, err_msg=name)
    wrong = with_steps(fused(branches, OPS), b"t1 i6 i7", b"t0 i6 i7")
    assert not np.array_equal(session_of(wrong, library).run(["y"], {"x": x})[0], expected[0]), "it cannot fail"


def test_threads_do_not_share_what_is_between(branches, library):
    opened = session_of(fused(branches, OPS), library, threads=1)
    inputs = [np.random.default_rng(each).standard_normal((9, 3, WIDTH)).astype(np.float32) for each in range(8)]
    alone = [opened.run(["z"], {"x": x})[0] for x in inputs]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(25):
            found = list(threads.map(lambda x: opened.run(["z"], {"x": x})[0], inputs))
            np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"AddRMSNorm", b"SubtractRMSNorm", "FusedNodes: steps has SubtractRMSNorm, which is not an op"),
        (b"-> t0", b"-> s0", "FusedNodes: steps has s0 instead of a value"),
        (b"-> t0", b"-> t", "FusedNodes: steps has t instead of a value"),
        (b"-> t0", b"-> t123456", "FusedNodes: steps has t123456 instead of a value"),
        (b"-> t0", b"-> i0", "FusedNodes: steps writes to what MatMulNBits may only read"),
        (b"i1 i2 ->", b"i0 i2 ->", "MatMulNBits: .* must be a constant"),
        (b"AddRMSNorm i0 t0 i3", b"AddRMSNorm i0 t0", "FusedNodes: steps has AddRMSNorm without its input 2"),
        (b"AddRMSNorm i0 t0 i3", b"AddRMSNorm - t0 i3", "FusedNodes: steps has AddRMSNorm without its input 0"),
        (b"i1 i2 ->", b"i3 i2 ->", "FusedNodes: a constant that MatMulNBits reads is of another type"),
        (b"i1 i2 ->", b"i1 i3 ->", "MatMulNBits: gamma has 32 elements"),
    ],
)
def test_a_wrong_program_is_refused_by_name(branches, library, old, new, message):
    with pytest.raises(onnxruntime_errors(), match=message):
        session_of(with_steps(fused(branches, OPS), old, new), library)


def test_a_step_that_lacks_its_input_is_an_error(branches, library):
    content, reads = fused(branches, OPS), b"AddRMSNorm i0 t0 i3"
    opened = session_of(with_steps(content, reads, b"AddRMSNorm i0 o2 i3"), library)
    for _ in range(2):  # what an earlier call left is no value
        with pytest.raises(onnxruntime_errors(), match="FusedNodes: steps reads o2 before it is written"):
            opened.run(None, {"x": np.ones((1, 3, WIDTH), np.float32)})
    opened = session_of(with_steps(content, reads, b"AddRMSNorm i0 t9 i3"), library)
    with pytest.raises(onnxruntime_errors(), match="FusedNodes: steps reads t9 before it is written"):
        opened.run(None, {"x": np.ones((1, 3, WIDTH), np.float32)})


def test_shapes_that_do_not_fit_are_refused_by_the_op(branches, library):
    opened = session_of(with_steps(fused(branches, OPS), b"AddRMSNorm i0 t0 i3", b"AddRMSNorm i0 t0 i2"), library)
    with pytest.raises(onnxruntime_errors(), match="edgeformer::AddRMSNorm: gamma must have as many numbers"):
        opened.run(None, {"x": np.ones((1, 3, WIDTH), np.float32)})


def test_graphs_that_gain_nothing_stay_as_they_are(branches):
    assert fused(fused(branches, OPS), OPS) is None, "what is fused is not fused again"
    assert fused(branches, {NAME, "Tanh"}) is None, "an op of ONNX is not ours by its name"
    assert fused(model_of(BRANCHES[:1], "a").SerializeToString(), OPS) is None, "one node is one node"
    inner = helper.make_graph([product("p1", "a", "inner")], "then", [], [helper.make_empty_tensor_value_info("inner")])
    choice = helper.make_node("If", ["condition"], ["y"], then_branch=inner, else_branch=inner)
    assert fused(model_of([*BRANCHES[:2], choice], "y").SerializeToString(), OPS) is None, "branches read any value"


def test_damaged_graphs_are_left_to_onnxruntime(branches, tmp_path):
    circle = model_of([product("p0", "b", "a"), product("p1", "a", "b")], "b").SerializeToString()
    with pytest.raises(ValueError, match="in a circle"):
        fused(circle, OPS)
    file = tmp_path / "model.onnx"
    for content in (circle, branches[: len(branches) // 2], b"\xff" * 99):
        file.write_bytes(content)
        assert with_fused_nodes(file, OPS, None) is None
    file.write_bytes(branches)
    assert with_fused_nodes(file, OPS, None) == fused(branches, OPS)
    assert with_fused_nodes(file, OPS - {NAME}, None) is None, "the library is older"
    assert with_fused_nodes(file, OPS, circle) == circle, "another content stands in for the file's"
    assert with_fused_nodes(tmp_path / "model.ort", OPS, None) is None
    file.write_bytes(circle)
    with pytest.raises(BundleError, match="onnxruntime cannot load"):
        open_session(file, kernels=choose_kernels())


def ops_of(monkeypatch):
    """The ops of the nodes of graphs that are opened from now on."""
    ops, real = [], fused_nodes.fused

    def note(model, names):
        content = real(model, names)
        ops.append([] if content is None else [op for op, *_ in nodes_of(content)])
        return content

    monkeypatch.setattr(fused_nodes, "fused", note)
    return ops


def prompt_and_steps(model, tokens):
    decoder = model.new_decoder(1, len(tokens))
    parts = [decoder.prefill_all(0, tokens[:9]), *(decoder.decode_one_token([each]).copy() for each in tokens[9:])]
    return np.concatenate([np.reshape(part, (-1, part.shape[-1])) for part in parts])


@pytest.mark.parametrize("cache", [None, "int8"])
def test_a_decoder_gives_the_same_bits(int4_bundle, installed, library, monkeypatch, cache):
    installed(library)
    ops = ops_of(monkeypatch)
    tokens = list(range(5, 25))
    together = prompt_and_steps(load(int4_bundle, "cpu", cache_precision=cache), tokens)
    assert ops[0].count(NAME) == 2, "before and behind what cuts the logits"
    monkeypatch.setattr(fused_nodes, "fused", lambda *_: None)
    np.testing.assert_array_equal(prompt_and_steps(load(int4_bundle, "cpu", cache_precision=cache), tokens), together)


def test_layers_read_the_cache_that_a_fused_one_writes(make_model, tmp_path, installed, library, monkeypatch):
    installed(library)
    folder = make_model("gemma3n_text", **SHARED)
    bundle = export_model(folder, tmp_path / "bundle", precision="int4", verify=None).path
    ops, tokens = ops_of(monkeypatch), list(range(5, 35))
    together = prompt_and_steps(load(bundle, "cpu"), tokens)
    assert NAME in ops[0]
    monkeypatch.setattr(fused_nodes, "fused", lambda *_: None)
    # Its norms of single states are onnxruntime's without fused nodes, which round otherwise.
    np.testing.assert_allclose(prompt_and_steps(load(bundle, "cpu"), tokens), together, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("preset", "ask"),
    [
        ("tiny-embed", lambda model: model.embed(["a short text", "another one, which is a little longer"])),
        ("tiny-translate", lambda model: model.forward(list(range(5, 25)), list(range(6, 12)))),
    ],
)
def test_encoders_give_the_same_bits(tmp_path, installed, library, monkeypatch, preset, ask):
    """Products per token, attention to what an encoder has read, and feed-forwards."""
    installed(library)
    bundle = export_model(preset, tmp_path / preset, precision="int8", quantization=PER_TOKEN, verify=None).path
    ops = ops_of(monkeypatch)
    together = ask(load(bundle, "cpu"))
    assert all(NAME in each for each in ops) and len(ops) == (1 if preset == "tiny-embed" else 2)
    monkeypatch.setattr(fused_nodes, "fused", lambda *_: None)
    np.testing.assert_array_equal(ask(load(bundle, "cpu")), together)


def test_profiles_and_sessions_without_kernels_have_single_nodes(
    int4_bundle, installed, library, monkeypatch, tmp_path
):
    installed(library)
    ops, graph = ops_of(monkeypatch), int4_bundle / "onnx" / "model.onnx"
    open_session(graph)
    open_session(graph, kernels=KernelChoice(None))
    with profiled(tmp_path):
        open_session(graph, kernels=choose_kernels())
    assert not ops
    open_session(graph, kernels=choose_kernels())
    assert len(ops) == 1 and NAME in ops[0]
