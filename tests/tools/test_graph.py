"""The graph viewer: listings, counts, structural differences and pictures of small known graphs."""

import copy
import json
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from graph_viewer import graph
from graph_viewer.block import block_of
from graph_viewer.difference import difference
from graph_viewer.layout import Box, Link, place
from graph_viewer.shapes import shapes_of
from onnx import TensorProto, helper, numpy_helper

LAYERS = 3


def run(*arguments):
    return CliRunner().invoke(graph.main, [str(argument) for argument in arguments])


def weight(name, *dims, seed=0):
    return numpy_helper.from_array(np.random.default_rng(seed).random(dims, np.float32), name)


def model_of(nodes, tensors=(), inputs=("x",), outputs=("y",), functions=(), opsets=None):
    """Values are float32 [rows, 4]."""
    interface = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in names]
        for names in (inputs, outputs)
    ]
    opset_imports = [helper.make_opsetid(*item) for item in (opsets or {"": 20}).items()]
    body = helper.make_graph(nodes, "test", *interface, list(tensors))
    return helper.make_model(
        body, opset_imports=opset_imports, functions=list(functions), ir_version=10, producer_name="a test"
    )


def layered():
    """Return layers of x − softmax(x · W₁ − x · W₂), which differ in their weights only."""
    nodes, tensors, x = [], [], "x"
    for layer in range(LAYERS):
        name = f"blocks.{layer}."
        left, right, apart, soft = (f"{part}_{layer}" for part in ("left", "right", "apart", "soft"))
        y = "y" if layer == LAYERS - 1 else f"out_{layer}"
        nodes += [
            helper.make_node("MatMul", [x, f"{name}left"], [left], name=f"{name}left/MatMul"),
            helper.make_node("MatMul", [x, f"{name}right"], [right], name=f"{name}right/MatMul"),
            helper.make_node("Sub", [left, right], [apart], name=f"{name}Sub"),
            helper.make_node("Softmax", [apart], [soft], name=f"{name}Softmax", axis=-1),
            helper.make_node("Sub", [x, soft], [y], name=f"{name}Sub_1"),
        ]
        tensors += [weight(f"{name}{side}", 4, 4, seed=2 * layer + at) for at, side in enumerate(("left", "right"))]
        x = y
    return model_of(nodes, tensors)


def changed(change):
    """Return the layered model after a change of its graph."""
    model = layered()
    change(model.graph)
    return model


def node(graph, name):
    return next(node for node in graph.node if node.name == name)


def marked(hunks):
    """Return the changed lines of hunks."""
    return [f"{line.mark} {line.text}" for hunk in hunks for line in hunk.lines if line.mark != " "]


def branching(condition_reads="a"):
    """Return an If whose branches capture outer values."""

    def branch(name, *reads):
        nodes = [helper.make_node("Add", list(reads), [name])]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Tanh", ["x"], ["b"], name="tanh"),
        helper.make_node(
            "If", ["choose"], ["y"], name="if",
            then_branch=branch("then", "a", "b"), else_branch=branch("otherwise", condition_reads, "w"),
        ),
    ]  # fmt: skip
    choose = numpy_helper.from_array(np.array(True), "choose")
    return model_of(nodes, [choose, weight("w", 4, 4)])


def with_function(slope=0.5):
    """Return two calls of a function of the domain edgeformer."""
    body = [
        helper.make_node("Constant", [], ["slope"], value_float=slope),
        helper.make_node("Mul", ["value", "slope"], ["scaled"]),
        helper.make_node("Max", ["value", "scaled"], ["result"], name="max"),
    ]
    leaky = helper.make_function("edgeformer", "Leaky", ["value"], ["result"], body, [helper.make_opsetid("", 20)])
    nodes = [
        helper.make_node("Leaky", ["x"], ["between"], domain="edgeformer", name="blocks.0/Leaky"),
        helper.make_node("Leaky", ["between"], ["y"], domain="edgeformer", name="blocks.1/Leaky"),
    ]
    return model_of(nodes, functions=[leaky], opsets={"": 20, "edgeformer": 1})


@pytest.fixture
def saved(tmp_path):
    def save(model, name="model.onnx"):
        onnx.save(model, tmp_path / name)
        return tmp_path / name

    return save


# dump


