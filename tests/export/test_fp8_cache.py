"""A float8 cache for CUDA: what the graph is made of, its scales, its twin on the CPU, and faults of it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, numpy_helper
from slow_rows import slow_after, slow_unless

from edgeformer.check import check
from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.documents import schema
from edgeformer.errors import ConfigError, ExportError, ParityError, RequestError
from edgeformer.export import export_model
from edgeformer.export.calibrate import caches as cache_calibration
from edgeformer.export.calibrate.caches import calibrate_caches
from edgeformer.export.importers.opened_bundle import open_subject
from edgeformer.export.lower import GraphJob
from edgeformer.export.parity import fp8_twin
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.fp8_twin import attend_in_float32
from edgeformer.export.parity.trials.quantized_cache import judge_quantized_cache, steps_at
from edgeformer.export.parity.twin import replace_fp8_attention, write_twin
from edgeformer.export.parity.verify import verify_graph
from edgeformer.export.progress import no_progress
from edgeformer.export.reference.quantized_caches import RoundedCaches, fake_quantize_cache
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.cache_scales import CacheScales
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.plan import ExportPlan
from edgeformer.manifest.providers import CPU
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import Engine, load
from edgeformer.runtime.sessions.narrow_floats import FLOAT8, FLOAT8_NUMBERS
from edgeformer.runtime.sessions.session import open_session
from edgeformer.runtime.steps.decode_graph import DecodeGraph
from edgeformer.runtime.steps.device import CapturedSteps
from edgeformer.runtime.steps.new_decoder import device_runner
from edgeformer.runtime.tasks import causal_lm

FP8 = {"cache_precision": "fp8", "provider": "cuda", "precision": "fp16"}
NUMBERS, SCALES, CLIPPED = (
    f"fp8 cache, {name}" for name in ("floats: beyond rounding", "scales: differing numbers", "scales: clipped")
)
SMALL = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES = {
    "gemma2": SMALL | {"head_dim": 16, "sliding_window": 6},
    "qwen3": SMALL | {"head_dim": 16},
    "phi": SMALL | {"hidden_size": 128, "partial_rotary_factor": 0.5},
    "gpt_oss": SMALL | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
}
"""Soft-caps and windows; norms of the heads; rotation of half a head; attention sinks."""


@pytest.fixture(scope="module")
def bundle(llama_folder, tmp_path_factory):
    return export_model(llama_folder, tmp_path_factory.mktemp("bundles") / "llama", verify=None, **FP8).path


@pytest.fixture(scope="module")
def twin(bundle, llama_folder, tmp_path_factory):
    """The float32 twin of the bundle, which the CPU runs."""
    return write_twin(open_subject(bundle, llama_folder), tmp_path_factory.mktemp("twin"), no_progress)


@pytest.fixture(scope="module")
def model(twin, tmp_path_factory):
    """The twin, loaded on the CPU, where its cache is one of bytes, too."""
    place = shutil.copytree(twin.folder, tmp_path_factory.mktemp("loaded") / "twin")
    running = replace_fp8_attention(replace(twin, folder=place))
    running.manifest.write(place)
    return load(place, provider="cpu")


def attention(graph):
    return [node for node in graph.node if node.op_type == "GroupQueryAttention"]


def test_the_graph_has_what_the_kernel_of_cuda_demands(bundle):
    scales = Manifest.read(bundle).cache_scales
    assert scales.precision == "fp8" and {len(layer) for layer in (*scales.key, *scales.value)} == {1}
    graph = onnx.load(bundle / "onnx/model.onnx", load_external_data=False).graph
    declared = [value for value in (*graph.input, *graph.output) if value.name.startswith(("past", "present"))]
    assert {value.type.tensor_type.elem_type for value in declared} == {TensorProto.FLOAT8E4M3FN}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for layer, node in enumerate(attention(graph)):
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        assert (given["k_quant_type"], given["v_quant_type"], given["kv_cache_bit_width"]) == (*[b"PER_TENSOR"] * 2, 8)
        for place, part in ((12, scales.key), (13, scales.value)):
            np.testing.assert_array_equal(numpy_helper.to_array(constants[node.input[place]]), np.float32(part[layer]))


def test_every_fp8_layer_runs_on_the_gpu(bundle, tmp_path):
    report = check(bundle, "cuda")
    assert report.audit.verdict == "loads", report.audit.findings
    broken = shutil.copytree(bundle, tmp_path / "broken")
    graph = onnx.load(broken / "onnx/model.onnx", load_external_data=False)
    for value in (*graph.graph.input, *graph.graph.output):
        if value.name.startswith(("past", "present")):
            value.type.tensor_type.elem_type = TensorProto.FLOAT8E5M2
    onnx.save(graph, broken / "onnx/model.onnx")
    assert "there is no kernel" in str(check(broken, "cuda").audit.findings[0])


@pytest.mark.parametrize("family", slow_unless(("gemma2", "gpt_oss"), FAMILIES))
def test_its_twin_is_at_parity_over_every_kind_of_attention(make_model, tmp_path, family):
    result = export_model(make_model(family, 3, **FAMILIES[family]), tmp_path / "bundle", **FP8)
    names = {check.name for check in result.report.checks}
    assert {NUMBERS, SCALES, CLIPPED, "fp8 cache, chunks: max error", "twin: other nodes"} <= names
    assert 1e-7 < result.report.quantization.mean_kl < 0.1


@pytest.mark.parametrize(
    "options",
    slow_after(2, [{"precision": "bf16"}, {"precision": "int4", "arithmetic": "bf16"}, {"precision": "int8"}]),
    ids=str,
)
def test_it_stands_beside_every_precision_for_cuda(llama_folder, tmp_path, options):
    result = export_model(llama_folder, tmp_path / "bundle", **FP8 | options)
    assert result.report.passed and NUMBERS in {check.name for check in result.report.checks}


# Faults.


def changed(place, change):
    """Change a graph, whose weights lie beside it."""
    model = onnx.load(place, load_external_data=False)
    change(model.graph)
    place.write_bytes(model.SerializeToString())


def another_scale(graph):
    """The keys of the second layer by a scale that is 6 % wider, in which no number keeps its place."""
    name = attention(graph)[1].input[12]
    tensor = next(each for each in graph.initializer if each.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.06), name))


def keys_and_values_exchanged(graph):
    names = attention(graph)[2].input
    names[12], names[13] = names[13], names[12]


@pytest.mark.parametrize("fault", [another_scale, keys_and_values_exchanged])
def test_faults_of_the_scales_are_found_by_what_is_computed(twin, llama_folder, tmp_path, fault):
    def failures(name, change):
        place = shutil.copytree(twin.folder, tmp_path / name)
        changed(place / "onnx/model.onnx", change)
        assert attend_in_float32(place / "onnx/model.onnx") == 3
        report = verify_graph(place, twin.manifest, twin.model_spec, twin.weights)
        return {check.name for check in report.failures()}

    assert failures("right", lambda graph: None) == set()
    found = failures("wrong", fault)
    assert NUMBERS in found and any(name.endswith("max error") for name in found)


def test_a_scale_missing_in_the_manifest_is_found(bundle, llama_folder, tmp_path):
    place = shutil.copytree(bundle, tmp_path / "wrong")
    changed(place / "onnx/model.onnx", another_scale)
    subject = open_subject(bundle, llama_folder)
    report = verify_graph(place, subject.manifest, subject.model_spec, subject.weights)
    assert {check.name for check in report.failures()} == {SCALES}
    assert next(check.value for check in report.checks if check.name == SCALES) == 1


def per_channel(graph):
    for node in attention(graph):
        next(each for each in node.attribute if each.name == "k_quant_type").s = b"PER_CHANNEL"


def values_not_quantized(graph):
    for node in attention(graph):
        next(each for each in node.attribute if each.name == "v_quant_type").s = b"NONE"


def integers_declared(graph):
    for value in (*graph.input, *graph.output):
        if value.name.startswith(("past", "present")):
            value.type.tensor_type.elem_type = TensorProto.INT8


@pytest.mark.parametrize("fault", [per_channel, values_not_quantized, integers_declared])
def test_another_kind_of_cache_is_found_in_the_graph_for_cuda(bundle, llama_folder, tmp_path, fault):
    place = shutil.copytree(bundle, tmp_path / "wrong")
    changed(place / "onnx/model.onnx", fault)
    subject = open_subject(bundle, llama_folder)
    report = verify_graph(place, subject.manifest, subject.model_spec, subject.weights)
    assert {check.name for check in report.failures()} == {"twin: other nodes"}


def unrounded(emit, stored, scale):
    """In the place of what float8 stands for, what is rounded to it."""
    clipped = stored.producer().inputs[0]  # which the Cast to float8 reads
    return emit("Mul", clipped, scale)


def test_prompts_that_attend_before_rounding_are_right(twin, tmp_path, monkeypatch):
    """New keys are read before they are rounded here, as CUDA's kernel reads them in a prompt over an empty cache."""
    monkeypatch.setattr(fp8_twin, "_numbers", unrounded)
    place = shutil.copytree(twin.folder, tmp_path / "twin")
    attend_in_float32(place / "onnx/model.onnx")
    graph = Graph(open_session(place / "onnx/model.onnx"), twin.manifest, CPU)

    def failed(**options):
        checks = judge_quantized_cache(graph, twin.model_spec, twin.weights, **options)
        return {check.name.partition(",")[0].partition(":")[0] for check in checks if not check.passed}

    assert failed() >= {"prefill", "steps", "chunks", "batch"}
    assert failed(exact_prompts=True) >= {"steps", "chunks", "batch"}
    assert "prefill" not in failed(exact_prompts=True)


