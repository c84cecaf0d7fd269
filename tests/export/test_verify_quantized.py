"""Quantized graphs are verified: right ones of all kinds pass, planted faults are found, clients read the same file."""

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper
from slow_rows import slow_unless
from test_genai import genai_greedy, ours_greedy
from torch import nn

from edgeformer.checkpoints.source import open_source
from edgeformer.errors import BundleError
from edgeformer.export import export_model, export_module, verify, verify_module
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.export.reference import reference
from edgeformer.export.reference.quantized_activations import fake_quantize_activations
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.runtime import load

SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
PAIR = {"vocab_size": 97, "d_model": 64, "decoder_start_token_id": 0}
HALVES = {
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64, "pad_token_id": 1,
}  # fmt: skip
MODELS = {
    "llama": ("llama", "AutoModelForCausalLM", GROUPED),
    "llama-tied": ("llama", "AutoModelForCausalLM", GROUPED | {"tie_word_embeddings": True}),
    "llama-filled": ("llama", "AutoModelForCausalLM", GROUPED | {"intermediate_size": 996}),
    "gpt2": (
        "gpt2", "AutoModelForCausalLM",
        {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1},
    ),
    "gemma2": (
        "gemma2", "AutoModelForCausalLM",
        GROUPED | {
            "head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0,
        },
    ),
    "qwen3": ("qwen3", "AutoModelForCausalLM", GROUPED | {"head_dim": 32}),
    "bert": ("bert", "AutoModelForMaskedLM", SIZES),
    "bert-labels": ("bert", "AutoModelForSequenceClassification", SIZES),
    "t5": (
        "t5", "AutoModelForSeq2SeqLM",
        PAIR | {
            "d_kv": 8, "d_ff": 96, "num_layers": 1, "num_heads": 16, "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 16,
        },
    ),
    "marian": ("marian", "AutoModelForSeq2SeqLM", PAIR | HALVES),
}  # fmt: skip
"""Heads of their own and tied ones, biases, caps and windows, heads that are wider than the model, encoders and pairs.
Zeros fill the last of the blocks of 996 inputs. 16 heads of T5 make a table of distances that blocks would divide, and
Marian computes its positions.
"""

SYMMETRIC, ASYMMETRIC = True, False
FORMATS = {
    "llama": [("int4", SYMMETRIC), ("int4", ASYMMETRIC), ("int8", SYMMETRIC), ("int8", ASYMMETRIC)],
    "llama-tied": [("int4", ASYMMETRIC), ("int8", SYMMETRIC)],
    "llama-filled": [("int4", ASYMMETRIC), ("int8", SYMMETRIC)],
    "gpt2": [("int4", SYMMETRIC), ("int8", ASYMMETRIC)],
    "gemma2": [("int4", ASYMMETRIC), ("int8", SYMMETRIC)],
    "qwen3": [("int4", SYMMETRIC), ("int8", ASYMMETRIC)],
    "bert": [("int4", ASYMMETRIC), ("int8", SYMMETRIC)],
    "bert-labels": [("int4", SYMMETRIC)],
    "t5": [("int4", SYMMETRIC), ("int8", ASYMMETRIC)],
    "marian": [("int4", ASYMMETRIC)],
}
CASES = [(name, *form) for name, forms in FORMATS.items() for form in forms]
FAST = [case for case in CASES if case[0] in ("llama", "llama-filled", "gemma2", "bert", "t5")]
"""All formats, windows, encoders and pairs; the other models are slow."""


@pytest.fixture(scope="module")
def bundle(make_model, tmp_path_factory):
    """Return a function that gives a model's bundle in a format and its checkpoint; each is made once."""
    folders, bundles = {}, {}

    def get(name, precision="int4", symmetric=True) -> tuple[Path, Path]:
        if name not in folders:
            family, auto, options = MODELS[name]
            folders[name] = make_model(family, auto=auto, **options)
        key = name, precision, symmetric
        if key not in bundles:
            place = tmp_path_factory.mktemp("bundles") / "-".join(map(str, key))
            options = {"context_length": 64} if name == "t5" else {}
            quantization = make_quantization(precision, QuantizationOverrides(symmetric=symmetric))
            bundles[key] = export_model(
                folders[name], place, precision=precision, quantization=quantization,
                verify=None, **options,
            ).path  # fmt: skip
        return bundles[key], folders[name]

    return get


