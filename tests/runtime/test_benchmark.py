"""What a benchmark reports: figures that follow from their parts, costs as counted by hand, and slowness that shows.

No speed is asserted but those that a sleep makes: machines differ.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgeformer.errors import BundleError, RequestError
from edgeformer.export import export_model
from edgeformer.manifest.accounting import account
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, CUDA
from edgeformer.runtime import load
from edgeformer.runtime.measure.benchmarking import benchmark, machine, measure, startup, workloads
from edgeformer.runtime.measure.benchmarking import profile as profile_module
from edgeformer.runtime.measure.benchmarking.costs import Costs
from edgeformer.runtime.measure.benchmarking.machine import Machine, matmul_graph
from edgeformer.runtime.measure.benchmarking.profile import _kernels, measure_profile
from edgeformer.runtime.measure.benchmarking.result import Cost, Phase, Roofs, Spread
from edgeformer.runtime.measure.benchmarking.startup import measure_loading
from edgeformer.runtime.measure.benchmarking.workloads import Request, Source, plan, run
from edgeformer.runtime.sessions.session import profiled, session_options
from edgeformer.runtime.steps import new_decoder as new_decoders
from edgeformer.runtime.steps.runner import StepRunner
from edgeformer.runtime.tasks.encoders.encoder import Encoder

TABLES = {"fp32": "c = MatMul (a, b)", "int8": "c = com.microsoft.DynamicQuantizeMatMul (a, b, s)"}
BERT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 24,
}  # fmt: skip
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
WHISPER = {
    "vocab_size": 64, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_mel_bins": 20,
    "max_source_positions": 50, "max_target_positions": 24, "decoder_start_token_id": 1, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def short_turns():
    """As little work as still gives figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "READ_BYTES", 1 << 20)
        patch.setattr(machine, "TURN_SECONDS", 1e-9)
        patch.setattr(measure, "PAUSE_SECONDS", 0.0)
        patch.setattr(workloads, "TEXTS_SECONDS", 1e-9)
        yield


@pytest.fixture(scope="module")
def result(tiny_llama_bundle):
    return benchmark(tiny_llama_bundle, prompts=(8, 32), new_tokens=4, batch_sizes=(1, 3), rounds=2, threads=1)


@pytest.fixture
def manifest(tiny_llama_bundle):
    return Manifest.read(tiny_llama_bundle)


def spreads(data):
    """Every spread in a result's JSON."""
    if isinstance(data, dict):
        if "median" in data:
            yield data
        else:
            for each in data.values():
                yield from spreads(each)
    elif isinstance(data, list | tuple):
        for each in data:
            yield from spreads(each)


def exact(value):
    return Spread(median=value, low=value, high=value)


def test_every_length_is_measured_at_every_batch_size(result):
    assert [(each.tokens, each.batch_size) for each in result.workloads] == list(product((8, 32), (1, 3)))
    assert (result.task, result.provider, result.threads, result.rounds) == ("causal-lm", "cpu", 1, 2)
    assert result.notes == ()


def test_figures_are_positive_and_their_ranges_ordered(result):
    found = list(spreads(result.to_json()))
    assert len(found) == 2 + 3 + 4 * len(result.workloads)
    assert all(0 < each["low"] <= each["median"] <= each["high"] for each in found)
    for each in result.workloads:
        assert each.first_token_seconds.median < each.seconds.median


def test_fractions_follow_from_their_parts(result):
    roofs = result.roofs
    for phase in [phase for each in result.workloads for phase in (each.prefill, each.decode)]:
        speed = phase.tokens_per_second.median
        assert phase.bandwidth_fraction == pytest.approx(speed * phase.bytes_per_token / roofs.bandwidth.median)
        assert phase.fp32_fraction == pytest.approx(speed * phase.flops_per_token / roofs.fp32.median)
        assert phase.int8_fraction == pytest.approx(speed * phase.flops_per_token / roofs.int8.median)