def test_a_pipe_gets_one_line_for_everything_in_the_graph(saved):
    lines = run("dump", saved(layered())).stdout.splitlines()

    assert Counter(line.split()[0] for line in lines) == {
        "model": 1, "opset": 1, "input": 1, "output": 1, "initializer": 6, "node": 15,
    }  # fmt: skip
    assert "input x float32[rows, 4]" in lines
    assert "initializer blocks.0.left float32[4, 4] 64 bytes" in lines
    assert "node blocks.0.Softmax Softmax(apart_0) {axis=-1} → soft_0" in lines


def test_wrapped_lines_fit_and_keep_every_word(saved):
    path = saved(layered())
    plain, wrapped = run("dump", path).stdout, run("dump", path, "--width", 40).stdout

    assert max(map(len, wrapped.splitlines())) <= 40 < max(map(len, plain.splitlines()))
    assert wrapped.split() == plain.split()


def test_match_keeps_lines_with_the_text(saved):
    path = saved(layered())

    assert len(run("dump", path, "--match", "blocks.1.").stdout.splitlines()) == 7
    nothing = run("dump", path, "--match", "blocks.7.")
    assert nothing.exit_code == 1
    assert "nothing in" in nothing.output and "'blocks.7.'" in nothing.output


def test_subgraphs_and_functions_are_listed_inside_what_holds_them(saved):
    branches = run("dump", saved(branching())).stdout
    function = run("dump", saved(with_function())).stdout

    assert "  graph then_branch\n    output then float32[…]\n    node - Add(a, b) → then\n" in branches
    assert "node blocks.0/Leaky edgeformer::Leaky(x) → between\n" in function
    assert (
        "function edgeformer::Leaky(value) → result\n  opset ai.onnx 20\n  node - Constant() {value_float=0.5}"
        in function
    )


# ops


def test_ops_are_counted_with_the_bytes_they_read(saved):
    data = json.loads(run("ops", saved(layered()), "--json").stdout)["model.onnx"]

    assert data["opsets"] == {"ai.onnx": 20}
    assert data["ops"]["ai.onnx"]["MatMul"] == {"nodes": 6, "bytes": 6 * 64, "shared_bytes": 0}
    assert data["ops"]["ai.onnx"]["Sub"] == {"nodes": 6, "bytes": 0, "shared_bytes": 0}
    assert (data["nodes"], data["bytes"]) == (15, 6 * 64)


def test_a_shared_initializer_counts_once_in_the_total(saved):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Add", ["b", "w"], ["y"]),
    ]
    path = saved(model_of(nodes, [weight("w", 4, 4), weight("idle", 2)]))
    data = json.loads(run("ops", path, "--json").stdout)["model.onnx"]
    shown = run("ops", path).stdout

    assert {op: count["bytes"] for op, count in data["ops"]["ai.onnx"].items()} == {"MatMul": 64, "Add": 64}
    assert data["bytes"] == 64
    assert data["unread_initializers"] == ["idle"]
    assert "*64" in shown and "* some of these" in shown and "no node reads idle" in shown


def test_subgraphs_count_and_functions_count_where_they_are_called(saved):
    branches = json.loads(run("ops", saved(branching()), "--json").stdout)["model.onnx"]
    function = json.loads(run("ops", saved(with_function()), "--json").stdout)["model.onnx"]

    assert branches["ops"]["ai.onnx"]["Add"] == {"nodes": 2, "bytes": 64, "shared_bytes": 0}
    assert function["ops"] == {"edgeformer": {"Leaky": {"nodes": 2, "bytes": 0, "shared_bytes": 0}}}
    assert function["functions"] == {"edgeformer::Leaky": 3}


def test_several_graphs_stand_side_by_side(saved):
    shown = run("ops", saved(layered(), "one.onnx"), saved(with_function(), "two.onnx")).stdout
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}

    assert "one.onnx" in shown and "two.onnx" in shown
    assert rows["MatMul"] == ["6", "384", "·"]
    assert rows["Leaky"] == ["·", "2"]


# diff


def test_a_graph_is_itself_whatever_its_values_and_nodes_are_called(saved):
    def rename(graph):
        new = {value: f"v{number}" for number, node in enumerate(graph.node) for value in node.output if value != "y"}
        new |= {tensor.name: f"w{number}" for number, tensor in enumerate(graph.initializer)}
        for number, node in enumerate(graph.node):
            node.name = f"n{number}"
            node.input[:] = [new.get(value, value) for value in node.input]
            node.output[:] = [new.get(value, value) for value in node.output]
        for tensor in graph.initializer:
            tensor.name = new[tensor.name]

    result = run("diff", saved(layered(), "a.onnx"), saved(changed(rename), "b.onnx"))
    assert (result.exit_code, result.stdout) == (0, "no difference\n")


