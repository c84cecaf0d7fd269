"""The audit agrees with onnxruntime's CUDA provider itself, in a process where CUDA is simulated.

EDGEFORMER_ONNXRUNTIME_GPU names a wheel of onnxruntime-gpu for this interpreter, or a folder where one is unpacked.
"""

import ast
import os
import sys
from collections import Counter
from pathlib import Path

import onnx
import pytest
from cuda_cases import CASES, FP8, INT8, attention

from edgeformer.check.providers.audit import audit_graph
from edgeformer.check.providers.kernel_table import TABLE, kernel_table
from edgeformer.check.providers.placement import place
from edgeformer.check.providers.typed_nodes import typed_nodes
from edgeformer.export import export_model

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from verification.cuda.cuda_kernels import merged, table_of, text_of
from verification.cuda.simulated_cuda.session import SimulatedCuda

WHEEL = os.environ.get("EDGEFORMER_ONNXRUNTIME_GPU")
needs_the_wheel = pytest.mark.skipif(
    not WHEEL, reason="2026-11-24: the provider is in a wheel of 250 MB; EDGEFORMER_ONNXRUNTIME_GPU names none"
)


@pytest.fixture(scope="module")
def simulated():
    session = SimulatedCuda(Path(WHEEL))
    yield session
    session.close()


@needs_the_wheel
@pytest.mark.slow
def test_the_table_is_what_the_provider_lists(simulated):
    table = table_of(simulated.ask("registry"), kernel_table().package)
    assert text_of(table) == TABLE.read_text()


@needs_the_wheel
@pytest.mark.slow
def test_the_provider_takes_and_refuses_the_same_nodes(simulated, tmp_path):
    """A node that the audit passes runs on CUDA; one that it refuses runs on the CPU, or fails."""
    graphs = {}
    for index, case in enumerate(CASES):
        graphs[case.name] = str(tmp_path / f"{index}.onnx")
        onnx.save(case.model(), graphs[case.name])
    placed = simulated.ask("place", list(graphs.values()))
    wrong = []
    for case in CASES:
        on_cuda = any(name == "tested" for _, name in placed[graphs[case.name]].get("cuda", []))
        ran = simulated.ask(
            "steps", {"graph": graphs[case.name], "sizes": {}, "cuda_graph": False, "runs": 1, "bind": {}}
        )
        if (on_cuda and "error" not in ran) != (case.problem is None):
            wrong.append((case.name, on_cuda, ran))
    assert wrong == []


DECODING, WIDENING, PROMPT, SCALING = "kernel_mha", "DequantizeKV", "flash_fwd", "ScaleHeadsByChannelScale"
"""Parts of the names of kernels: attention of a step over 8 bits, floats made of a cache, attention over floats, and
what multiplies its output by a scale for every channel."""


@needs_the_wheel
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dim": 64}, [DECODING]), ({"dim": 128}, [DECODING]), ({"dim": 256}, [DECODING]), ({"heads": 64}, [DECODING]),
        ({"local_window_size": 7}, [DECODING]), ({"sink": True}, [DECODING]),
        ({"dim": 32}, [WIDENING, PROMPT]), ({"heads": 4}, [WIDENING, PROMPT]), ({"heads": 6}, [WIDENING, PROMPT]),
        ({"softcap": 5.0}, [WIDENING, PROMPT]), ({"tokens": 4}, [WIDENING, PROMPT]), ({"tokens": 64}, [PROMPT]),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(("cache", "scaled"), [(INT8, "PER_CHANNEL"), (FP8, "PER_TENSOR")], ids=["int8", "fp8"])
def test_which_kernels_attend_over_a_cache_of_8_bits(simulated, tmp_path, cache, scaled, options, expected):
    """What docs/explanation/kv-cache.md says of them: 4, 8, 16 or 32 heads over one, of 64, 128 or 256 numbers."""
    case = attention("attention", cache=cache, scales=True, scaled=scaled, **{"heads": 8, **options})
    onnx.save(case.model(), tmp_path / "graph.onnx")
    asked = {"graph": str(tmp_path / "graph.onnx"), "sizes": {}, "cuda_graph": False, "runs": 1}
    asked |= {"bind": {"present_key": "past_key", "present_value": "past_value"}}
    found = simulated.ask("steps", asked | {"kernels": [DECODING, WIDENING, PROMPT, SCALING]})["runs"][0]
    assert [part for part in (DECODING, WIDENING, PROMPT) if found[part]] == expected
    assert (found[SCALING] > 0) == (expected == [DECODING] and scaled == "PER_CHANNEL")