def test_a_twin_that_attends_to_unrounded_keys_would_be_found(llama_folder, tmp_path, monkeypatch):
    """The cache is right then, and only what the second attention reads is not."""
    monkeypatch.setattr(fp8_twin, "_numbers", unrounded)
    with pytest.raises(ParityError, match="fp8 cache, prefill: max error"):
        export_model(llama_folder, tmp_path / "b", **FP8)


def test_scales_that_clip_are_found(llama_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_calibration, "MARGIN", 0.25)
    with pytest.raises(ParityError, match="fp8 cache, scales: clipped"):
        export_model(llama_folder, tmp_path / "bundle", **FP8)


# Numbers.


def test_rounding_is_that_of_the_cast_of_onnxruntime():
    """As the twin does: by 1 / scale, to the nearest, ties to even, and the largest number beyond the range."""
    numbers = np.array([0.5, 17, 19, -1.0625, 448, 463, 1e4, -1e4, 2**-9, 2**-10, 3 * 2**-11, 0], np.float32)
    emit = onnx.helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)
    back = onnx.helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT)
    values = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(numbers)]) for name in "xz"]
    graph = onnx.helper.make_graph([emit, back], "casts", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    [expected] = ort.InferenceSession(model.SerializeToString()).run(None, {"x": numbers})
    rounded = fake_quantize_cache(torch.from_numpy(numbers), torch.ones(1), "fp8")
    np.testing.assert_array_equal(rounded, expected)
    assert rounded.tolist() == [0.5, 16, 20, -1.0, 448, 448, 448, -448, 2**-9, 0, 2**-9, 0]
    scaled = fake_quantize_cache(torch.tensor([3.3]), torch.tensor([0.01]), "fp8")
    assert scaled.item() == pytest.approx(3.2, rel=1e-6)


def test_steps_are_the_distances_of_neighbours():
    positive = FLOAT8_NUMBERS[:127].astype(np.float64)
    np.testing.assert_array_equal(np.diff(positive), steps_at((positive[:-1] + positive[1:]) / 2, "fp8"))
    np.testing.assert_array_equal(steps_at(-positive[1:], "fp8"), steps_at(positive[1:], "fp8"))
    assert set(steps_at(positive, "int8")) == {1}


def test_the_scale_has_a_quarter_of_headroom(llama_folder):
    source = open_source(llama_folder)
    model = model_spec_of(source.config), source.weights()
    channels, layers = (
        calibrate_caches(GraphJob(model_spec=model[0], weights=model[1], plan=ExportPlan(cache_precision=each)))
        for each in ("int8", "fp8")
    )
    for part in ("key", "value"):
        widest = np.array(getattr(channels, part)).max(1) * 127
        np.testing.assert_allclose(np.array(getattr(layers, part))[:, 0] * 448, widest, rtol=2e-3)


def test_scales_come_back_from_json_as_they_were():
    scales = CacheScales(key=((0.1,),), value=((3.0,),), precision="fp8")
    stored = json.loads(json.dumps(schema.to_json(scales)))
    assert stored == {"key": ["0.1"], "value": ["3.0"], "precision": "fp8"}
    assert schema.from_json(CacheScales, stored) == scales
    with pytest.raises(ConfigError, match="must be int8 or fp8"):
        schema.from_json(CacheScales, stored | {"precision": "fp4"})
    with pytest.raises(ConfigError, match="one number a layer"):
        schema.from_json(CacheScales, stored | {"key": ["0.1 0.2"]})


# Who takes it.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provider": "cpu"}, "has an fp8 cache on CUDA alone. Choose cache_precision int8, which the CPU has too"),
        ({"ops": "standard"}, "an fp8 cache needs onnxruntime's attention op: --ops ort"),
        ({"precision": "fp32"}, "has no float32 CUDA kernel, with an fp8 cache or without"),
    ],
)
def test_what_cannot_be_is_refused(llama_folder, tmp_path, options, message):
    with pytest.raises(ExportError, match=message):
        export_model(llama_folder, tmp_path / "bundle", verify=None, **FP8 | options)
    assert not any(tmp_path.iterdir())


