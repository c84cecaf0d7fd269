"""Run a decode step of a graph on WebGPU as a program of its own, and print what ran, as JSON.

    python tests/webgpu_launches.py MODEL.onnx

onnxruntime logs every kernel that it launches, on stderr, which is why a process is started for it: `launches_of`.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime as ort

from edgeformer.runtime import WebGpuOptions
from edgeformer.runtime.sessions.providers.webgpu_machine import use_webgpu

CAPACITY, PROMPT = 64, 8
"""Tokens of the cache, and of the prompt before the step."""

MARK = "the step begins or ends here"


@dataclass(frozen=True)
class Step:
    """A decode step of one row, as onnxruntime logged it.

    launches: of kernels on the device, by the names of their programs. on_host: names of nodes on the CPU.
    nodes: the number of nodes on the device, without copies. bytes_to_device: of copies, and of the token ids.
    """

    launches: list[str]
    on_host: list[str]
    nodes: int
    bytes_to_device: int


def launches_of(graph: Path) -> Step:
    """Return what a decode step of a graph does on WebGPU, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, str(graph)], capture_output=True, text=True, errors="replace", check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    _, _, step, _ = done.stderr.split(MARK)
    launches = re.findall(r'Starting program "([A-Za-z0-9_]+)', step)
    return Step(launches, **json.loads(done.stdout.splitlines()[-1]))


def main(graph: str) -> None:
    """Run a prompt and a step over caches on the device, and print the nodes of the step."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 1
    settings.enable_profiling = True
    use_webgpu(ort, settings, WebGpuOptions())
    with TemporaryDirectory() as folder:
        settings.profile_file_prefix = str(Path(folder) / "profile")
        session = ort.InferenceSession(graph, settings, enable_fallback=0)
        caches = {
            each.name: ort.OrtValue.ortvalue_from_shape_and_type(shape_of(each), np.float32, "webgpu", 0)
            for each in session.get_inputs()
            if each.name.startswith("past_key_values.")
        }
        for past, tokens in ((0, PROMPT), (PROMPT, 1)):
            print(MARK, file=sys.stderr, flush=True)
            feeds = {"input_ids": np.full((1, tokens), 5), "attention_mask": np.ones((1, past + tokens), np.int64)}
            run(session, caches, feeds)
        print(MARK, file=sys.stderr, flush=True)
        events = json.loads(Path(session.end_profiling()).read_text())
    print(json.dumps(nodes_of(events, feeds["input_ids"].nbytes)))


def shape_of(past) -> list[int]:
    """Return the shape of a cache [B, K, T, D] of one row; heads and their sizes are numbers in the graph."""
    _, heads, _, size = past.shape
    return [1, heads, CAPACITY, size if isinstance(size, int) else HEAD_SIZE]


HEAD_SIZE = 64
"""The size of a head, in graphs whose caches have a name in place of the number."""


def run(session, caches, feeds) -> None:
    """Run the graph over caches that it writes in place."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name, cache in caches.items():
        for bind, tensor in ((binding.bind_input, name), (binding.bind_output, f"present.{name.split('.', 1)[1]}")):
            bind(tensor, "webgpu", 0, np.float32, cache.shape(), cache.data_ptr())
    binding.bind_output("logits", "cpu")
    session.run_with_iobinding(binding)


def nodes_of(events, size_of_ids) -> dict[str, object]:
    """Return what the last run of a profile did, by the names of `Step`."""
    last = [each for each in events if each["name"] == "model_run"][-1]
    nodes = [
        (each["name"], each["args"])
        for each in events
        if each.get("cat") == "Node" and each["name"].endswith("_kernel_time") and each["ts"] >= last["ts"]
    ]
    copies = [given for _, given in nodes if given["op_name"] == "MemcpyFromHost"]
    on_host = [name for name, given in nodes if given["provider"] == "CPUExecutionProvider"]
    return {
        "on_host": [name.removesuffix("_kernel_time") for name in on_host],
        "nodes": len(nodes) - len(copies) - len(on_host),
        "bytes_to_device": size_of_ids + sum(int(given["output_size"]) for given in copies),
    }


if __name__ == "__main__":
    main(sys.argv[1])