def test_the_order_of_independent_nodes_is_no_difference():
    def swap(graph):
        left, right = copy.deepcopy(graph.node[0]), copy.deepcopy(graph.node[1])
        graph.node[0].CopyFrom(right)
        graph.node[1].CopyFrom(left)

    assert list(difference(layered(), changed(swap))) == []


def test_one_attribute_is_one_small_hunk(saved):
    def change(graph):
        node(graph, "blocks.1.Softmax").attribute[0].i = 0

    result = run("diff", saved(layered(), "a.onnx"), saved(changed(change), "b.onnx"))
    assert result.exit_code == 1
    (hunk,) = difference(layered(), changed(change))
    assert len(hunk.lines) == 6
    assert marked([hunk]) == [
        "- blocks.1.Softmax Softmax(apart_1) {axis=-1} → soft_1",
        "+ blocks.1.Softmax Softmax(apart_1) {axis=0} → soft_1′",
    ]
    assert all(f"{mark} {text}\n" in result.stdout for mark, text in ((line.mark, line.text) for line in hunk.lines))


def test_changes_in_two_layers_are_two_hunks():
    def change(graph):
        node(graph, "blocks.0.Softmax").attribute[0].i = 0
        node(graph, "blocks.2.Softmax").attribute[0].i = 0

    hunks = list(difference(layered(), changed(change)))
    assert len(hunks) == 2
    assert len(marked(hunks)) == 4


def test_swapped_inputs_are_found_although_both_come_from_the_same_op():
    def swap(graph):
        node(graph, "blocks.1.Sub").input[:] = ["right_1", "left_1"]

    assert marked(difference(layered(), changed(swap))) == [
        "- blocks.1.Sub Sub(left_1, right_1) → apart_1",
        "+ blocks.1.Sub Sub(right_1, left_1) → apart_1",
    ]


def test_a_node_in_between_is_one_line_and_who_reads_it_now():
    def insert(graph):
        graph.node.insert(4, helper.make_node("Softmax", ["soft_0"], ["again"], name="again", axis=0))
        node(graph, "blocks.0.Sub_1").input[1] = "again"

    assert marked(difference(layered(), changed(insert))) == [
        "+ again Softmax(soft_0) {axis=0} → again",
        "- blocks.0.Sub_1 Sub(x, soft_0) → out_0",
        "+ blocks.0.Sub_1 Sub(x, again) → out_0",
    ]


def test_a_layer_that_is_gone_is_a_hunk_of_that_layer():
    def remove(graph):
        gone = [node for node in graph.node if node.name.startswith("blocks.1.")]
        for item in gone:
            graph.node.remove(item)
        for item in graph.node:
            item.input[:] = ["out_0" if value == "out_1" else value for value in item.input]

    lines = marked(difference(layered(), changed(remove)))
    alone = [line for line in lines if line.startswith("- blocks.1.") and "float32" not in line]
    assert len(alone) == 5
    # The next layer's three readers of its input read another value.
    assert len(lines) == 5 + 2 * 3


@pytest.mark.parametrize("outside", [False, True])
def test_another_weight_of_the_same_shape_is_found(outside):
    def use(graph):
        node(graph, "blocks.1.left/MatMul").input[1] = "blocks.2.left"

    models = [layered(), changed(use)]
    if outside:  # then there are only names to go by
        for model in models:
            for tensor in model.graph.initializer:
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                tensor.external_data.add(key="location", value="nowhere.bin")
    assert marked(difference(*models)) == [
        "- blocks.1.left/MatMul MatMul(out_0, blocks.1.left) → left_1",
        "+ blocks.1.left/MatMul MatMul(out_0, blocks.2.left) → left_1′",
    ]


def test_initializers_that_changed_are_told_from_those_that_came_and_went():
    def change(graph):
        graph.initializer[0].CopyFrom(weight("blocks.0.left", 4, 4, seed=99))
        graph.initializer[1].CopyFrom(weight("blocks.0.right", 4, 5))
        graph.initializer.append(weight("more", 3, 3))

    assert marked(difference(layered(), changed(change))) == [
        "- blocks.0.left float32[4, 4]",
        "+ blocks.0.left float32[4, 4], other values",
        "- blocks.0.right float32[4, 4]",
        "+ blocks.0.right float32[4, 5]",
        "+ more float32[3, 3]",
    ]