def ratios(report):
    """The figures that tell whether the emulation of activations is right, one of each run."""
    return [
        check.value
        for check in report.checks
        if check.name.startswith("int8 activations, ") and check.name.endswith(": median ratio")
    ]


@pytest.mark.parametrize(("name", "precision", "symmetric"), slow_unless(FAST, CASES))
def test_a_right_graph_passes(bundle, name, precision, symmetric):
    place, checkpoint = bundle(name, precision, symmetric)
    report = verify(place, checkpoint, mode="quick")
    assert report.passed, report.describe()
    runs = {check.name.split(":")[0] for check in report.checks}
    assert "weights" in runs
    plain = {run for run in runs if not run.startswith("int8 activations, ")} - {"weights"}
    assert {f"int8 activations, {run}" for run in plain} <= runs, "each run is there twice"
    # What rounding makes of single texts is chance; the graph and the emulation of it meet the same.
    assert 0.9 < np.median(ratios(report)) < 1.1


@pytest.mark.parametrize(("name", "symmetric"), [("t5", SYMMETRIC), ("marian", ASYMMETRIC)])
def test_both_graphs_of_a_pair_share_one_quantized_embedding(bundle, name, symmetric):
    place, _ = bundle(name, "int4", symmetric)
    places = []
    for graph in Manifest.read(place).step_graphs:
        for tensor in onnx.load(place / graph, load_external_data=False).graph.initializer:
            if re.fullmatch(r".*embedding\.weight\.integers(\.flat)?", tensor.name):
                places.append({entry.key: entry.value for entry in tensor.external_data})
    assert len(places) == 3, "a lookup in each, and the head"
    assert places[0] == places[1] == places[2]


def test_a_full_verification_passes(bundle):
    report = verify(*bundle("gemma2", "int4", False), mode="full")
    assert report.passed, report.describe()
    assert {"batch of 8", "window", "int8 activations, window"} <= {check.name.split(":")[0] for check in report.checks}


SIZES_OF_CACHE = {"vocab_size": 300, "context_length": 512, "num_layers": 2, "num_kv_heads": 2, "head_dim": 16}


