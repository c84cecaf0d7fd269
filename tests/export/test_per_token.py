"""Products of int8 with int8, whose inputs are rounded token by token: where they stand, and how they are verified."""

import importlib

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_verify_quantized import MODELS, failures, ratios

from edgeformer.errors import ConfigError, ExportError
from edgeformer.export import export_model, verify
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.parity.float_products import replace_integer_products
from edgeformer.export.reference import reference
from edgeformer.manifest.graph_forms import DECODER_GRAPH, ENCODER_GRAPH, GRAPH
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.runtime.sessions.session import open_session

ACTIVATIONS = "int8 activations, "
PER_TOKEN = make_quantization("int8", QuantizationOverrides(activations="per_token"))
WHISPER = {
    "vocab_size": 97, "d_model": 64, "num_mel_bins": 8, "max_source_positions": 24, "max_target_positions": 32,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
GATED_T5 = MODELS["t5"][2] | {"feed_forward_proj": "gated-gelu"}
OTHERS = {
    "whisper": ("whisper", "AutoModelForSpeechSeq2Seq", WHISPER),
    "t5-gated": ("t5", "AutoModelForSeq2SeqLM", GATED_T5),
}


@pytest.fixture(scope="module")
def bundle(make_model, tmp_path_factory):
    """Return a function that gives a model's bundle and its checkpoint; each is made once."""
    made = {}

    def get(name):
        if name not in made:
            family, auto, options = OTHERS[name] if name in OTHERS else MODELS[name]
            folder = make_model(family, auto=auto, **options)
            limits = {"context_length": 64} if family == "t5" else {}
            place = tmp_path_factory.mktemp("bundles") / name
            made[name] = (
                export_model(folder, place, precision="int8", quantization=PER_TOKEN, verify=None, **limits).path,
                folder,
            )
        return made[name]

    return get


# Where they stand.


def blocks_of(place):
    """The block of every quantized parameter, as it is stored."""
    stored = Manifest.read(place).weights.values()
    return {name: each.quantized.block for each in stored if each.quantized for name in each.parameters}


def test_every_encoder_product_but_the_vocabulary_is_per_token(bundle):
    blocks = blocks_of(bundle("bert")[0])
    in_blocks = {name for name, block in blocks.items() if block is not None}
    assert in_blocks == {"embedding.weight"}, "whose head shares it"
    assert len(blocks) > 12


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_of_a_pair_all_that_reads_the_source_is_by_token(bundle, name):
    place, _ = bundle(name)
    of_sources = {name for name, block in blocks_of(place).items() if block is None}
    parts = {name.split(".blocks.0.")[1] for name in of_sources if name.startswith("decoder.")}
    assert parts == {"cross_attention.key.weight", "cross_attention.value.weight"}
    assert any(name.startswith("encoder.") for name in of_sources)
    ops = {graph: [node.op_type for node in nodes(place / graph)] for graph in (ENCODER_GRAPH, DECODER_GRAPH)}
    assert "MatMulNBits" not in ops[ENCODER_GRAPH]
    assert "MatMulIntegerToFloat" not in ops[DECODER_GRAPH]


def test_functions_have_the_opset_of_their_graph(bundle):
    """A decoder in blocks, whose feed-forward has a gate, stands in a graph of the opset of the encoder's products."""
    model = onnx.load(bundle("t5-gated")[0] / DECODER_GRAPH, load_external_data=False)
    assert "MatMulNBitsGeGLU" in {function.name for function in model.functions}
    versions = {each.version for part in (model, *model.functions) for each in part.opset_import if not each.domain}
    assert versions == {21}


def nodes(graph):
    """All nodes of a graph, those of the functions that it calls in place of the calls."""
    return inline_functions(onnx.load(graph, load_external_data=False)).graph.node


def test_what_is_kept_is_not_quantized(bundle, make_model, tmp_path):
    chosen = make_quantization(
        "int8", QuantizationOverrides(activations="per_token", head="int4", block=64, keep=("blocks.0.*",))
    )
    family, auto, options = MODELS["llama"]
    place = tmp_path / "kept"
    export_model(make_model(family, auto=auto, **options), place, precision="int8", quantization=chosen, verify=None)
    blocks = blocks_of(place)
    assert {blocks.pop("embedding.weight"), blocks.pop("head.weight")} == {64}
    assert set(blocks.values()) == {None}
    assert all(name.startswith("blocks.1.") for name in blocks)


def test_a_quantization_says_what_it_is():
    shown = (
        "*head.weight, *embedding.weight int8 in blocks of 128; "
        "decoder.*cross_attention.key.weight, decoder.*cross_attention.value.weight int8 per channel; "
        "decoder.*.weight int8 in blocks of 128; int8 per channel; embedding gathers int8 in blocks of 128"
    )
    assert str(PER_TOKEN) == shown


@pytest.mark.parametrize(
    ("precision", "options", "message"),
    [
        ("int4", {}, "needs symmetric int8 weights"),
        ("int8", {"symmetric": False}, "needs symmetric int8 weights"),
        ("int8", {"activations": "tokens"}, "activations is 'tokens'; it must be one of block, per_token"),
    ],
)
def test_other_weights_are_refused(precision, options, message):
    with pytest.raises(ConfigError, match=message):
        make_quantization(precision, QuantizationOverrides(**{"activations": "per_token", **options}))


def test_other_providers_are_refused(bundle, tmp_path):
    with pytest.raises(ExportError, match="only the CPU has products that quantize activations per token"):
        export_model(
            bundle("bert")[1], tmp_path / "bundle", precision="int8", provider="cuda", quantization=PER_TOKEN,
            verify=None,
        )  # fmt: skip
    assert not any(tmp_path.iterdir())


# What a graph of them is made of.

GATED = "blocks.1.feed_forward"


def readers(graph, name):
    return [node for node in graph if name in node.input]


def product(graph, name):
    """The nodes of one product, by their ops: those that round its input, itself, and what scales its result."""
    made = {output: node for node in graph for output in node.output}
    weight = f"{name}.weight.by_output.integers"
    found = {"MatMulIntegerToFloat": next(node for node in graph if weight in node.input)}
    found["QuantizeLinear"] = made[found["MatMulIntegerToFloat"].input[0]]
    step = made[found["QuantizeLinear"].input[1]]
    found["Max"] = made[step.input[0]]
    found["ReduceMax"] = made[found["Max"].input[0]]
    [found["Mul"]] = readers(graph, found["MatMulIntegerToFloat"].output[0])
    return found


def test_a_gate_meets_a_product_without_its_step(bundle):
    graph = nodes(bundle("llama")[0] / GRAPH)
    made = {node.output[0]: node for node in graph}
    up, down = (product(graph, f"{GATED}.{name}") for name in ("up", "down"))
    gating, rounding = up["Mul"], down["QuantizeLinear"]
    assert rounding.input[0] == gating.output[0]
    steps = {up["QuantizeLinear"].input[1], rounding.input[1]}
    assert set(made[down["Mul"].input[1]].input) == steps, "the gate's own and that of what it gates"


def test_what_several_products_read_is_rounded_once(bundle):
    graph = nodes(bundle("llama")[0] / GRAPH)
    gate, up = (product(graph, f"{GATED}.{name}")["QuantizeLinear"] for name in ("gate", "up"))
    assert gate is up


def test_nothing_is_left_to_compute_once(bundle, tmp_path):
    place = bundle("llama")[0] / GRAPH
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    ort.InferenceSession(str(place), options)
    optimised = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    constants = {each.name for each in optimised.initializer}
    assert not any(set(node.input) <= constants for node in optimised.node)


def test_tokens_of_zeros_stay_zeros(bundle, tmp_path):
    """Of what a norm without a weight leaves of them, and of what gates it."""
    model = inline_functions(onnx.load(bundle("llama")[0] / GRAPH))
    for each in model.graph.initializer:
        if "feed_forward_norm" in each.name:
            each.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(each)), each.name))
    watched = [
        node.output[0] for name in ("up", "down") for node in product(model.graph.node, f"{GATED}.{name}").values()
    ]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in watched)
    session = ort.InferenceSession(model.SerializeToString())
    feeds = {"input_ids": np.array([[3, 4, 5]]), "attention_mask": np.ones((1, 3), np.int64)}
    caches = [each for each in session.get_inputs() if each.name.startswith("past")]
    feeds |= {each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in caches}
    values = dict(zip(watched, session.run(watched, feeds), strict=True))
    floats = {name: value for name, value in values.items() if value.dtype == np.float32}
    assert len(floats) > 4
    assert all(np.isfinite(value).all() for value in floats.values())
    assert not floats[watched[-1]].any()