def test_a_speed_relates_to_what_the_machine_does():
    roofs = Roofs(bandwidth=exact(100.0), fp32=exact(1000.0), int8=exact(4000.0), matmul=(1, 1, 1))
    phase = Phase.of(exact(5.0), Cost(flops=100, bytes=10), roofs)
    assert (phase.bandwidth_fraction, phase.fp32_fraction, phase.int8_fraction) == (0.5, 0.5, 0.125)
    unknown = Phase.of(exact(5.0), Cost(flops=100, bytes=10), None)
    assert (unknown.bytes_per_token, unknown.bandwidth_fraction) == (10, None)
    assert Phase.of(exact(5.0), None, roofs) == Phase(tokens_per_second=exact(5.0))


def test_the_json_form_holds_every_figure(result):
    data = json.loads(json.dumps(result.to_json()))
    assert data["workloads"][0]["decode"]["kernels"] is None, "nobody asked where the time goes"
    assert data["roofs"]["matmul"] == [256, 512, 512]  # a tiny model's 256 inputs would measure the call
    assert data["workloads"][0]["decode"].keys() == {
        "tokens_per_second", "flops_per_token", "bytes_per_token", "bandwidth_fraction", "fp32_fraction",
        "int8_fraction", "kernels",
    }  # fmt: skip
    assert data["versions"].keys() >= {"python", "numpy", "onnxruntime"}


def test_the_measured_product_is_the_first_of_a_feed_forward(manifest):
    assert measure._largest_product(manifest.model) == (256, 512)


# What a token costs


PRODUCTS = 6 * (256 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 512) + 2048 * 256
CACHE_BYTES = 6 * 2 * 4 * 32 * 4
ATTENTION = 6 * 2 * 2 * 8 * 32


def read_share(bundle, gathered=0):
    norms = 13 * 256
    size = (bundle / "onnx" / "model.onnx_data").stat().st_size
    return size * PRODUCTS / (PRODUCTS + norms + gathered)


def test_a_step_reads_weights_once_and_the_cache_of_each_row(manifest, tiny_llama_bundle):
    for batch_size in (1, 4):
        cost = Costs(manifest).decode(100, batch_size, 20)
        assert cost.bytes == pytest.approx(read_share(tiny_llama_bundle) / batch_size + 110 * CACHE_BYTES)
        assert cost.flops == 2 * PRODUCTS + 110 * ATTENTION


def test_a_table_that_is_not_the_head_is_not_read(manifest, tiny_llama_bundle):
    untied = replace(manifest, model=replace(manifest.model, tied_head=False))
    cost = Costs(untied).decode(100, 1, 20)
    assert cost.bytes == pytest.approx(read_share(tiny_llama_bundle, 2048 * 256) + 110 * CACHE_BYTES)


def test_a_prompt_reads_the_weights_once_a_chunk(manifest, tiny_llama_bundle):
    cost = Costs(manifest).prefill(300, 1)
    weights = 2 * read_share(tiny_llama_bundle)
    assert cost.bytes == pytest.approx((weights + (256 + 300) * CACHE_BYTES) / 300)
    assert cost.flops == pytest.approx(2 * PRODUCTS + 150.5 * ATTENTION)
    assert Costs(manifest).prefill(300, 8) == cost  # rows are read one by one


def test_bf16_weights_are_float32_once_they_are_loaded(manifest):
    stored, read = (
        Costs(replace(manifest, plan=replace(manifest.plan, precision=each))).decode(0, 1, 0).bytes
        for each in ("fp32", "bf16")
    )
    assert read == 2 * stored


def test_prompts_compute_the_last_part_for_the_last_token(manifest):
    whole, last = (Costs(manifest, last_logits=each).prefill(300, 1) for each in (False, True))
    behind = 256 * 256 + 3 * 256 * 512 + 2048 * 256  # the last attention: of a chunk's last token alone
    assert last.flops == pytest.approx(2 * (PRODUCTS - behind * 298 / 300) + 150.5 * ATTENTION)
    assert last.bytes == whole.bytes


def test_layers_see_no_further_than_their_windows(manifest):
    attention = replace(manifest.model.blocks[0].attention, window=16)
    blocks = tuple(replace(block, attention=attention) for block in manifest.model.blocks)
    windowed = Costs(replace(manifest, model=replace(manifest.model, blocks=blocks)))
    near, far = windowed.decode(100, 1, 20), windowed.decode(900, 1, 20)
    assert near == far
    assert near.flops == 2 * PRODUCTS + 16 * ATTENTION


