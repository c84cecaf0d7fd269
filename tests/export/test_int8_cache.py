"""An int8 cache: what the graph is made of, where its scales come from, and that every fault of it is found."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_genai as og
import pytest
import torch
from click.testing import CliRunner
from faulty_graph import faulty
from onnx import numpy_helper

from edgeformer import ops
from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.documents import schema
from edgeformer.errors import BundleError, ConfigError, ExportError
from edgeformer.export import export_model, verify
from edgeformer.export.calibrate import caches as cache_calibration
from edgeformer.export.calibrate.caches import calibrate_caches
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.lower import GraphJob
from edgeformer.export.parity.locate.locator import locate
from edgeformer.export.parity.trials.quantized_cache import judge_scales
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.export.reference import quantized_caches as caches
from edgeformer.export.reference.quantized_caches import CacheEntrance, RoundedCaches, fake_quantize_cache
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.plan import ExportPlan
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import load

WINDOWED = "onnx/model_windowed.onnx"
NUMBERS = "int8 cache, integers: beyond rounding"
SCALES = "int8 cache, scales: differing numbers"
CLIPPED = "int8 cache, scales: clipped"
PROMPT = np.random.default_rng(0).integers(3, 130, 24).tolist()
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
FAMILIES = {
    "gemma2": {**SMALL, "head_dim": 16, "sliding_window": 6},
    "qwen3": {**SMALL, "head_dim": 16},
    "phi": {**SMALL, "hidden_size": 128, "partial_rotary_factor": 0.5},
}
"""Soft-caps and windows; norms of the heads; rotation of half a head."""


@pytest.fixture(scope="module")
def bundle(llama_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("bundles") / "llama"
    return export_model(llama_folder, place, cache_precision="int8", verify=None).path


@pytest.fixture(scope="module")
def quantized(llama_folder, tmp_path_factory):
    """Quantized all over: weights and the cache."""
    place = tmp_path_factory.mktemp("bundles") / "quantized"
    return export_model(llama_folder, place, precision="int4", cache_precision="int8", verify=None).path


def attention(graph):
    return [node for node in graph.node if node.op_type == "GroupQueryAttention"]


def constant(graph, name):
    return next(tensor for tensor in graph.initializer if tensor.name == name)


@pytest.mark.parametrize("kind", ["bundle", "quantized"])
def test_every_graph_caches_integers_by_the_manifest(kind, request):
    folder = request.getfixturevalue(kind)
    manifest = Manifest.read(folder)
    for name in manifest.graph_files:
        graph = inline_functions(onnx.load(folder / name, load_external_data=False)).graph
        declared = [value for value in (*graph.input, *graph.output) if value.name.startswith(("past", "present"))]
        assert len(declared) == 4 * 3
        assert {value.type.tensor_type.elem_type for value in declared} == {onnx.TensorProto.INT8}
        for layer, node in enumerate(attention(graph)):
            for place, scales in ((12, manifest.cache_scales.key), (13, manifest.cache_scales.value)):
                stored = numpy_helper.to_array(constant(graph, node.input[place]))
                np.testing.assert_array_equal(stored, np.float32(scales[layer]).reshape(1, 2, 1, 16))


def test_a_module_of_transformers_has_the_same_scales(bundle, llama_folder, tmp_path):
    other = export_model(llama_folder, tmp_path / "bundle", cache_precision="int8", backend="transformers", verify=None)
    for part in ("key", "value"):
        scales = [getattr(each.cache_scales, part) for each in (other.manifest, Manifest.read(bundle))]
        np.testing.assert_allclose(*map(np.array, scales), rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_at_parity_over_every_kind_of_attention(make_model, tmp_path, family):
    folder = make_model(family, 3, vocab_size=131, bos_token_id=1, eos_token_id=2, **FAMILIES[family])
    result = export_model(folder, tmp_path / "bundle", cache_precision="int8")
    assert {NUMBERS, SCALES, CLIPPED, "int8 cache, chunks: max error"} <= {check.name for check in result.report.checks}
    assert 1e-9 < result.report.quantization.mean_kl < 0.1
    assert ("windowed" in result.manifest.graphs) == (family == "gemma2")
    load(tmp_path / "bundle").generate(PROMPT, max_new_tokens=8)


HALVES = [
    {"precision": "fp16"},
    {"precision": "fp16", "provider": "cuda"},
    {"precision": "bf16", "provider": "cuda"},
    {"precision": "int4", "provider": "cuda", "arithmetic": "bf16"},
]


@pytest.mark.parametrize("options", HALVES, ids=lambda options: "-".join(options.values()))
def test_it_stands_beside_activations_of_half_precision(llama_folder, tmp_path, options):
    """On the CPU in float16 itself; for CUDA by the float32 twin, and every node has a CUDA kernel of its types."""
    result = export_model(llama_folder, tmp_path / "bundle", cache_precision="int8", **options)
    names = {check.name for check in result.report.checks}
    assert {NUMBERS, SCALES, CLIPPED, "int8 cache, chunks: max error"} <= names
    assert ("twin: no CUDA kernel" in names) == ("provider" in options)
    graph = onnx.load(tmp_path / "bundle/onnx/model.onnx", load_external_data=False).graph
    caches = [each.type.tensor_type.elem_type for each in graph.input if each.name.startswith("past_key_values")]
    assert set(caches) == {onnx.TensorProto.INT8}


def test_a_fault_of_a_float16_graph_is_found_too(llama_folder, tmp_path):
    bundle = export_model(llama_folder, tmp_path / "b", cache_precision="int8", precision="fp16", verify=None).path
    subject = open_subject(bundle, llama_folder)
    place = faulty(bundle, tmp_path / "faulty", one_head)
    report = verify_graph(place, subject.manifest, subject.model_spec, subject.weights)
    assert "int8 cache, prefill: max error" in {check.name for check in report.failures()}


@pytest.mark.parametrize("kind", ["bundle", "quantized"])
def test_int8_attention_is_as_exact_as_any_graph(kind, request, llama_folder):
    report = verify(request.getfixturevalue(kind), llama_folder, mode="full")
    assert report.passed, report.describe()
    errors = [
        check.value for check in report.checks if check.name.startswith("int8 cache, ") and "max er" in check.name
    ]
    assert len(errors) == 4
    assert max(errors) < 1e-5, "float32's own error, though a cache in 8 bits is off by a thousand times that"
    ordinary = next(check for check in report.checks if check.name == "prefill: max error")
    assert ordinary.value > 1e-3


# Faults in one graph.


def another_scale(graph):
    """Every channel of one layer's keys in wider steps."""
    tensor = constant(graph, attention(graph)[1].input[12])
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.5), tensor.name))


