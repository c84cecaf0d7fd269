"""The adapter that tests of WebGPU run on: this machine's, or one in software."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import onnxruntime as ort
import pytest

from edgeformer.runtime import WebGpuOptions
from edgeformer.runtime.sessions.providers.webgpu_machine import webgpu_machine

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""The driver in software of Debian's Chromium."""


def adapter_or_skip() -> Iterator[WebGpuOptions]:
    """Yield the options of an adapter, in software where there is no other; tests say what is missing without one."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform.startswith("linux") and "VK_ICD_FILENAMES" not in os.environ and SWIFTSHADER.is_file():
            patch.setenv("VK_ICD_FILENAMES", str(SWIFTSHADER))
        patch.setenv("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
        options = WebGpuOptions()
        machine = webgpu_machine(ort, options)
        if machine.problem is not None:
            pytest.skip(f"2026-11-27: WebGPU takes a plugin, a loader and a driver. {machine}: {machine.problem}")
        yield options