def test_what_a_foreign_module_costs_is_not_known(manifest):
    foreign = replace(manifest, model=None)
    assert Costs(foreign).prefill(8, 1) is Costs(foreign).decode(8, 1, 4) is None
    assert "a module of yours" in next(measure._notes(foreign, CPU, True, True))


# Where the time goes


def counted(folder, graph, threads=1):
    """How many nodes of each op onnxruntime runs of a graph."""
    options = session_options(threads)
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath, load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)


def counts(kernels):
    return Counter({each.op: each.count for each in kernels})


def test_a_profile_has_every_kernel_that_runs(tiny_llama_bundle, tmp_path):
    found = measure_profile(Source(str(tiny_llama_bundle), "cpu", 1), Request(tokens=300, batch_size=2, new_tokens=3))
    nodes = counted(tmp_path, tiny_llama_bundle / "onnx" / "model.onnx")
    assert counts(found.decode) == nodes, "one step for both rows"
    assert counts(found.prefill) == {op: 4 * count for op, count in nodes.items()}, "two chunks of each row"
    for kernels in found:
        assert sum(each.fraction for each in kernels) == pytest.approx(1)
        assert [each.fraction for each in kernels] == sorted((each.fraction for each in kernels), reverse=True)
        wholes = [each.count * each.seconds / each.fraction for each in kernels if each.fraction]
        assert wholes == pytest.approx([wholes[0]] * len(wholes))


def test_of_a_pair_reading_is_the_encoder_and_a_step_the_decoder(translator, tmp_path):
    found = measure_profile(Source(str(translator), "cpu", 1), Request(tokens=8, batch_size=1, new_tokens=3))
    for kernels, graph in zip(found, ("encoder_model.onnx", "decoder_model.onnx"), strict=True):
        assert counts(kernels) == counted(tmp_path, translator / "onnx" / graph)


def test_an_encoder_has_no_step(encoder, tmp_path):
    found = measure_profile(Source(str(encoder), "cpu", 1), Request(tokens=8, batch_size=2, new_tokens=0))
    assert found.decode is None
    assert counts(found.prefill) == counted(tmp_path, encoder / "onnx" / "model.onnx")


def test_a_graph_that_runs_more_often_counts_for_more():
    runs = [{(0, "a", "Mul"): 3.0}] * 4 + [{(1, "b", "Add"): 4.0}] * 2
    found = [(each.op, each.count, each.fraction) for each in _kernels(runs, 2)]
    assert found == [("Mul", 2, pytest.approx(0.6)), ("Add", 1, pytest.approx(0.4))]


def test_times_are_medians_of_the_nodes_and_summed_by_op():
    runs = [
        {(0, "a", "Mul"): 3.0, (0, "b", "Mul"): 5.0, (0, "c", "Add"): 2.0},
        {(0, "a", "Mul"): 1.0, (0, "b", "Mul"): 5.0, (0, "c", "Add"): 900.0},  # somebody else was running
        {(0, "a", "Mul"): 3.0, (0, "b", "Mul"): 4.0, (0, "c", "Add"): 2.0},
    ]
    found = [(each.op, each.count, each.fraction, 1e6 * each.seconds) for each in _kernels(runs, 3)]
    assert found == [("Mul", 2, pytest.approx(0.8), pytest.approx(4)), ("Add", 1, pytest.approx(0.2), pytest.approx(2))]


def test_a_profile_that_onnxruntime_cut_off_is_refused(tiny_llama_bundle, monkeypatch):
    monkeypatch.setattr(profile_module, "MOST_EVENTS", 100)
    with pytest.raises(RequestError, match="more events than onnxruntime keeps; ask for fewer or shorter"):
        measure_profile(Source(str(tiny_llama_bundle), "cpu", 1), Request(tokens=8, batch_size=1, new_tokens=2))


def test_a_profile_is_of_the_cpu_alone(tiny_llama_bundle, monkeypatch):
    monkeypatch.setattr(measure, "choose_provider", lambda *_: CUDA)
    monkeypatch.setattr(measure, "measure_memory", lambda *_: pytest.fail("measured"))
    with pytest.raises(RequestError, match="a profile is measured on the CPU only; use provider cpu, or leave"):
        benchmark(tiny_llama_bundle, profile=True)