def one_head(graph):
    tensor = constant(graph, attention(graph)[1].input[13])
    scales = numpy_helper.to_array(tensor).copy()
    scales[0, 1] *= np.float32(1.01)
    tensor.CopyFrom(numpy_helper.from_array(scales, tensor.name))


def heads_exchanged(graph):
    tensor = constant(graph, attention(graph)[0].input[12])
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:, ::-1].copy(), tensor.name))


def keys_and_values_exchanged(graph):
    names = attention(graph)[2].input
    names[12], names[13] = names[13], names[12]


def layers_exchanged(graph):
    first, second = (node.input for node in attention(graph)[:2])
    first[12], second[12] = second[12], first[12]


def one_scale_for_all(graph):
    """Which the kernel refuses where it is given many."""
    for each in attention(graph)[1].attribute:
        if each.name in ("k_quant_type", "v_quant_type"):
            each.s = b"PER_TENSOR"


FAULTS = [another_scale, one_head, heads_exchanged, keys_and_values_exchanged, layers_exchanged]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_by_what_is_computed(bundle, llama_folder, tmp_path, fault):
    subject = open_subject(bundle, llama_folder)
    place = faulty(bundle, tmp_path / "faulty", fault)
    report = verify_graph(place, subject.manifest, subject.model_spec, subject.weights)
    failed = {check.name for check in report.failures()}
    assert NUMBERS in failed
    assert any(name.startswith("int8 cache, ") and name.endswith("max error") for name in failed)