# A graph without its rounding.


def small_graph(planted=()):
    """Two products of what was rounded once; planted: an input of the second that ours never have."""
    random = np.random.default_rng(0)
    values = {
        "steps of rows": np.float32([[1 / 127], [1 / 127], [1 / 100], [1 / 150]]),
        "zeros": np.full((4, 1), 128, np.uint8),
        "one": np.float32(1), "zero": np.uint8(128),
        **{f"integers{i}": random.integers(-128, 128, (16, 8)).astype(np.int8) for i in (1, 2)},
        **{f"scales{i}": random.normal(size=8).astype(np.float32) for i in (1, 2)},
    }  # fmt: skip
    made = [helper.make_node("QuantizeLinear", ["x", "steps of rows", "zeros"], ["steps"], axis=-1, block_size=16)]
    for i in (1, 2):
        read = ["steps", f"integers{i}", "one", f"scales{i}", "zero", *(planted if i == 2 else ())]
        made.append(helper.make_node("MatMulIntegerToFloat", read, [f"product{i}"], domain="com.microsoft"))
    graph = helper.make_graph(
        made, "small", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info(f"product{i}", TensorProto.FLOAT, [4, 8]) for i in (1, 2)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets), values


def run(model, x):
    return ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})


def test_what_is_left_are_the_products_in_float(tmp_path):
    model, values = small_graph()
    x = np.random.default_rng(1).uniform(-1, 1, (4, 16)).astype(np.float32)
    x[0, 0] = 3  # beyond the range of a byte
    rounded = run(model, x)
    assert replace_integer_products(model.graph) == 2
    exact = run(model, x)
    clipped = np.clip(x / values["steps of rows"].astype(np.float64), -128, 127)
    for i, (without, with_it) in enumerate(zip(exact, rounded, strict=True), start=1):
        weight = values[f"integers{i}"].astype(np.float64) * values[f"scales{i}"]
        np.testing.assert_allclose(without, clipped @ weight, rtol=1e-6, atol=1e-5)
        assert 1e-3 < np.linalg.norm(with_it - without) / np.linalg.norm(without) < 2e-2