def test_no_session_is_profiled_but_those_that_are_asked_for(tiny_llama_bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with profiled(tmp_path) as sessions:
        inside = load(tiny_llama_bundle, threads=1)
    outside = load(tiny_llama_bundle, threads=1)
    assert sessions == [inside.session]
    run(outside, REQUEST)
    noted = json.loads(Path(inside.session.end_profiling()).read_text())
    assert not any(event["name"] == "model_run" for event in noted)
    assert outside.session.end_profiling() == ""


# Slowness shows


REQUEST = Request(tokens=8, batch_size=2, new_tokens=5)


def slowed(function, seconds):
    def slow(*arguments, **options):
        time.sleep(seconds)
        return function(*arguments, **options)

    return slow


def test_a_slow_step_shows_in_decoding_alone(tiny_llama_bundle, monkeypatch):
    monkeypatch.setattr(StepRunner, "decode_rows", slowed(StepRunner.decode_rows, 0.2))
    timing = run(load(tiny_llama_bundle, threads=1), REQUEST)
    assert timing.total - timing.first_token >= 4 * 0.2
    assert timing.prefill <= timing.first_token < 0.8


def test_a_slow_prompt_shows_in_prefill_and_in_the_first_token(tiny_llama_bundle, monkeypatch):
    monkeypatch.setattr(StepRunner, "prefill", slowed(StepRunner.prefill, 0.4))
    timing = run(load(tiny_llama_bundle, threads=1), REQUEST)
    assert timing.first_token >= timing.prefill >= 2 * 0.4
    assert timing.total - timing.first_token < 0.8


def test_a_slow_allocation_shows_in_the_first_token_alone(tiny_llama_bundle, monkeypatch):
    monkeypatch.setattr(new_decoders, "new_static_cache", slowed(new_decoders.new_static_cache, 0.5))
    timing = run(load(tiny_llama_bundle, threads=1), REQUEST)
    assert timing.first_token >= 0.5 > timing.prefill


def test_every_round_counts_but_the_first():
    values = iter(range(100))
    steps = measure._Steps(lambda what, part: None, 12)
    timings, rates = measure._take_turns({"a": lambda: next(values)}, {"b": lambda: next(values)}, 3, steps)
    assert timings == {"a": [3, 4, 7]}  # who begins changes from round to round
    assert rates == {"b": [2, 5, 6]}


def test_progress_goes_from_nothing_to_all(tiny_llama_bundle, monkeypatch):
    monkeypatch.setattr(measure, "measure_memory", lambda *_: None)
    monkeypatch.setattr(measure, "measure_loading", lambda *_: startup.Loading(imports=1.0, load=2.0))
    told = []
    options = {"prompts": (8,), "new_tokens": 2, "rounds": 1, "threads": 1}
    result = benchmark(tiny_llama_bundle, **options, progress=lambda *step: told.append(step))
    assert [what for what, _ in told[:3]] == ["memory", "loading", "1 × 8 tokens"]
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert (parts[0], parts[-1]) == (0, 1 - 1 / len(parts))
    assert result.load_seconds == exact(2.0)
    assert result.notes == ("this system does not tell the memory of a process",)


# Loading and memory


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="2026-11-22: only Linux has /proc/self/status")
def test_memory_is_that_of_the_fresh_process(result, tiny_llama_bundle):
    memory = result.memory
    assert 0 < memory.before_load_bytes <= memory.peak_bytes
    assert max(memory.private_bytes, memory.file_bytes) <= memory.peak_bytes
    # This process holds torch; a child's getrusage would report its parent's peak.
    assert memory.peak_bytes < startup._resident()["peak"]
    assert memory.private_bytes > (tiny_llama_bundle / "onnx" / "model.onnx_data").stat().st_size


def test_a_process_that_fails_is_an_error(tmp_path):
    with pytest.raises(
        BundleError, match="^a fresh process could not run .*there is no folder .*ask for a smaller batch"
    ):
        measure_loading(Source(str(tmp_path / "none"), "cpu", 1))