class Product(nn.Module):
    """A layer that keeps its weight as [inputs, outputs]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)

    def forward(self, x):
        return x @ self.weight


@pytest.fixture(scope="module")
def own_module(tmp_path_factory):
    """The decoder of docs/tutorials/your-own-module.md with products of its own in the second block."""
    text = (Path(__file__).parents[2] / "docs" / "tutorials" / "your-own-module.md").read_text(encoding="utf-8")
    names = {"__name__": "example"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("example"))
        torch.manual_seed(0)
        exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    torch.manual_seed(1)
    module = names["Decoder"]()
    layers = module.blocks[1].feed_forward
    wide = layers[0].out_features
    layers[0], layers[2] = Product(64, wide), Product(wide, 64)
    return module


@pytest.mark.parametrize(
    ("precision", "options"), [("int4", {}), ("int8", {"symmetric": False}), ("int8", {"activations": "per_token"})]
)
def test_a_module_of_ones_own_passes(own_module, tmp_path, precision, options):
    quantization = make_quantization(precision, QuantizationOverrides(**options))
    result = export_module(
        own_module, tmp_path / "own", precision=precision, quantization=quantization, verify=None,
        **SIZES_OF_CACHE,
    )  # fmt: skip
    quantized = {name for stored in result.manifest.weights.values() if stored.quantized for name in stored.parameters}
    assert {"blocks.1.feed_forward.0.weight", "blocks.0.feed_forward.0.weight", "embedding.weight"} <= quantized
    report = verify_module(result.path, own_module, mode="quick")
    assert report.passed, report.describe()
    assert 0.9 < np.median(ratios(report)) < 1.1
    with torch.no_grad():
        own_module.blocks[1].feed_forward[2].weight.mul_(-1)
        failed = failures_of(verify_module(result.path, own_module, mode="quick"))
        own_module.blocks[1].feed_forward[2].weight.mul_(-1)
    assert failed == {"weights"}, "a weight by its inputs is judged, too"


# What the two numbers are.


def test_quantization_loss_is_no_error_of_the_graph(bundle):
    """It is measured, and large for random weights in 4 bits, and no check is made of it."""
    reports = {precision: verify(*bundle("llama", precision), mode="quick") for precision in ("int4", "int8")}
    for report in reports.values():
        assert report.passed
        assert report.rounding is not None and report.quantization is not None
        # Rounding activations to 8 bits costs something beside what weights in 4 bits do, and as much as 8 bits do.
        assert report.quantization.mean_kl > 0.5 * report.rounding.mean_kl
    four, eight = (reports[precision].rounding.mean_kl for precision in ("int4", "int8"))
    assert four > 30 * eight > 0
    worst = max(check.value for check in reports["int4"].checks if check.name.endswith("mean KL"))
    assert worst < 0.1 * four


def test_a_bundle_by_itself_tells_no_quantization_loss(bundle):
    report = verify(bundle("llama")[0], mode="quick")
    assert report.passed
    assert report.rounding is None and report.quantization is None
    assert "weights: block error" not in {check.name for check in report.checks}


# What activations are rounded to.


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_the_emulation_of_activations_errs_as_the_kernel_does(bundle, precision):
    found = ratios(verify(*bundle("llama", precision), mode="quick"))
    assert len(found) == 5
    assert all(0.9 < ratio < 1.1 for ratio in found), found


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_the_used_graph_would_fail_without_the_emulation(bundle, precision, monkeypatch):
    monkeypatch.setattr(reference, "round_activations", lambda module, formats: None)
    assert all(ratio > 100 for ratio in ratios(verify(*bundle("llama", precision), mode="quick")))


def test_activations_are_rounded_block_by_block():
    x = torch.tensor([[1.0, 0.5, 127.0, 0.4, 0.0, 0.0, 0.01, 0.002]])
    found = fake_quantize_activations(x, 4)
    assert torch.equal(found[:, :4], torch.tensor([[1.0, 0.0, 127.0, 0.0]]))  # half of a step is rounded to even
    np.testing.assert_allclose(found[:, 4:], [[0, 0, 0.01, 25 * 0.01 / 127]], rtol=1e-6)
    assert not fake_quantize_activations(torch.zeros(2, 8), 4).any()
    assert torch.equal(fake_quantize_activations(x[:, :7], 4), found[:, :7])  # a block that zeros fill


# Faults.


class Stored:
    """The parts of quantized matrices in the file of weights of a bundle, to be read and overwritten."""

    def __init__(self, folder, graph):
        self._file = folder / "onnx" / "model.onnx_data"
        self._tensors = {tensor.name: tensor for tensor in graph.initializer if tensor.external_data}

    def __getitem__(self, name):
        tensor = self._tensors[name]
        where = {entry.key: int(entry.value) for entry in tensor.external_data if entry.key != "location"}
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        data = self._file.read_bytes()[where["offset"] : where["offset"] + where["length"]]
        return np.frombuffer(data, dtype).reshape(tensor.dims).copy()

    def __setitem__(self, name, value):
        assert not np.array_equal(self[name], value), "the fault changes nothing"
        offset = next(int(entry.value) for entry in self._tensors[name].external_data if entry.key == "offset")
        with self._file.open("r+b") as file:
            file.seek(offset)
            file.write(value.tobytes())


def failures_of(report):
    return {check.name.split(":")[0] for check in report.failures()}


def failures(clean, checkpoint, folder, fault, graph=None):
    """What fails once a fault is planted in a copy of a bundle, by the checkpoint: runs, and `weights`.

    graph: the file of the faulty graph, where the bundle has several.
    """
    subject = open_subject(clean, checkpoint)
    shutil.copytree(clean, folder)
    path = folder / (graph or subject.manifest.graph)
    model = inline_functions(onnx.load(path, load_external_data=False))
    before = model.SerializeToString()
    fault(model.graph, Stored(folder, model.graph))
    if model.SerializeToString() != before:
        path.write_bytes(model.SerializeToString())
    return failures_of(verify_graph(folder, subject.manifest, subject.model_spec, subject.weights))


DOWN = "blocks.1.feed_forward.down.weight"


def halves_exchanged(graph, stored):
    integers = stored[f"{DOWN}.integers"]
    stored[f"{DOWN}.integers"] = integers >> 4 | integers << 4


def scales_a_block_late(graph, stored):
    stored[f"{DOWN}.scales"] = np.roll(stored[f"{DOWN}.scales"], 1, axis=1)


def scales_of_magnitudes(graph, stored):
    """As if the largest weight of a block were always positive."""
    stored[f"{DOWN}.scales"] = np.abs(stored[f"{DOWN}.scales"])


def one_scale_doubled(graph, stored):
    """Of a token that no text has: only comparing the weights can see it."""
    scales = stored["embedding.weight.scales"]
    scales[-1, 0] *= 2
    stored["embedding.weight.scales"] = scales


def integers_of_another_layer(graph, stored):
    stored[f"{DOWN}.integers"] = stored["blocks.0.feed_forward.down.weight.integers"]


def zero_points_in_the_middle(graph, stored):
    stored[f"{DOWN}.zero_points"] = np.full_like(stored[f"{DOWN}.zero_points"], 0x88)


def a_norm_of_another_layer(graph, stored):
    """Not quantized at all, and read by both sides."""
    stored["blocks.1.feed_forward_norm.weight"] = stored["blocks.0.feed_forward_norm.weight"]


def one_channel_of_a_norm_a_digit_off(graph, stored):
    norm = stored["final_norm.weight"]
    norm[3] = np.nextafter(norm[3], np.float32(9))
    stored["final_norm.weight"] = norm


@pytest.mark.parametrize(
    ("fault", "symmetric"),
    [
        (a_norm_of_another_layer, True),
        (one_channel_of_a_norm_a_digit_off, False),
        (halves_exchanged, True),
        (halves_exchanged, False),
        (scales_a_block_late, True),
        (scales_of_magnitudes, True),
        (one_scale_doubled, True),
        (integers_of_another_layer, True),
        (integers_of_another_layer, False),
        (zero_points_in_the_middle, False),
    ],
)
def test_stored_weights_of_another_model_are_found(bundle, tmp_path, fault, symmetric):
    """And by it alone: the graph computes what these weights mean."""
    assert failures(*bundle("llama", "int4", symmetric), tmp_path / "faulty", fault) == {"weights"}


def test_weights_of_another_seed_are_found_by_the_checkpoint(bundle, make_model):
    family, auto, options = MODELS["llama"]
    other = make_model(family, 5, auto=auto, **options)
    assert {check.name for check in verify(bundle("llama")[0], other, mode="quick").failures()} == {
        "weights: block error",
        "weights: unquantized",
    }


def product(graph, part=DOWN):
    return next(node for node in graph.node if node.op_type == "MatMulNBits" and f"{part}.integers" in node.input)


def lookup(graph):
    return next(node for node in graph.node if node.op_type == "GatherBlockQuantized")


def zero_points_left_out(graph, stored):
    del product(graph).input[3:]


def zero_points_of_the_embedding_left_out(graph, stored):
    del lookup(graph).input[3:]


def weights_of_another_layer_read(graph, stored):
    first, second = (product(graph, f"blocks.{layer}.feed_forward.down.weight") for layer in (0, 1))
    second.input[1:] = first.input[1:]


def gates_apart(graph):
    """Put a call of MatMulNBits and the nodes of its gate in place of every call of MatMulNBitsSwiGLU."""
    for index, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "MatMulNBitsSwiGLU":
            both, gate, up, share, activated = (
                f"{node.name}/{part}" for part in ("both", "gate", "up", "share", "act")
            )
            behind = [
                helper.make_node("Split", [both], [gate, up], axis=-1, num_outputs=2),
                helper.make_node("Sigmoid", [gate], [share]),
                helper.make_node("Mul", [gate, share], [activated]),
                helper.make_node("Mul", [activated, up], [node.output[0]]),
            ]
            node.op_type, node.output[0] = "MatMulNBits", both
            for each in reversed(behind):
                graph.node.insert(index + 1, each)


def gate_and_up_exchanged(graph, stored):
    gates_apart(graph)
    split = next(node for node in graph.node if node.op_type == "Split")
    split.output[0], split.output[1] = split.output[1], split.output[0]


def another_block_size(graph, stored):
    (attribute,) = [each for each in product(graph).attribute if each.name == "block_size"]
    attribute.i = 16


RUNS = {"decode", "prefill", "steps", "chunks", "batch of 3"}


@pytest.mark.parametrize(
    ("fault", "symmetric", "found"),
    [
        (zero_points_left_out, False, RUNS),
        (zero_points_of_the_embedding_left_out, False, RUNS),
        (weights_of_another_layer_read, True, RUNS),
        (weights_of_another_layer_read, False, RUNS),
        (gate_and_up_exchanged, True, RUNS),
    ],
)
def test_a_graph_that_computes_something_else_is_found(bundle, tmp_path, fault, symmetric, found):
    """In both runs, and the weights are right."""
    failed = failures(*bundle("llama", "int4", symmetric), tmp_path / "faulty", fault)
    assert failed >= found | {f"int8 activations, {run}" for run in found}
    assert "weights" not in failed


def test_onnxruntime_refuses_a_wrong_block_size(bundle, tmp_path):
    with pytest.raises(BundleError, match="onnxruntime cannot load .*MatMulNBits"):
        failures(*bundle("llama"), tmp_path / "faulty", another_block_size)


def test_a_product_of_another_layer_is_found_in_8_bits(bundle, tmp_path):
    failed = failures(*bundle("llama", "int8"), tmp_path / "faulty", weights_of_another_layer_read)
    assert failed >= RUNS


def test_a_copy_without_a_fault_passes(bundle, tmp_path):
    for symmetric in (True, False):
        folder = tmp_path / str(symmetric)
        assert failures(*bundle("llama", "int4", symmetric), folder, lambda graph, stored: None) == set()


def test_a_graph_without_rounded_activations_errs_less(bundle, tmp_path):
    """Limits say how far a graph may be from float64. Without `accuracy_level` it is nearer, and slower."""
    clean, checkpoint = bundle("llama", "int4")

    def in_float32(graph, stored):
        gates_apart(graph)
        for node in graph.node:
            if node.op_type == "MatMulNBits":
                del node.attribute[[each.name for each in node.attribute].index("accuracy_level")]

    assert failures(clean, checkpoint, tmp_path / "slow", in_float32) == set()
    subject = open_subject(clean, checkpoint)
    report = verify_graph(tmp_path / "slow", subject.manifest, subject.model_spec, subject.weights)
    assert all(ratio < 0.01 for ratio in ratios(report))


# Clients.

STEPS, SEED = 24, 5


def plain_greedy(path, prompt, steps):
    """Greedy tokens of a growing text by nothing but onnxruntime, which runs the whole of it again for every token."""
    session, tokens = ort.InferenceSession(path), list(prompt)
    feeds = {
        each.name: np.zeros((1, *each.shape[1:2], 0, each.shape[3]), np.float32) for each in session.get_inputs()[2:]
    }
    for _ in range(steps):
        ids = np.array([tokens])
        logits = session.run(["logits"], feeds | {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(
    ("name", "precision", "symmetric"), [("llama", "int4", SYMMETRIC), ("gemma2", "int8", SYMMETRIC)]
)
def test_our_runtime_writes_what_plain_onnxruntime_writes(bundle, name, precision, symmetric):
    place = bundle(name, precision, symmetric)[0]
    prompt = np.random.default_rng(1).integers(3, 97, 11).tolist()
    expected = plain_greedy(place / "onnx" / "model.onnx", prompt, STEPS)
    assert ours_greedy(place, [prompt], STEPS) == [expected]
    generated = load(place).generate(prompt, max_new_tokens=STEPS).token_ids
    assert generated == expected[: len(generated)]


@pytest.mark.parametrize(("precision", "options"), [("int4", {}), ("int8", {"tie_word_embeddings": True})])
def test_onnxruntime_genai_finds_the_same_tokens(make_llama, tmp_path, precision, options):
    folder = make_llama(seed=SEED, eos_token_id=130, **options)
    place = export_model(folder, tmp_path / "bundle", precision=precision, verify=None).path
    prompts = np.random.default_rng(0).integers(3, 128, (2, 11)).tolist()
    expected = ours_greedy(place, prompts, STEPS)
    # With min_length it bans the end of text; a sequence that has one says nothing.
    assert all(130 not in tokens for tokens in expected)
    assert genai_greedy(place, prompts, STEPS) == expected


def test_quantized_weights_are_near_the_checkpoint(bundle):
    """Read back as parameters of the module, packed matrices taken apart."""
    for precision, most in (("int4", 0.15), ("int8", 0.01)):
        place, checkpoint = bundle("llama", precision, False)
        stored, original = open_subject(place).weights, open_source(checkpoint).weights()
        assert set(stored) == set(original)
        errors = {name: float((stored[name] - original[name]).norm() / original[name].norm()) for name in original}
        assert 0 < max(errors.values()) < most
        assert {name for name, error in errors.items() if error == 0} == {name for name in errors if "norm" in name}
