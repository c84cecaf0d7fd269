"""The audit agrees with onnxruntime's CUDA provider itself, in a process where CUDA is simulated.

EDGEFORMER_ONNXRUNTIME_GPU names a wheel of onnxruntime-gpu for this interpreter, or a folder where one is unpacked.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import onnx
import pytest
from cuda_cases import CASES

from edgeformer.check.cuda.audit import audit_graph
from edgeformer.check.cuda.kernel_table import TABLE, kernel_table
from edgeformer.check.cuda.placement import place
from edgeformer.check.cuda.typed_nodes import typed_nodes
from edgeformer.export import export_model

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from verification.cuda_kernels import merged, table_of, text_of
from verification.simulated_cuda.session import SimulatedCuda

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
        expected = Counter(each.node.op for each in placed if each.where != "cuda")
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


def test_rows_of_the_table_are_joined_only_where_they_accept_the_same():
    rows = [(1, None, {"T": ("a",), "U": ("x",)}), (1, None, {"T": ("b",), "U": ("x",)}), (1, 2, {"T": ("a",)})]
    assert merged(rows) == [(1, None, {"T": ("a", "b"), "U": ("x",)}), (1, 2, {"T": ("a",)})]
    apart = [(1, None, {"T": ("a",), "U": ("x",)}), (1, None, {"T": ("b",), "U": ("y",)})]
    assert merged(apart) == apart