def test_the_benchmark_imports_neither_torch_nor_onnx(tiny_llama_bundle):
    code = f"""
import sys
from edgeformer.runtime.measure.benchmarking import benchmark, measure, startup
measure.measure_memory = lambda *_: None
measure.measure_loading = lambda *_: startup.Loading(imports=1.0, load=1.0)
result = benchmark({str(tiny_llama_bundle)!r}, prompts=[8], new_tokens=2, rounds=1, threads=1)
print({{"torch", "onnx", "matplotlib", "safetensors"}} & sys.modules.keys(), result.roofs.int8.median > 0)
"""
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, cwd=os.path.dirname(__file__), check=True)
    assert done.stdout == "set() True\n"


# The machine


@pytest.mark.parametrize("kind", TABLES)
def test_the_graphs_of_products_are_what_they_say(kind):
    model = onnx.load_from_string(matmul_graph(kind, 640, 1536))
    onnx.checker.check_model(model)
    text = onnx.printer.to_text(model)
    assert TABLES[kind] in text
    constants = {each.name: onnx.numpy_helper.to_array(each).tolist() for each in model.graph.initializer}
    assert constants == ({"shape": [640, 1536]} | ({"width": [1536]} if kind == "int8" else {}))
    assert "int8[1] {1}" in text if kind == "int8" else "float[1] {1}" in text


def test_products_compute_what_they_say():
    left = np.random.default_rng(0).standard_normal((4, 640), np.float32)
    for kind in TABLES:
        (found,) = machine._open(matmul_graph(kind, 640, 512), 1).run(None, {"a": left})
        assert np.abs(found - left.sum(1, keepdims=True)).max() < (1e-3 if kind == "fp32" else 3)


def test_sizes_of_products_stay_between_limits():
    assert Machine(1, 64, 96).matmul == (256, 512, 512)
    assert Machine(1, 600, 100_000).matmul == (256, 600, 4096)


# Encoders and encoder-decoders


@pytest.fixture(scope="module")
def encoder(make_model, tmp_path_factory):
    folder = make_model("bert", auto="AutoModelForMaskedLM", **BERT)
    return export_model(folder, tmp_path_factory.mktemp("bundles") / "bert", verify=None).path


@pytest.fixture(scope="module")
def translator(make_model, tmp_path_factory):
    folder = make_model("t5", auto="AutoModelForSeq2SeqLM", **T5, decoder_start_token_id=0)
    bundle = tmp_path_factory.mktemp("bundles") / "t5"
    return export_model(folder, bundle, context_length=40, verify=None).path


@pytest.fixture(scope="module")
def listener(make_model, tmp_path_factory):
    folder = make_model("whisper", auto="AutoModelForSpeechSeq2Seq", **WHISPER)
    return export_model(folder, tmp_path_factory.mktemp("bundles") / "whisper", verify=None).path


@pytest.fixture
def no_children(monkeypatch):
    """Without the processes that measure loading."""
    monkeypatch.setattr(measure, "measure_memory", lambda *_: None)
    monkeypatch.setattr(measure, "measure_loading", lambda *_: startup.Loading(imports=1.0, load=2.0))


@pytest.mark.usefixtures("no_children")
def test_an_encoder_reads_and_writes_nothing(encoder):
    result = benchmark(encoder, batch_sizes=(1, 2), rounds=1, threads=1)
    assert [(each.tokens, each.batch_size, each.new_tokens) for each in result.workloads] == [(24, 1, 0), (24, 2, 0)]
    one, two = result.workloads
    assert one.decode is None and one.first_token_seconds is None
    assert one.prefill.tokens_per_second.median == pytest.approx(24 / one.seconds.median)
    assert two.prefill.tokens_per_second.median == pytest.approx(48 / two.seconds.median)
    layer = 4 * 32 * 32 + 2 * 32 * 48
    products = 2 * layer + 32 * 32 + 64 * 32
    assert one.prefill.flops_per_token == 2 * products + 24 * 2 * 2 * 2 * 32
    assert two.prefill.bytes_per_token == one.prefill.bytes_per_token / 2


