"""Memory of the host for copies to a device and from it: kept by name, and page-locked where onnxruntime can."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest

from edgeformer.manifest.providers import CPU, CUDA
from edgeformer.runtime.sessions.pinned_memory import HostMemory, pinned
from edgeformer.runtime.sessions.providers.cuda import HOST_ACCESSIBLE, NVIDIA


class Session:
    """A session whose extension module allocates on the CPU, since no device is at hand."""

    def __init__(self, error=None):
        self.asked, self.error = [], error
        self._sess = SimpleNamespace(create_ortvalue_from_shape_and_type=self.allocate)

    def allocate(self, shape, dtype, device):
        if self.error is not None:
            raise self.error
        self.asked.append((shape, dtype, device.device_type(), device.mem_type(), device.vendor_id()))
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype)._ortvalue


def test_an_array_is_in_the_memory_of_the_one_before():
    host = HostMemory(None, CPU)
    first = host.array("mask", (2, 8), np.int64)
    first[:] = np.arange(16).reshape(2, 8)
    again = host.array("mask", (1, 4), np.int64)
    assert np.shares_memory(first, again) and again.tolist() == [[0, 1, 2, 3]]
    assert not np.shares_memory(first, host.array("tokens", (2, 1), np.int64))
    larger = host.array("mask", (3, 8), np.int64)
    assert not np.shares_memory(first, larger) and larger.shape == (3, 8)
    assert host.array("values", (2, 1, 5), np.dtype(np.float16)).dtype == np.float16


def test_a_device_is_asked_for_host_accessible_memory():
    session = Session()
    host = HostMemory(session, CUDA)
    array = host.array("logits", (3, 1, 7), np.float32)
    array[:] = 2.5
    device = ort.OrtDevice.make("cuda", 0)
    assert session.asked == [([84], np.uint8, device.device_type(), HOST_ACCESSIBLE, NVIDIA)]
    assert host.array("logits", (1, 1, 7), np.float32).tolist() == [[[2.5] * 7]] and len(session.asked) == 1


def test_pinned_memory_lives_as_long_as_a_view():
    session = Session()
    kept, view = weakref.ref(session), HostMemory(session, CUDA).array("ids", (4,), np.int64)[1:]
    del session
    gc.collect()
    assert kept() is not None
    view[:] = 7
    del view
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("session", [Session(RuntimeError("no pages")), SimpleNamespace(_sess=object())])
def test_without_page_locked_memory_there_is_that_of_numpy(session):
    assert pinned(session, CUDA, 8) is None
    assert HostMemory(session, CUDA).array("ids", (2, 3), np.int64).shape == (2, 3)
