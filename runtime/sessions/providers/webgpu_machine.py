"""Whether this machine can run WebGPU: the plugin, the loader of drivers, a device, and what its adapter can do.

onnxruntime's WebGPU provider is a plugin, a package of its own (`onnxruntime-ep-webgpu`), which is registered once in a
process. It lists no adapters, so that a session of a single node is opened and run to learn whether there is one.
"""

import base64
import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edgeformer.manifest.providers import WEBGPU
from edgeformer.runtime.sessions.providers.webgpu_options import WebGpuOptions

PLUGIN = "onnxruntime-ep-webgpu"

SOFTWARE = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"
"""The plugin's environment variable, read when it is registered: whether a driver without a GPU will do."""

LOADER = "libvulkan.so.1"
"""The library that finds drivers on Linux; on Windows and macOS they are the system's own (D3D12 and Metal)."""

# These texts, serialized; a test parses them:
#   <ir_version: 8, opset_import: ["" : 14]> add (float[n] a) => (float[n] b) { b = Add (a, a) }
#   <ir_version: 8, opset_import: ["" : 14]> add (float16[n] a) => (float16[n] b) { b = Add (a, a) }
GRAPHS = {
    "float32": "CAg6OwoQCgFhCgFhEgFiIgNBZGQ6ABIDYWRkWhAKAWESCwoJCAESBQoDEgFuYhAKAWISCwoJCAESBQoDEgFuQgQKABAO",
    "float16": "CAg6OwoQCgFhCgFhEgFiIgNBZGQ6ABIDYWRkWhAKAWESCwoJCAoSBQoDEgFuYhAKAWISCwoJCAoSBQoDEgFuQgQKABAO",
}

QUERIES, SIZE = 32, 8
"""Tokens of the attention that is tried, and numbers of its head."""

MOST_QUERIES = QUERIES - 1
"""The most tokens that the kernel of a few queries takes, which is right on every adapter that was tried."""

# This text, serialized; a test parses it:
#   <ir_version: 8, opset_import: ["" : 14, "com.microsoft" : 1]>
#   attend (float[1, 32, 8] q, float[1, 32, 8] k, float[1, 32, 8] v) => (float[1, 32, 8] o)
#   <int32[1] last = {31}, int32 total = {32}>
#   { o, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (q, k, v, , , last, total) }
ATTENTION = (
    "CAg6+wEKcAoBcQoBawoBdgoACgAKBGxhc3QKBXRvdGFsEgFvEgJuaxICbnYiE0dyb3VwUXVlcnlBdHRlbnRpb24qEAoJbnVtX2hlYWRzGAGgAQIq"
    "EwoMa3ZfbnVtX2hlYWRzGAGgAQI6DWNvbS5taWNyb3NvZnQSBmF0dGVuZCoNCAEQBioBH0IEbGFzdCoMEAYqASBCBXRvdGFsWhcKAXESEgoQCAES"
    "DAoCCAEKAgggCgIICFoXCgFrEhIKEAgBEgwKAggBCgIIIAoCCAhaFwoBdhISChAIARIMCgIIAQoCCCAKAggIYhcKAW8SEgoQCAESDAoCCAEKAggg"
    "CgIICEIECgAQDkIRCg1jb20ubWljcm9zb2Z0EAE="
)


@dataclass(frozen=True, kw_only=True)
class WebGpuMachine:
    """The parts that WebGPU finds on this machine.

    Attributes:
        onnxruntime: its version.
        plugin: its version; None where it is not installed.
        device: kind and vendor of what was found; None for nothing.
        software: whether a driver without a GPU computes.
        problem: why WebGPU cannot start, and what to do; None if it can.
    """

    onnxruntime: str
    plugin: str | None = None
    device: str | None = None
    software: bool = False
    problem: str | None = None

    def __str__(self) -> str:
        plugin = f"{PLUGIN} {self.plugin}" if self.plugin else f"no {PLUGIN}"
        return f"onnxruntime {self.onnxruntime} found {plugin} and {self.device or 'no device for it'}"


def plugin_version() -> str | None:
    """Return the version of the plugin; None where it is not installed."""
    try:
        return version(PLUGIN)
    except PackageNotFoundError:
        return None


def webgpu_devices(ort: Any, options: WebGpuOptions) -> list[Any]:
    """Register the plugin if it is not, and return the devices of onnxruntime that it can run on.

    Where none was found and software may be taken now, it is registered again: no session can be open on it.
    """
    found = _devices(ort)
    if options.allow_software:
        os.environ[SOFTWARE] = "1"
    if found or (_registered and not options.allow_software):
        return found
    if _registered:
        ort.unregister_execution_provider_library(_registered.pop())
    library = import_module(PLUGIN.replace("-", "_")).get_library_path()
    ort.register_execution_provider_library(WEBGPU.name, library)
    _registered.append(WEBGPU.name)
    return _devices(ort)