def test_a_constant_is_its_value_wherever_it_is_kept():
    def adding(value, as_node):
        tensor = numpy_helper.from_array(np.array([value], np.float32), "one")
        kept = [helper.make_node("Constant", [], ["one"], value=tensor)] if as_node else []
        add = helper.make_node("Add", ["x", "one"], ["y"], name="add")
        return model_of([*kept, add], [] if as_node else [tensor])

    assert list(difference(adding(1.5, False), adding(1.5, True))) == []
    assert marked(difference(adding(1.5, False), adding(2.5, True))) == [
        "- add Add(x, {1.5}) → y", "+ add Add(x, {2.5}) → y′",
    ]  # fmt: skip


def test_the_interface_is_compared():
    def change(graph):
        graph.input[0].type.tensor_type.shape.dim[0].dim_param = "texts"

    other = changed(change)
    other.opset_import[0].version = 18
    assert marked(difference(layered(), other)) == [
        "- opset ai.onnx 20", "- input x float32[rows, 4]", "+ opset ai.onnx 18", "+ input x float32[texts, 4]",
    ]  # fmt: skip


def test_outputs_that_are_swapped_are_found():
    nodes = [helper.make_node("Split", ["x"], ["y", "z"], name="split", axis=0, num_outputs=2)]
    swapped = [helper.make_node("Split", ["x"], ["z", "y"], name="split", axis=0, num_outputs=2)]
    models = [model_of(item, outputs=("y", "z")) for item in (nodes, swapped)]

    assert marked(difference(*models)) == [
        "- output y is output 0 of split", "+ output y is output 1 of split",
        "- output z is output 1 of split", "+ output z is output 0 of split",
    ]  # fmt: skip


def test_subgraphs_are_compared_with_what_they_take_from_around_them():
    assert list(difference(branching(), branching())) == []
    lines = marked(difference(branching("a"), branching("b")))
    assert [line.split()[:2] for line in lines] == [["-", "if"], ["+", "if"]]


def test_a_change_in_a_function_is_shown_there_and_not_where_it_is_called():
    assert list(difference(with_function(), with_function())) == []
    (hunk,) = difference(with_function(0.5), with_function(0.25))

    assert hunk.where.startswith("function edgeformer::Leaky nodes")
    assert marked([hunk])[0] == "- - Mul(value, {0.5}) → scaled"


def test_a_bundle_is_compared_with_what_became_of_its_graph(llama_bundle, saved):
    model = onnx.load(llama_bundle / "onnx/model.onnx", load_external_data=False)
    node(model.graph, "blocks.1.attention/GroupQueryAttention").attribute[0].i += 1
    result = run("diff", llama_bundle, saved(model))

    assert result.exit_code == 1
    changes = [line for line in result.stdout.splitlines() if line[:2] in ("- ", "+ ")]
    assert [line.split()[1] for line in changes] == ["blocks.1.attention/GroupQueryAttention"] * 2
    assert run("diff", llama_bundle, llama_bundle / "onnx/model.onnx").exit_code == 0


# draw


def test_a_block_is_its_nodes_with_weights_and_what_goes_in_and_out():
    block = block_of(layered(), "blocks.1")
    nodes = [part for part in block.parts if part.domain is not None]
    pills = [(part.title, part.name) for part in block.parts if part.domain is None]

    assert [part.name for part in nodes] == ["left/MatMul", "right/MatMul", "Sub", "Softmax", "Sub_1"]
    assert nodes[0].weights == ("left [4, 4]",)
    assert nodes[0].outputs == (("left_1", ["rows", 4]),)
    assert pills == [("out_0", "from blocks.0.Sub_1"), ("out_1", "to blocks.2.left/MatMul and 2 more")]
    # Two products and a difference read the input; three more lines are inside, and one leads out.
    assert len(block.lines) == 3 + 4 + 1


def test_block_1_is_not_block_10():
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="blocks.1/Relu")]
    nodes.append(helper.make_node("Relu", ["a"], ["y"], name="blocks.10/Relu"))

    assert block_of(model_of(nodes), "blocks.1").nodes == 1


def test_shapes_go_through_the_ops_of_onnxruntime(llama_bundle):
    model = onnx.load(llama_bundle / "onnx/model.onnx", load_external_data=False)
    shapes = shapes_of(model)
    made = {item.name: item.output[0] for item in model.graph.node}

    rows = ["batch_size", "sequence_length"]
    assert shapes[made["blocks.1.attention.qkv/MatMul_0"]] == [*rows, 64 + 2 * 32]
    assert shapes[made["blocks.1.attention/GroupQueryAttention"]] == [*rows, 64]
    assert shapes[made["blocks.1.feed_forward.down/MatMul"]] == [*rows, 64]