@pytest.mark.usefixtures("no_children")
def test_an_encoder_decoder_reads_a_source_and_decodes(translator):
    (workload,) = benchmark(translator, prompts=(16,), new_tokens=6, rounds=1, threads=1).workloads
    encoder = 2 * (4 * 32 * 32 + 2 * 32 * 48)
    cross = 2 * 2 * 32 * 32
    decoder = encoder + 2 * 2 * 32 * 32 + 64 * 32
    assert workload.prefill.flops_per_token == 2 * (encoder + cross) + 16 * 2 * 2 * 2 * 32
    size = (translator / "onnx" / "model.onnx_data").stat().st_size
    cache = 2 * 2 * 32 * 4
    # 4 tokens are written by the middle of decoding.
    assert workload.decode.flops_per_token == 2 * decoder + (4 + 16) * 2 * 2 * 2 * 32
    share = decoder / account(Manifest.read(translator).model).parameters
    assert workload.decode.bytes_per_token == pytest.approx(size * share + (4 + 16) * cache)


def test_a_slow_encoder_shows_in_reading_alone(translator, monkeypatch):
    model = load(translator, threads=1)
    monkeypatch.setattr(model, "run_encoder", slowed(model.run_encoder, 0.4))
    timing = run(model, REQUEST)
    assert timing.first_token >= timing.prefill >= 0.4
    assert timing.total - timing.first_token < 0.4


@pytest.mark.usefixtures("no_children")
def test_recordings_have_one_length(listener):
    (workload,) = benchmark(listener, new_tokens=4, rounds=1, threads=1).workloads
    assert (workload.tokens, workload.new_tokens) == (50, 4)
    with pytest.raises(
        RequestError, match="^lengths of prompts are not for .*always takes 1 s of sound.* Leave them out"
    ):
        plan(Manifest.read(listener), [8], None, [1])


def test_a_text_is_read_again_until_it_can_be_timed(encoder, monkeypatch):
    calls = []
    monkeypatch.setattr(workloads, "TEXTS_SECONDS", 0.1)
    monkeypatch.setattr(Encoder, "run", lambda self, texts: (calls.append(len(texts)), time.sleep(0.03)))
    timing = run(load(encoder, threads=1), Request(tokens=8, batch_size=2, new_tokens=0))
    assert calls in ([2, 2], [2, 2, 2], [2, 2, 2, 2])
    assert timing.total >= 0.03


# What cannot be done


def test_what_is_not_given_is_what_the_model_can_do(manifest, encoder, translator):
    assert [each.tokens for each in plan(manifest, None, None, [1])] == [128, 512]
    assert {each.new_tokens for each in plan(manifest, None, None, [1])} == {64}
    assert [each.tokens for each in plan(manifest, None, 700, [1])] == [128]
    assert [each.tokens for each in plan(manifest, None, 1000, [1])] == [24]
    assert plan(Manifest.read(translator), None, None, [1])[0].new_tokens == 20
    assert plan(Manifest.read(encoder), None, None, [1])[0].new_tokens == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": [1000]}, "a prompt of 1000 tokens and 64 new ones do not fit; the model's context is 1024 tokens"),
        ({"prompts": [8, 0]}, "a prompt is 0; it must be at least 1"),
        ({"prompts": []}, "there is no length to measure; give at least one"),
        ({"batch_sizes": [0]}, "the batch size is 0; it must be at least 1"),
        ({"batch_sizes": []}, "there is no batch size to measure; give at least one"),
        ({"new_tokens": 1}, "the number of new tokens is 1; it must be at least 2: the first comes from the prompt"),
        ({"new_tokens": 1024}, "1024 new tokens do not fit; the model's context is 1024 tokens, a prompt included"),
        ({"rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"threads": 0}, "threads is 0; it must be a number from 1 to "),
        ({"provider": "cuda"}, "provider cuda was asked for, and the installed onnxruntime has no CUDA"),
    ],
)
def test_what_a_decoder_cannot_do(tiny_llama_bundle, options, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        benchmark(tiny_llama_bundle, **options)


def test_what_the_others_cannot_do(encoder, translator):
    with pytest.raises(RequestError, match="^a text of 25 tokens is too long; the model takes 24 at most"):
        benchmark(encoder, prompts=[25])
    with pytest.raises(RequestError, match="^new tokens are not for .*: an encoder generates none. Leave them out"):
        benchmark(encoder, new_tokens=4)
    with pytest.raises(RequestError, match="^a source of 41 tokens is too long; the model takes 40 at most"):
        benchmark(translator, prompts=[41])
    with pytest.raises(
        RequestError, match="^40 new tokens do not fit; the model's context is 40 tokens, the start token"
    ):
        benchmark(translator, new_tokens=40)