def test_products_of_another_form_still_round():
    model, _ = small_graph(planted=["", "scales1"])
    before = [node.SerializeToString() for node in model.graph.node]
    assert replace_integer_products(model.graph) == 1
    assert model.graph.node[-1].SerializeToString() == before[-1]


# Right ones.


@pytest.mark.parametrize("name", ["bert", "bert-labels", "t5", "t5-gated", "whisper", "llama"])
def test_a_right_graph_passes(bundle, name):
    report = verify(*bundle(name), mode="quick")
    assert report.passed, report.describe()
    names = {check.name.split(":")[0] for check in report.checks}
    plain = {name for name in names if not name.startswith(ACTIVATIONS)} - {"weights"}
    assert {f"{ACTIVATIONS}{name}" for name in plain} <= names, "each run is there twice"
    assert 0.9 < np.median(ratios(report)) < 1.1
    exact = [check.value for check in report.checks if check.name in {f"{name}: median ratio" for name in plain}]
    assert all(0.2 < ratio < 2 for ratio in exact), exact


def test_a_bundle_by_itself_passes_too(bundle):
    report = verify(bundle("t5")[0], mode="quick")
    assert report.passed, report.describe()
    assert "weights: block error" not in {check.name for check in report.checks}


def test_with_their_rounding_the_exact_runs_would_fail(bundle, monkeypatch):
    module = importlib.import_module("edgeformer.export.parity.float_products")
    monkeypatch.setattr(module, "open_with_float_products", open_session)
    failed = {check.name for check in verify(*bundle("bert"), mode="quick").failures()}
    assert {"text, logits: median ratio", "text, last_hidden_state: median ratio"} <= failed
    assert not any(name.startswith(ACTIVATIONS) for name in failed)


def test_the_unrounded_reference_would_fail_the_others(bundle, monkeypatch):
    monkeypatch.setattr(reference, "round_activations", lambda module, formats: None)
    assert all(ratio > 100 for ratio in ratios(verify(*bundle("bert"), mode="quick")))


# Faults.

DOWN = "blocks.1.feed_forward.down"


def constant(graph, value):
    graph.initializer.append(numpy_helper.from_array(value, "planted"))
    return "planted"


def a_scale_doubled(graph, stored):
    scales = stored[f"{DOWN}.weight.by_output.scales"]
    scales[3] *= 2
    stored[f"{DOWN}.weight.by_output.scales"] = scales


def outputs_exchanged(graph, stored):
    integers = stored[f"{DOWN}.weight.by_output.integers"]
    integers[:, [3, 4]] = integers[:, [4, 3]]
    stored[f"{DOWN}.weight.by_output.integers"] = integers


def integers_without_signs(graph, stored):
    """As if the middle of their range were theirs, too."""
    name = f"{DOWN}.weight.by_output.integers"
    stored[name] = (stored[name].astype(np.int16) + 128).astype(np.uint8).view(np.int8)


@pytest.mark.parametrize("fault", [a_scale_doubled, outputs_exchanged, integers_without_signs])
def test_stored_weights_of_another_model_are_found(bundle, tmp_path, fault):
    assert failures(*bundle("bert"), tmp_path / "faulty", fault) == {"weights"}


def a_zero_point_off_by_one(graph, stored):
    product(graph.node, DOWN)["MatMulIntegerToFloat"].input[4] = constant(graph, np.uint8(127))


def the_scale_of_activations_left_out(graph, stored):
    made = product(graph.node, DOWN)
    last = made["Mul"].output[0]
    graph.node.remove(made["Mul"])
    made["MatMulIntegerToFloat"].output[0] = last