def test_the_windowed_graph_may_not_have_scales_of_its_own(make_model, tmp_path):
    folder = make_model("gemma2", 3, vocab_size=131, bos_token_id=1, eos_token_id=2, **FAMILIES["gemma2"])
    bundle = export_model(folder, tmp_path / "bundle", cache_precision="int8", verify=None).path
    manifest = Manifest.read(faulty(bundle, tmp_path / "faulty", one_head, WINDOWED))
    for place, differing in (("bundle", 0), ("faulty", 16)):
        [check] = judge_scales(tmp_path / place, manifest)
        assert (check.value, check.passed) == (differing, not differing)


def test_scales_that_clip_are_found(llama_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_calibration, "MARGIN", 0.25)
    result = export_model(llama_folder, tmp_path / "bundle", cache_precision="int8", verify=None)
    report = verify(result.path, llama_folder, mode="quick")
    assert {check.name for check in report.failures()} == {CLIPPED}


def test_a_graph_that_cannot_run_is_said_to(bundle, llama_folder, tmp_path):
    subject = open_subject(bundle, llama_folder)
    place = faulty(bundle, tmp_path / "faulty", one_scale_for_all)
    report = verify_graph(place, subject.manifest, subject.model_spec, subject.weights)
    assert {"run", "int8 cache, run"} == {check.name for check in report.failures()}
    assert report.quantization is None


def test_the_checks_know_how_the_kernel_rounds(bundle, llama_folder, monkeypatch):
    """PyTorch that cut off instead of rounding would stand twice as far from float64."""

    def ratio():
        report = verify(bundle, llama_folder, mode="quick")
        return next(check.value for check in report.checks if check.name == "prefill: median ratio")

    assert 0.9 < ratio() < 1.1
    monkeypatch.setattr(caches, "integers", lambda x, scales: (x / scales).trunc().clamp(-128, 127))
    assert ratio() < 0.75


# The arithmetic of the kernel.


def run_kernel(query, key, value, past_key, past_value, key_scale, value_scale):
    """One GroupQueryAttention with an int8 cache of one head: output and presents."""
    names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total", *[""] * 5, "k_scale", "v_scale"]
    node = onnx.helper.make_node(
        "GroupQueryAttention", names, ["output", "present_key", "present_value"], domain="com.microsoft", num_heads=1,
        kv_num_heads=1, k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL", kv_cache_bit_width=8, scale=1.0,
    )  # fmt: skip
    total = past_key.shape[2] + key.shape[1]
    arrays = [query, key, value, past_key, past_value, np.array([total - 1], np.int32), np.array(total, np.int32)]
    feeds = dict(zip([name for name in names if name], [*arrays, key_scale, value_scale], strict=True))
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in feeds.items()
    ]
    outputs = [
        onnx.helper.make_tensor_value_info(name, kind, None)
        for name, kind in zip(node.output, (onnx.TensorProto.FLOAT, *[onnx.TensorProto.INT8] * 2), strict=True)
    ]
    graph = onnx.helper.make_graph([node], "one", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString()).run(None, feeds)


def test_cached_numbers_are_rounded_to_even_and_clipped():
    numbers = np.array([[[0.5, 1.5, -2.5, 0.49, 127.4, 200, -128.4, -200]]], np.float32)
    past = np.arange(-120, -112, dtype=np.int8).reshape(1, 1, 1, 8)
    scale = np.full((1, 1, 1, 8), 0.25, np.float32)
    _, key, value = run_kernel(numbers * 0, numbers * 0.25, numbers * 0.25, past, past, scale, scale)
    for present in (key, value):
        np.testing.assert_array_equal(present[0, 0], [range(-120, -112), [0, 2, -2, 0, 127, 127, -128, -128]])
    assert fake_quantize_cache(torch.from_numpy(numbers), torch.ones(8)).tolist() == [
        [[0, 2, -2, 0, 127, 127, -128, -128]]
    ]