@needs_the_wheel
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_float8_cache_lies_on_the_device_and_is_captured(simulated, tmp_path, precision):
    """Every node runs on CUDA; rows are moved, read and written, by copies of bytes, and an engine keeps prefixes."""
    options = {"precision": precision, "provider": "cuda", "cache_precision": "fp8", "verify": None}
    bundle = export_model("tiny-llama", tmp_path / "b", **options).path
    graph = str(bundle / "onnx/model.onnx")
    cpu = simulated.ask("place", [graph])[graph]["cpu"]
    assert Counter(op for op, _ in cpu) == {"Cast": 1, "Squeeze": 1}
    program = (
        "for _ in range(2):\n"
        "    counts(); model.generate([1, 2, 3, 4], max_new_tokens=4, ignore_eos=True); print(counts())\n"
        "decoder = model.new_decoder(2, 64)\n"
        "decoder.cache.write(3, lambda layer: [np.full((2, 4, 3, 32), 1.5 + layer)] * 2)\n"
        "print({'layers': [float(pair[0].mean()) for pair in decoder.cache.read(3)]})\n"
        "decoder.cache.reorder(np.array([1, 0]), 3); decoder.cache.move_row(0, 1, 3)\n"
        "rows = decoder.cache.read_tokens(1, 0, 3); decoder.cache.write_row(0, [rows], [None] * len(rows))\n"
        "print({'rows': [(str(each.dtype), each.shape) for each in rows]})\n"
        "with Engine(model, max_rows=2, memory=2**25) as engine:\n"
        "    ask = lambda: engine.submit(list(range(2, 40)), max_new_tokens=3, ignore_eos=True).finish(60)\n"
        "    print({'cached': [ask().cached_tokens for _ in range(2)]})\n"
    )
    first, second, kept, moved, engine = counted(simulated, bundle, True, f"import numpy as np\n{program}")
    assert (first["captures"], second["captures"]) == (1, 0) and second["replays"] == 3
    assert first["forbidden"] == second["forbidden"] == 0
    assert kept == {"layers": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]}
    assert moved == {"rows": [("uint8", (4, 3, 32))] * 12}
    assert engine["cached"][0] == 0 < engine["cached"][1]


@needs_the_wheel
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32", "int4"])
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-translate", "tiny-embed"])
def test_onnxruntime_places_nodes_where_the_audit_says(simulated, tmp_path, model, precision):
    bundle = export_model(model, tmp_path / "bundle", precision=precision, provider="cuda", verify=None).path
    graphs = [str(path) for path in sorted(bundle.rglob("*.onnx"))]
    for graph, found in simulated.ask("place", graphs).items():
        proto = onnx.load(graph, load_external_data=False)
        placed = place(typed_nodes(proto, kernel_table()), kernel_table())
        expected = Counter(each.node.op for each in placed if each.where != "device")
        assert Counter(op for op, _ in found["cpu"]) == expected
        assert audit_graph("graph", proto, kernel_table()).findings == ()


@needs_the_wheel
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_model_loads_and_generates_on_simulated_cuda(simulated, tmp_path, precision):
    """Nothing that a kernel computes is right, so the tokens mean nothing; that every call works does."""
    export_model("tiny-llama", tmp_path / "bundle", precision=precision, provider="cuda", verify=None)
    printed = simulated.python(
        "from edgeformer.runtime import load\n"
        f"model = load({str(tmp_path / 'bundle')!r}, provider='cuda')\n"
        "result = model.generate([1, 2, 3], max_new_tokens=4, ignore_eos=True)\n"
        "print(model.provider, len(result.token_ids))\n"
    )
    assert printed == "cuda 4\n"


COUNTING = """
import ctypes
library = ctypes.CDLL("libcudart.so.13")
library.simulated_count.restype = ctypes.c_int64
def counts():
    found = {name: library.simulated_count(place) for name, place in PLACES.items()}
    library.simulated_reset()
    return found
"""
PLACES = {"launches": 0, "to_device": 2, "to_host": 3, "captures": 6, "replays": 7, "forbidden": 8, "pinned": 9}
"""Places of counters in runtime.c."""


def counted(simulated, bundle, captures, program):
    """The counts that a program prints of simulated CUDA, one for each call of `counts`."""
    printed = simulated.python(
        f"PLACES = {PLACES}\n{COUNTING}\n"
        "from edgeformer.runtime import CudaOptions, Engine, load\n"
        f"model = load({str(bundle)!r}, 'cuda', provider_options=CudaOptions(enable_cuda_graph={captures}))\n{program}"
    )
    return [ast.literal_eval(line) for line in printed.splitlines()]


