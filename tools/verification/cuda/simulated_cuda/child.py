"""Runs in a process with onnxruntime-gpu and simulated CUDA: `python child.py ACTION < JSON`; it prints JSON.

It imports nothing of this project: its onnxruntime is another one than that of the process that starts it.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import onnxruntime as ort

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"

COUNTS = (
    "launches", "waits", "to_device", "to_host", "on_device", "allocations", "captures", "replays", "forbidden",
    "pinned",
)  # fmt: skip
"""The counters of runtime.c, in its order."""

TYPES = {
    "float": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "bfloat16": 16,
    "float8e4m3fn": 17,
}  # fmt: skip
"""ONNX's numbers of element types, by onnxruntime's names; numpy has no type for some."""


def registry(_: Any) -> dict[str, Any]:
    """Return all kernels of both providers, and the schemas of onnxruntime's own ops."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    kernels = [
        (each.provider, each.domain, each.op_name, each.version_range, each.type_constraints)
        for each in state.get_all_opkernel_def()
        if each.provider in (CUDA, CPU)
    ]
    schemas = [
        {
            "domain": each.domain,
            "name": each.name,
            "since_version": each.since_version,
            "inputs": [(one.name, one.typeStr) for one in each.inputs],
            "outputs": [(one.name, one.typeStr) for one in each.outputs],
            "only": {
                one.type_param_str: one.allowed_type_strs[0]
                for one in each.type_constraints
                if len(one.allowed_type_strs) == 1
            },
        }
        for each in state.get_all_operator_schema()
        if each.domain in ("", "com.microsoft")
    ]
    return {"onnxruntime": ort.__version__, "kernels": kernels, "schemas": schemas}


def open_session(graph: str, **options: Any) -> ort.InferenceSession:
    """Open a session on the CUDA provider."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return ort.InferenceSession(graph, settings, providers=[(CUDA, {"use_tf32": 0, **options}), CPU])


def place(graphs: list[str]) -> dict[str, Any]:
    """Return for each graph the names of nodes by provider, or why it does not open."""
    found: dict[str, Any] = {}
    for graph in graphs:
        try:
            session = open_session(graph)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            found[graph] = {"error": str(error)}
            continue
        nodes: dict[str, list[tuple[str, str]]] = {CUDA: [], CPU: []}
        for part in session.get_provider_graph_assignment_info():
            nodes[part.ep_name] += [(node.op_type, node.name) for node in part.get_nodes()]
        found[graph] = {"cuda": nodes[CUDA], "cpu": nodes[CPU]}
    return found


def counted(library: ctypes.CDLL) -> dict[str, int]:
    """Return the counts since the last call."""
    found = {name: library.simulated_count(place) for place, name in enumerate(COUNTS)}
    library.simulated_reset()
    return found


def steps(asked: dict[str, Any]) -> dict[str, Any]:
    """Run a graph several times with inputs and outputs at fixed places on the device; return what each run counted.

    asked: `graph`; `sizes` of its symbolic dimensions; `cuda_graph`; `runs`; `bind`: outputs that are an input;
    `kernels`: parts of names, of which the launches of kernels that have them are counted, too.
    """
    library = ctypes.CDLL("libcudart.so.13")
    library.simulated_count.restype = library.simulated_launched.restype = ctypes.c_int64
    options = {"enable_cuda_graph": "1"} if asked["cuda_graph"] else {}
    try:
        session = open_session(asked["graph"], **options)
        binding, kept = session.io_binding(), {}
        for given in session.get_inputs():
            shape = [asked["sizes"].get(dim, dim) for dim in given.shape]
            kept[given.name] = _buffer(given.type, shape)
            binding.bind_ortvalue_input(given.name, kept[given.name])
        for made in session.get_outputs():
            shared = asked["bind"].get(made.name)
            if shared is None:
                shape = [asked["sizes"].get(dim, dim) for dim in made.shape]
                kept[made.name] = _buffer(made.type, shape)
            binding.bind_ortvalue_output(made.name, kept[shared or made.name])
        counted(library)
        found = []
        for _ in range(asked["runs"]):
            run = ort.RunOptions()
            if asked["cuda_graph"]:
                run.add_run_config_entry("gpu_graph_id", "1")
            session.run_with_iobinding(binding, run)
            kernels = {part: library.simulated_launched(part.encode()) for part in asked.get("kernels", ())}
            found.append(counted(library) | kernels)
    except Exception as error:
        return {"error": str(error)}
    return {"runs": found}


def _buffer(kind: str, shape: list[int]) -> Any:
    """Zeros on the device."""
    number = TYPES[kind.removeprefix("tensor(").removesuffix(")")]
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, number, "cuda", 0)


ACTIONS: dict[str, Callable[[Any], Any]] = {"registry": registry, "place": place, "steps": steps}

if __name__ == "__main__":
    answer = ACTIONS[sys.argv[1]](json.load(sys.stdin))
    print(json.dumps(answer))