@pytest.mark.parametrize("tokens", [1, 6])
def test_attention_reads_what_it_cached_of_the_new_tokens_too(tokens):
    random = np.random.default_rng(0)
    query, key, value = random.normal(size=(3, 1, tokens, 8)).astype(np.float32)
    scale = np.full((1, 1, 1, 8), 0.2, np.float32)
    empty = np.zeros((1, 1, 0, 8), np.int8)
    output, cached, _ = run_kernel(query, key, value, empty, empty, scale, scale)
    mask, steps = torch.ones(1, tokens, dtype=torch.int64), tuple([0.2] * 8)
    given = [torch.from_numpy(each).double() for each in (query, key, value)]

    def attended():
        return ops.group_query_attention(*given, None, None, mask, 1, 1, 1.0)

    with RoundedCaches(CacheScales(key=(steps,), value=(steps,))):
        expected, present, _ = attended()
    np.testing.assert_allclose(output, expected, atol=1e-6)
    np.testing.assert_array_equal(cached * np.float32(0.2), present.float())
    assert np.abs(output - attended()[0].numpy()).max() > 1e-2, "which unrounded ones are not"


# Where scales come from.


class Noted(CacheEntrance):
    def __init__(self):
        super().__init__()
        self.seen = []

    def store(self, layer, key, value, turn):
        self.seen.append((key, value, turn))
        return key, value


@pytest.mark.parametrize("interleaved", [False, True])
def test_keys_are_calibrated_rotated_and_apart(interleaved):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 5, heads * 8, generator=generator) for heads in (4, 2, 2))
    angles = torch.arange(9.0)[:, None] * torch.tensor([1.0, 0.1, 0.01])
    tables, mask = (angles.cos(), angles.sin()), torch.ones(1, 5, dtype=torch.int64)
    positions = torch.arange(5)[None]
    turned = [
        ops.rotary_embedding(each, positions, *tables, heads, interleaved) for each, heads in ((query, 4), (key, 2))
    ]
    inside = {"cos": tables[0], "sin": tables[1], "rotary_interleaved": interleaved}
    packed, settings = torch.cat((query, key, value), -1), (None, None, mask, 4, 2, 0.3)

    def turned_before():
        apart = (
            ops.rotary_embedding(each, positions, *tables, heads, interleaved) for each, heads in ((query, 4), (key, 2))
        )
        return ops.group_query_attention(*apart, value, *settings)

    calls = [
        lambda: ops.group_query_attention(packed, None, None, *settings, **inside),
        lambda: ops.group_query_attention(query, key, value, *settings, **inside),
        turned_before,
    ]
    for call in calls:
        with Noted() as noted:
            output = call()[0]
        ((seen_key, seen_value, turn),) = noted.seen
        torch.testing.assert_close(output, call()[0])
        torch.testing.assert_close(seen_key, turned[1])
        torch.testing.assert_close(seen_value, value)
        assert turn == (3, interleaved)
    with Noted() as noted:
        ops.group_query_attention(query, key, value, *settings)
    assert noted.seen[0][2] is None


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotated_channels_have_room_for_every_position(interleaved):
    head = torch.tensor([[[[3.0, 0.0, 1.0, 4.0, 0.5, 2.0, 7.0, 9.0]]]])
    reach = cache_calibration._pair_lengths(head, 3, interleaved)[0, 0, 0]
    angles = torch.arange(1000.0)[:, None] * torch.tensor([1.0, 0.37, 0.011])
    turned = ops.rotary_embedding(
        head.flatten(2).expand(1, 1000, 8), torch.arange(1000)[None], angles.cos(), angles.sin(), 1, interleaved
    )
    largest = turned[0].abs().amax(0)
    assert (largest <= reach * 1.0001).all()
    assert (largest >= reach * 0.99).all(), "and not more than that"
    assert reach[6:].tolist() == [7, 9]
    assert (largest > head.flatten().abs() * 1.2).any(), "the numbers alone would not do"