def use_webgpu(ort: Any, session_options: Any, options: WebGpuOptions) -> None:
    """Name WebGPU in the options of a session.

    The plugin refuses a session of more than one device, and looks for an adapter by itself, whichever one it is given.
    """
    session_options.add_provider_for_devices(webgpu_devices(ort, options)[:1], options.for_onnxruntime())


_registered: list[str] = []
"""The name by which the plugin is registered in this process."""


def _devices(ort: Any) -> list[Any]:
    return [each for each in ort.get_ep_devices() if each.ep_name == WEBGPU.execution_provider]


@cache
def webgpu_machine(ort: Any, options: WebGpuOptions) -> WebGpuMachine:
    """Return what WebGPU finds on this machine; ort: the package onnxruntime."""
    plugin = plugin_version()
    if plugin is None:
        problem = "the plugin is not installed. Install it with: pip install 'edgeformer[webgpu]'"
        return WebGpuMachine(onnxruntime=ort.__version__, problem=problem)
    if sys.platform.startswith("linux") and not _loads(LOADER):
        problem = (
            f"{LOADER} cannot be loaded. Install the loader of Vulkan (libvulkan1 of Debian and Ubuntu) and a driver"
        )
        return WebGpuMachine(onnxruntime=ort.__version__, plugin=plugin, problem=problem)
    try:
        devices = webgpu_devices(ort, options)
    # onnxruntime's errors have no common class, and the plugin's package may lack its library.
    except Exception as error:
        problem = f"onnxruntime cannot register the plugin: {_said(error)}. Install versions that fit each other"
        return WebGpuMachine(onnxruntime=ort.__version__, plugin=plugin, problem=problem)
    if not devices:
        problem = (
            "onnxruntime sees no GPU. Install its driver, on a machine with a GPU; a driver in software computes the "
            f"same, slowly, with {SOFTWARE}=1 or WebGpuOptions(allow_software=True)"
        )
        return WebGpuMachine(onnxruntime=ort.__version__, plugin=plugin, problem=problem)
    software = all("GPU" not in str(each.device.type) for each in devices)
    device = (
        "a driver in software" if software else " and ".join(f"a GPU of {_vendor(each.device)}" for each in devices)
    )
    said, api = _failure(ort, options, "float32"), "Vulkan" if sys.platform.startswith("linux") else "the GPU"
    wrong = None if said is None else f"{said}. Install a driver for {api}"
    return WebGpuMachine(onnxruntime=ort.__version__, plugin=plugin, device=device, software=software, problem=wrong)


@cache
def attends_wrongly(ort: Any, options: WebGpuOptions) -> bool:
    """Return whether the adapter computes attention of many tokens wrongly, by one whose result is known.

    onnxruntime's kernel for QUERIES tokens and more reads as many keys at a time as a subgroup has lanes, and counts 8
    where it has 4, as in SwiftShader (plugin 0.4.0, flash_attention.wgsl.template). Queries of zeros see all keys
    alike, so that the output is the mean of the values so far.
    """
    import numpy as np

    tokens = np.arange(QUERIES, dtype=np.float32)
    value = np.repeat(tokens[None, :, None], SIZE, axis=2)
    zeros = np.zeros_like(value)
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    use_webgpu(ort, settings, options)
    session = ort.InferenceSession(base64.b64decode(ATTENTION), settings, enable_fallback=0)
    (found,) = session.run(["o"], {"q": zeros, "k": zeros, "v": value})
    return not np.allclose(found[0, :, 0], tokens / 2, atol=1e-3)


@cache
def lacks_float16(ort: Any, options: WebGpuOptions) -> bool:
    """Return whether the adapter has no arithmetic in float16, which WebGPU calls `shader-f16`."""
    return _failure(ort, options, "float16") is not None


def _failure(ort: Any, options: WebGpuOptions, kind: str) -> str | None:
    """Return what onnxruntime says where a node of a type does not run; None where it does."""
    import numpy as np

    return failure_of(ort, options, GRAPHS[kind], {"a": np.ones(1, kind)})


def failure_of(ort: Any, options: WebGpuOptions, graph: str, feeds: dict[str, Any]) -> str | None:
    """Return what onnxruntime says where a graph does not run on WebGPU; None where it does. graph: in base 64."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 4  # the caller reports it
    use_webgpu(ort, settings, options)
    try:
        # Without a driver onnxruntime would open the session again, on the CPU, and say so on stdout.
        ort.InferenceSession(base64.b64decode(graph), settings, enable_fallback=0).run(None, feeds)
    except Exception as error:  # see above
        return _said(error)
    return None


def _vendor(hardware: Any) -> str:
    return hardware.vendor or f"vendor {hardware.vendor_id:#x}"


def _said(error: Exception) -> str:
    """Return the end of an error of onnxruntime, which begins with places in its sources."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].rpartition(" was false. ")[2].rpartition("Status Message: ")[2].strip().rstrip(".")


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