def test_models_without_a_kernel_are_refused(make_model, tmp_path):
    biased = make_model("bloom", 1, vocab_size=97, hidden_size=32, n_layer=1, n_head=2)
    with pytest.raises(ExportError, match="the CUDA kernel takes a bias of scores or an fp8 cache, and not both"):
        export_model(biased, tmp_path / "bundle", verify=None, **FP8)
    wide = make_model("llama", 1, **SMALL | {"num_hidden_layers": 1, "head_dim": 264})
    with pytest.raises(ExportError, match="heads of 256 at most over an fp8 cache, and these have 264"):
        export_model(wide, tmp_path / "bundle", verify=None, **FP8)


def test_the_cpu_is_refused_by_a_sentence(bundle):
    with pytest.raises(RequestError, match="caches keys and values as float8, for which onnxruntime .* on CUDA alone"):
        load(bundle, provider="cpu")


def test_the_command_makes_it_and_everything_says_so(llama_folder, tmp_path):
    place = str(tmp_path / "bundle")
    line = ["export", "--model", str(llama_folder), "-o", place, "--no-verify"]
    line += ["--cache-precision", "fp8", "--provider", "cuda", "--precision", "fp16"]
    done = CliRunner().invoke(cli, line)
    assert done.exit_code == 0, done.output
    assert "cache: fp8, 192 bytes per token" in done.output
    info = json.loads(CliRunner().invoke(cli, ["info", place, "--json"]).output)
    assert info["cache_bytes_per_token"] == 192
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "| cache | 192 bytes a token, fp8 |" in card
    assert "numpy has no float8e4m3fn" in card and "np.zeros" not in card