def opened(folder):
    source = open_source(folder)
    return model_spec_of(source.config), source.weights()


def scales_of(model, *samples, precision="int8"):
    job = GraphJob(model_spec=model[0], weights=model[1], plan=ExportPlan(cache_precision=precision))
    return calibrate_caches(job, *samples)


def test_scales_are_the_largest_numbers_and_a_margin(llama_folder, monkeypatch):
    model_spec, weights = opened(llama_folder)
    sampled, texts = [], [np.arange(3, 40), np.arange(90, 120)]
    run = Reference.run
    monkeypatch.setattr(Reference, "run", lambda self, ids: sampled.append(ids) or run(self, ids))
    scales = scales_of((model_spec, weights), None, texts)
    monkeypatch.undo()
    assert sampled[0].shape == (4, 64)
    noted = Noted()
    reference = Reference(model_spec, weights, torch.float32, noted)
    largest = torch.zeros(3, 32)
    for ids in (sampled[0], *(torch.from_numpy(text)[None] for text in texts)):
        noted.seen.clear()
        reference.run(ids)
        largest = torch.maximum(largest, torch.stack([value.abs().amax((0, 1)) for _, value, _ in noted.seen]))
    np.testing.assert_allclose(np.array(scales.value), largest.numpy() * 1.25 / 127, rtol=1e-3)
    keys = np.array(scales.key).reshape(3, 2, 2, 8)
    np.testing.assert_array_equal(keys[:, :, 0], keys[:, :, 1])
    assert scales_of((model_spec, weights)) != scales
    assert scales_of((model_spec, weights), 1) == scales_of((model_spec, weights), 1)
    assert scales_of((model_spec, weights), 1) != scales_of((model_spec, weights))


def test_a_calibration_text_chooses_scales_without_rounding(llama_folder, tmp_path):
    texts = [list(range(3, 120)), [9, 10]]
    done = export_model(llama_folder, tmp_path / "b", cache_precision="int8", calibration=texts)

    model = opened(llama_folder)
    assert done.manifest.cache_scales == scales_of(model, 1, [np.array(text) for text in texts])
    assert done.manifest.cache_scales != scales_of(model, 1)
    assert done.manifest.plan.quantization is None and done.report.passed


def test_keys_that_are_no_numbers_are_refused(llama_folder):
    model_spec, weights = opened(llama_folder)
    broken = {name: weights[name] for name in weights}
    broken["blocks.1.attention.key.weight"] = broken["blocks.1.attention.key.weight"] * torch.inf
    with pytest.raises(ExportError, match="keys of layer 1 are not finite"):
        scales_of((model_spec, broken))
    with pytest.raises(ExportError, match="calls attention once for each of its 4 caches"):
        Noted().check_layers(4)


def test_scales_come_back_from_json_as_they_were():
    scales = CacheScales(key=((0.1, 1e-05),), value=((3.0, 0.012345),))
    stored = json.loads(json.dumps(schema.to_json(scales)))
    assert stored == {"key": ["0.1 1e-05"], "value": ["3.0 0.012345"]}
    assert schema.from_json(CacheScales, stored) == scales
    for wrong in ({"key": ["0.1"]}, {"key": [0.1], "value": ["1"]}, ["0.1"], {"key": ["x"], "value": ["1"]}):
        with pytest.raises(ConfigError, match="must have lists of numbers"):
            schema.from_json(CacheScales, wrong)
    for wrong in ("0", "-1", "inf", "nan"):
        with pytest.raises(ConfigError, match="positive numbers"):
            schema.from_json(CacheScales, {"key": ["1"], "value": [wrong]})


# Who can read it.


