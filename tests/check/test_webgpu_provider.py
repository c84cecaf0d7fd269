"""The audit agrees with onnxruntime's WebGPU plugin itself, on an adapter of this machine or in software."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from webgpu_adapter import adapter_or_skip
from webgpu_cases import CASES, RIGHT_IN_THAT_RUN

from edgeformer.check.providers.audit import audit_graph
from edgeformer.check.providers.kernel_table import PROBED, kernel_table
from edgeformer.check.providers.placement import place
from edgeformer.check.providers.typed_nodes import typed_nodes
from edgeformer.export import export_model
from edgeformer.manifest.providers import WEBGPU
from edgeformer.runtime.sessions.providers.webgpu_machine import use_webgpu

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

adapter = pytest.fixture(scope="module", autouse=True)(adapter_or_skip)


def session_on(device, model, **entries):
    """A session of a graph as it is, on WebGPU devices, or on the CPU for None."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for name, value in entries.items():
        settings.add_session_config_entry(f"session.{name}", value)
    if device is None:
        return ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    use_webgpu(ort, settings, device)
    return ort.InferenceSession(model, settings)


def feeds_of(model):
    """Numbers for the inputs of a graph; lengths are those of a cache of 64 that is full, and masks all ones."""
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if kind == np.float32:
            feeds[value.name] = (rng.standard_normal(shape) * 0.3).astype(kind)
            if value.name in ("decay", "beta"):
                feeds[value.name] = -np.abs(feeds[value.name]) if value.name == "decay" else np.abs(feeds[value.name])
        elif kind == np.uint8:
            feeds[value.name] = rng.integers(0, 256, shape).astype(kind)
        else:
            feeds[value.name] = np.full(shape, 63 if value.name == "seqlens_k" else 1, kind)
    return feeds


def computes_the_same(device, case):
    """Whether the first output of a node on WebGPU is the CPU's; False where it does not run there."""
    model = case.model()
    feeds, text = feeds_of(model), model.SerializeToString()
    try:
        found = session_on(device, text, disable_cpu_ep_fallback="1").run(None, feeds)[0]
    except Exception:  # onnxruntime's errors have no common class
        return False
    expected = session_on(None, text).run(None, feeds)[0]
    return bool(np.abs(found - expected).max() < 1e-3 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_provider_computes_what_the_rules_pass(adapter, case):
    assert computes_the_same(adapter, case) == (case.problem is None or case.name in RIGHT_IN_THAT_RUN)


@pytest.mark.slow
def test_the_table_is_what_the_plugin_takes():
    from verification.webgpu.webgpu_kernels import Plugin, kernels_of, text_of

    table = {"webgpu": kernels_of(Plugin())}
    assert text_of(table).splitlines()[1:] == PROBED["webgpu"].read_text(encoding="utf-8").splitlines()[4:]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-translate", "tiny-embed"])
def test_onnxruntime_places_nodes_where_the_audit_says(adapter, tmp_path, model, precision):
    bundle = export_model(model, tmp_path / "bundle", precision=precision, provider="webgpu", verify=None).path
    for path in sorted(bundle.rglob("*.onnx")):
        parts = session_on(adapter, str(path)).get_provider_graph_assignment_info()
        found = {each.name: part.ep_name == WEBGPU.execution_provider for part in parts for each in part.get_nodes()}
        proto = onnx.load(path, load_external_data=False)
        placed = place(typed_nodes(proto, kernel_table("webgpu")), kernel_table("webgpu"))
        assert {each.node.name: each.where == "device" for each in placed if each.node.name in found} == {
            each.node.name: found[each.node.name] for each in placed if each.node.name in found
        }
        assert sum(each.node.name in found for each in placed) > 0.9 * len(placed)
        assert audit_graph(path.name, proto, kernel_table("webgpu")).findings == ()