def test_the_twin_has_the_logits_of_eager_pytorch_that_rounds(model, twin):
    """By our runtime on the CPU, over a cache of bytes: a prompt and steps."""
    decoder = model.new_decoder(1, 24)
    tokens = np.random.default_rng(0).integers(3, 130, 20)
    logits = [decoder.prefill(0, tokens[:12]).copy()]
    logits += [decoder.decode_one_token([token])[0].copy() for token in tokens[12:]]
    assert {buffer.dtype for buffer in decoder.cache._buffers} == {np.dtype(FLOAT8)}
    distances = []
    for entrance in (RoundedCaches(twin.manifest.cache_scales), None):
        reference = Reference(twin.model_spec, twin.weights, torch.float32, entrance)
        expected = reference.run(torch.from_numpy(tokens)[None])[0][0, 11:].numpy()
        distances.append(np.abs(np.stack(logits) - expected).mean())
    assert distances[0] < 0.3 * distances[1], "as far as float32 and ties allow, and not as far as rounding takes it"


PROMPTS = [np.random.default_rng(row).integers(3, 130, length).tolist() for row, length in enumerate((20, 7, 13))]


def test_a_decoder_of_devices_writes_the_same_tokens(model, monkeypatch):
    """Over kept memory, and with rows that are cut off and copied as bytes."""
    options = {"max_new_tokens": 8, "ignore_eos": True}
    expected = [each.token_ids for each in model.generate(PROMPTS, **options)]
    captured = CapturedSteps(64)

    def decoder_of_devices(session, manifest, rows, tokens, provider, **_):
        made = device_runner(DecodeGraph(session, manifest), rows, tokens, provider, captured)
        made.cache._copies.on_device = True
        return made

    monkeypatch.setattr(causal_lm, "new_decoder", decoder_of_devices)
    for _ in range(2):
        assert [each.token_ids for each in model.generate(PROMPTS, **options)] == expected
    decoder = model.new_decoder(2, 40)
    decoder.prefill(0, PROMPTS[0])
    decoder.prefill(1, PROMPTS[1])
    first = [pair[0][0].copy() for pair in decoder.cache.read(20)]
    decoder.reorder(np.array([1, 0]))
    for before, after in zip(first, decoder.cache.read(20), strict=True):
        np.testing.assert_array_equal(before, after[0][1])