def test_plain_onnxruntime_and_genai_write_the_same_text(bundle):
    ours = load(bundle).generate(PROMPT, max_new_tokens=12).token_ids
    session = ort.InferenceSession(bundle / "onnx/model.onnx")
    names = [f"past_key_values.{layer}.{part}" for layer in range(3) for part in ("key", "value")]
    past = dict.fromkeys(names, np.zeros((1, 2, 0, 16), np.int8))
    ids, text = np.array([PROMPT]), []
    for step in range(12):
        mask = np.ones((1, len(PROMPT) + step), np.int64)
        logits, *presents = session.run(None, {"input_ids": ids, "attention_mask": mask, **past})
        past = dict(zip(past, presents, strict=True))
        text.append(int(logits[0, -1].argmax()))
        ids = np.array([text[-1:]])
    assert text == ours
    parameters = og.GeneratorParams(model := og.Model(str(bundle)))
    parameters.set_search_options(max_length=len(PROMPT) + 12, min_length=len(PROMPT) + 12, do_sample=False)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.array([PROMPT], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    assert list(generator.get_sequence(0)[len(PROMPT) :]) == ours


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ops": "standard"}, "an int8 cache needs onnxruntime's attention op: --ops ort"),
        ({"ops": "portable"}, "--ops ort"),
        ({"provider": "cuda"}, "has no float32 CUDA kernel, with an int8 cache or without. Choose another precision"),
        ({"cache_precision": "int2"}, "cache_precision is 'int2'; it must be one of fp32, fp16, int8, fp8, or None"),
    ],
)
def test_what_cannot_be_is_refused(llama_folder, tmp_path, options, message):
    with pytest.raises(ExportError, match=message):
        export_model(llama_folder, tmp_path / "bundle", verify=None, **{"cache_precision": "int8", **options})
    assert not any(tmp_path.iterdir())


def test_models_without_a_kernel_or_with_an_encoder_are_refused(make_model, tmp_path):
    t5 = make_model(
        "t5", 1, auto="AutoModelForSeq2SeqLM", vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4
    )
    with pytest.raises(ExportError, match="is for decoders alone, and this model has an encoder"):
        export_model(t5, tmp_path / "bundle", cache_precision="int8", verify=None)
    narrow = make_model("gpt2", 1, vocab_size=97, n_embd=24, n_layer=1, n_head=2, n_positions=32)
    with pytest.raises(ExportError, match="cannot have an int8 cache: the kernel takes head_dim in multiples of 8"):
        export_model(narrow, tmp_path / "bundle", cache_precision="int8", verify=None)
    biased = make_model("bloom", 1, vocab_size=97, hidden_size=32, n_layer=1, n_head=2)
    on_cuda = {"cache_precision": "int8", "verify": None, "provider": "cuda", "precision": "fp16"}
    with pytest.raises(ExportError, match="the CUDA kernel takes a bias of scores or an int8 cache, and not both"):
        export_model(biased, tmp_path / "bundle", **on_cuda)
    wide = make_model(
        "llama",
        1,
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=264,
    )
    with pytest.raises(ExportError, match="heads of 256 at most over an int8 cache, and these have 264"):
        export_model(wide, tmp_path / "bundle", **on_cuda)
    assert not any(tmp_path.iterdir())


def test_nodes_are_located_elsewhere(bundle, llama_folder):
    subject = open_subject(bundle, llama_folder)
    with pytest.raises(BundleError, match="without --cache-precision"):
        locate(subject.folder, subject.manifest, subject.model_spec, subject.weights)


def test_the_command_makes_it_and_everything_says_so(llama_folder, tmp_path):
    place = str(tmp_path / "bundle")
    line = ["export", "--model", str(llama_folder), "-o", place, "--cache-precision", "int8", "--no-verify"]
    done = CliRunner().invoke(cli, line)
    assert done.exit_code == 0, done.output
    assert "cache: int8, 192 bytes per token" in done.output
    info = json.loads(CliRunner().invoke(cli, ["info", place, "--json"]).output)
    assert info["cache_bytes_per_token"] == 192
    assert "192" in CliRunner().invoke(cli, ["info", place]).output
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "| cache | 192 bytes a token, int8 |" in card
    assert "np.zeros((1, *sizes), np.int8)" in card