@needs_the_wheel
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "int4"])
def test_the_provider_captures_a_step_and_replays_it(simulated, tmp_path, precision):
    bundle = export_model("tiny-llama", tmp_path / "b", precision=precision, provider="cuda", verify=None).path
    program = (
        "for _ in range(2):\n"
        "    decoder = model.new_decoder(1, 64)\n"
        "    counts(); decoder.prefill(0, [1, 2, 3]); print(counts())\n"
        "    for _ in range(2):\n"
        "        decoder.decode_one_token([1]); print(counts())\n"
        "    del decoder\n"
    )
    launched = counted(simulated, bundle, False, program)
    captured = counted(simulated, bundle, True, program)
    assert [each["captures"] for each in launched] == [0] * 6
    assert [(each["captures"], each["replays"]) for each in captured] == [
        (0, 0),
        (1, 1),
        (0, 1),
        (0, 0),
        (0, 1),
        (0, 1),
    ]
    assert all(each["launches"] == 0 for each in captured if each["replays"] and not each["captures"])
    assert launched[1]["launches"] > 20
    assert all(each["forbidden"] == 0 for each in captured)
    # Token ids and mask go to the device, and logits come back; of a prompt those of one token do.
    assert all((each["to_device"], each["to_host"]) == (2, 1) for each in captured[1:3])
    # All of them over page-locked memory, which a prompt does not use.
    assert [each["pinned"] for each in captured] == [each["pinned"] for each in launched] == [0, 3, 3] * 2
    assert captured[0]["to_host"] == launched[0]["to_host"] == 1


@needs_the_wheel
@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"precision": "fp32"}, {"precision": "fp16", "ops": "standard", "cache": "static"}]
)
def test_a_graph_that_cannot_be_captured_is_refused(simulated, tmp_path, options):
    bundle = export_model("tiny-llama", tmp_path / "b", provider="cuda", verify=None, **options).path
    with pytest.raises(RuntimeError, match=r"RequestError: CUDA graphs cannot capture \S+model\.onnx: onnxruntime"):
        counted(simulated, bundle, True, "")
    assert counted(simulated, bundle, False, "print({})") == [{}]


@needs_the_wheel
@pytest.mark.slow
def test_page_locked_memory_outlives_its_model(simulated, tmp_path):
    bundle = export_model("tiny-llama", tmp_path / "b", precision="fp16", provider="cuda", verify=None).path
    program = (
        "decoder = model.new_decoder(1, 64); decoder.prefill(0, [1, 2, 3])\n"
        "logits = decoder.decode_one_token([1])\n"
        "del decoder, model\n"
        "import gc; gc.collect(); counts()\n"
        "logits[:] = 1; print({'sum': float(logits.sum()), 'shape': logits.shape})\n"
        "del logits; gc.collect(); print(counts())\n"
    )
    read, after = counted(simulated, bundle, False, program)
    assert read == {"sum": float(read["shape"][1]), "shape": (1, read["shape"][1])}
    assert after["forbidden"] == 0


@needs_the_wheel
@pytest.mark.slow
@pytest.mark.parametrize("captures", [True, False])
def test_an_engine_runs_on_simulated_cuda(simulated, tmp_path, captures):
    bundle = export_model("tiny-llama", tmp_path / "b", precision="fp16", provider="cuda", verify=None).path
    program = (
        "with Engine(model, max_rows=4, memory=2**26) as engine:\n"
        "    counts()\n"
        "    for _ in range(2):\n"
        "        streams = [engine.submit([row, 2, 3], max_new_tokens=5, ignore_eos=True) for row in range(6)]\n"
        "        assert [len(stream.finish(60).token_ids) for stream in streams] == [5] * 6\n"
        "        print(counts())\n"
    )
    first, second = counted(simulated, bundle, captures, program)
    assert (first["captures"] > 0) == captures and second["captures"] == 0
    assert (second["replays"] > 0) == captures and first["forbidden"] == 0
    assert second["pinned"] >= 40, "ids and mask go there, values, ids and logits come back, at each of 8 steps"


def test_table_rows_are_joined_only_where_they_accept_the_same():
    rows = [(1, None, {"T": ("a",), "U": ("x",)}), (1, None, {"T": ("b",), "U": ("x",)}), (1, 2, {"T": ("a",)})]
    assert merged(rows) == [(1, None, {"T": ("a", "b"), "U": ("x",)}), (1, 2, {"T": ("a",)})]
    apart = [(1, None, {"T": ("a",), "U": ("x",)}), (1, None, {"T": ("b",), "U": ("y",)})]
    assert merged(apart) == apart