def test_held_logits_stay_when_step_memory_is_lent_again(model, monkeypatch):
    captured = CapturedSteps(64)

    def new():
        return device_runner(DecodeGraph(model.session, model.manifest), 1, 40, CPU, captured)

    decoder = new()
    decoder.prefill(0, PROMPTS[0])
    held = decoder.decode_one_token([4])
    memory, before = decoder.memory, held.copy()
    del decoder
    other = new()
    assert other.memory is memory
    other.prefill(0, PROMPTS[1])
    assert not np.array_equal(other.decode_one_token([9]), before)
    np.testing.assert_array_equal(held, before)


def test_a_session_is_saved_and_loaded(model, tmp_path):
    prompt = [*PROMPTS[0], *PROMPTS[1]]
    decoder = model.new_decoder(1, 60)
    model.prefix_cache.keep(decoder, 0, prompt, decoder.prefill(0, prompt))
    model.save_session(tmp_path / "session")
    model.prefix_cache.clear()
    model.load_session(tmp_path / "session")
    kept = model.prefix_cache.latest()
    assert kept.tokens.tolist() == prompt and {each.dtype for each in kept.tensors} == {np.dtype(FLOAT8)}
    for tensor, written in zip(kept.tensors, decoder.cache.read_tokens(0, 0, len(prompt)), strict=True):
        np.testing.assert_array_equal(tensor, written)


def test_an_engine_keeps_prefixes_of_bytes(model):
    with Engine(model, max_rows=2, memory=2**20) as engine:

        def ask(prompt):
            return engine.submit(prompt, max_new_tokens=8, ignore_eos=True).finish(60)

        first, again = ask(PROMPTS[0]), ask(PROMPTS[0])
        longer = ask([*PROMPTS[0], *first.token_ids, 5])
    assert first.token_ids == again.token_ids == model.generate(PROMPTS[0], max_new_tokens=8, ignore_eos=True).token_ids
    assert first.cached_tokens == 0 < again.cached_tokens < longer.cached_tokens