@pytest.mark.parametrize("seed", range(5))
def test_boxes_do_not_overlap_and_no_line_runs_through_one(seed):
    rng = random.Random(seed)
    boxes = [Box(width=rng.uniform(1, 3), height=1, ports=(-0.2, 0.2)) for _ in range(30)]
    links = [Link(rng.randrange(head), rng.randrange(2), head) for head in range(1, 30) for _ in range(2)]
    layout = place(boxes, links, 0.1)

    assert all(layout.rows[link.tail] < layout.rows[link.head] for link in links)
    spans = [
        (row, x - box.width / 2, x + box.width / 2) for row, x, box in zip(layout.rows, layout.x, boxes, strict=True)
    ]
    spans += [(row, x, x) for row, x in layout.passing]
    spans.sort()
    for (row, _, right), (other, left, _) in pairwise(spans):
        assert row != other or left - right > 0.1 - 1e-6
    # Every line begins at its port and reaches its box.
    starts = {(way.tail, round(way.start - layout.x[way.tail], 6)) for way in layout.segments if way.tail is not None}
    assert starts == {(link.tail, boxes[link.tail].ports[link.port]) for link in links}
    assert {way.head for way in layout.segments} - {None} == {link.head for link in links}


def test_a_path_without_branches_is_drawn_straight():
    boxes = [Box(width=width, height=1) for width in (1, 3, 2, 5)]
    layout = place(boxes, [Link(at, 0, at + 1) for at in range(3)], 0.1)

    assert layout.rows == (0, 1, 2, 3)
    assert max(layout.x) - min(layout.x) < 1e-9


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_written(saved, tmp_path, suffix):
    picture = tmp_path / f"block.{suffix}"
    result = run("draw", saved(layered()), "--block", 1, "-o", picture)

    assert result.exit_code == 0, result.output
    assert "5 nodes" in result.output
    start = picture.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in start


def test_blocks_that_do_not_exist_are_answered_with_those_that_do(saved, tmp_path):
    path, picture = saved(layered()), tmp_path / "block.png"

    assert "there is no block 3. There are: 0, 1, 2" in run("draw", path, "--block", 3, "-o", picture).output
    unknown = run("draw", path, "--match", "layers.0", "-o", picture)
    assert "no node's name starts with 'layers.0'. Names start with: blocks.0, blocks.1, blocks.2" in unknown.output
    assert "either --block or --match" in run("draw", path, "-o", picture).output
    assert "is not a picture" in run("draw", path, "--block", 0, "-o", tmp_path / "block.gif").output
    assert not picture.exists()


# --graph


def test_paths_that_are_no_graph_are_said_to_be_none(saved, tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("nothing that is a graph")
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "folder").mkdir()

    assert "there is no file or folder" in run("dump", tmp_path / "absent.onnx").output
    assert "notes.txt is not an ONNX file" in run("dump", text).output
    assert "empty.onnx is not an ONNX file" in run("dump", tmp_path / "empty.onnx").output
    assert "is not a bundle: it has no edgeformer.json" in run("dump", tmp_path / "folder").output
    assert (
        "--graph decoder_model selects a graph of a bundle"
        in run("dump", saved(layered()), "--graph", "decoder_model").output
    )


def test_a_bundle_of_several_graphs_wants_to_know_which(llama_bundle, tmp_path):
    manifest = json.loads((llama_bundle / "edgeformer.json").read_text())
    decoder = manifest["graph"]
    manifest |= {"encoder_graph": "onnx/encoder_model.onnx"}
    manifest["files"]["onnx/encoder_model.onnx"] = manifest["files"][decoder]
    (tmp_path / "onnx").mkdir()
    (tmp_path / "edgeformer.json").write_text(json.dumps(manifest))
    for name in (decoder, "onnx/encoder_model.onnx"):
        onnx.save(layered(), tmp_path / name)

    choices = "Choose with --graph: encoder_model, model"
    assert f"has several graphs. {choices}" in run("dump", tmp_path).output
    assert f"has no graph 'other'. {choices}" in run("dump", tmp_path, "--graph", "other").output
    assert "node blocks.0.Softmax" in run("dump", tmp_path, "--graph", "encoder_model").stdout
    assert f"{tmp_path.name}/model" in run("ops", tmp_path, "--graph", "model").stdout