def one_scale_for_all_tokens(graph, stored):
    """The largest of all tokens, for each of them."""
    reduced = product(graph.node, DOWN)["ReduceMax"]
    axes, place = constant(graph, np.array([-2])), list(graph.node).index(reduced)
    name, reduced.output[0] = reduced.output[0], "of one token"
    graph.node.insert(place + 1, helper.make_node("ReduceMax", ["of one token", axes], ["of all"]))
    graph.node.insert(place + 2, helper.make_node("Shape", ["of one token"], ["tokens"]))
    graph.node.insert(place + 3, helper.make_node("Expand", ["of all", "tokens"], [name]))


def another_step(graph, stored):
    product(graph.node, DOWN)["MatMulIntegerToFloat"].input[2] = constant(graph, np.float32(127 / 128))


def steps_beyond_a_byte(graph, stored):
    step = product(graph.node, DOWN)["QuantizeLinear"].input[1]
    of_a_token = next(node for node in graph.node if step in node.output)
    of_a_token.input[1] = constant(graph, np.float32(1 / 160))


def zero_points_of_rounding_off_by_one(graph, stored):
    zeros = product(graph.node, DOWN)["QuantizeLinear"].input[2]
    of_a_token = next(node for node in graph.node if zeros in node.output)
    of_a_token.input[2] = constant(graph, np.uint8(127))


def weights_of_another_layer(graph, stored):
    first = product(graph.node, DOWN.replace("1", "0"))["MatMulIntegerToFloat"]
    product(graph.node, DOWN)["MatMulIntegerToFloat"].input[1] = first.input[1]


def scales_of_another_layer(graph, stored):
    first = product(graph.node, DOWN.replace("1", "0"))["MatMulIntegerToFloat"]
    product(graph.node, DOWN)["MatMulIntegerToFloat"].input[3] = first.input[3]


@pytest.mark.parametrize(
    "fault",
    [
        a_zero_point_off_by_one,
        the_scale_of_activations_left_out,
        another_step,
        steps_beyond_a_byte,
        zero_points_of_rounding_off_by_one,
        weights_of_another_layer,
        scales_of_another_layer,
    ],
)
def test_a_graph_that_computes_something_else_is_found(bundle, tmp_path, fault):
    """In the exact runs, whatever rounding hides, and the weights are right."""
    failed = failures(*bundle("bert"), tmp_path / "faulty", fault)
    assert failed >= {"text, logits", "text, last_hidden_state"}
    assert "weights" not in failed


def the_step_of_what_is_gated_forgotten(graph, stored):
    made = product(graph.node, DOWN)
    made["Mul"].input[1] = made["QuantizeLinear"].input[1]


def queries_scaled_twice(graph, stored):
    _, kernel = (node for node in graph.node if node.op_type == "GroupQueryAttention")
    (scale,) = [each for each in kernel.attribute if each.name == "scale"]
    scale.f = 0.25


@pytest.mark.parametrize("fault", [the_step_of_what_is_gated_forgotten, queries_scaled_twice])
def test_faults_of_a_decoder_are_found(bundle, tmp_path, fault):
    failed = failures(*bundle("llama"), tmp_path / "faulty", fault)
    assert failed >= {"prefill", "steps"}
    assert "weights" not in failed


QKV_SCALES = "blocks.1.attention.qkv.weight.by_output.scales"


def queries_not_scaled(graph, stored):
    scales = stored[QKV_SCALES]
    scales[:64] *= 4
    stored[QKV_SCALES] = scales


def values_scaled_too(graph, stored):
    scales = stored[QKV_SCALES]
    scales[-32:] /= 4
    stored[QKV_SCALES] = scales


@pytest.mark.parametrize("fault", [queries_not_scaled, values_scaled_too])
def test_wrong_scales_of_queries_and_values_are_found(bundle, tmp_path, fault):
    assert failures(*bundle("llama"), tmp_path / "faulty", fault) == {"weights"}


def test_tokens_that_share_a_scale_are_found_by_padding(bundle, tmp_path):
    assert {"padding", f"{ACTIVATIONS}padding"} <= failures(*bundle("bert"), tmp_path / "f", one_scale_for_all_tokens)


def test_faults_of_a_pair_are_found_in_the_encoder_and_after_it(bundle, tmp_path):
    def fault(graph, stored):
        made = product(graph.node, "decoder.blocks.0.cross_attention.value")
        made["MatMulIntegerToFloat"].input[4] = constant(graph, np.uint8(127))

    failed = failures(*bundle("t5"), tmp_path / "faulty", fault, ENCODER_GRAPH)
    assert {"encoder", "prefill", "steps"} <= failed
    assert "weights" not in failed


def test_a_copy_without_a_fault_passes(bundle, tmp_path):
    assert failures(*bundle("bert"), tmp_path / "copy", lambda graph, stored: None) == set()
