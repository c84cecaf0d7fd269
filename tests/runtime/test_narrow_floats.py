"""bfloat16 and float8 in numpy: bits are those of torch, and a buffer of them is bound to graphs as that type."""

import numpy as np
import onnx
import pytest
import torch

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.runtime.caches.cache_types import CacheTypes
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.sessions.narrow_floats import (
    BFLOAT16,
    FLOAT8,
    FLOAT8_MIDDLES,
    FLOAT8_NUMBERS,
    numbers_of,
    stored,
)
from edgeformer.runtime.sessions.session import onnxruntime

SPECIAL = [0.0, -0.0, 1.0, 1.00390625, 1.01171875, np.inf, -np.inf, np.nan, 3.3e38, 1e-40, np.finfo("f").max]


def test_numbers_are_rounded_as_torch_rounds_them():
    numbers = np.concatenate([np.array(SPECIAL, "f"), np.random.default_rng(0).normal(size=1000).astype("f")])
    bits = stored(numbers, BFLOAT16)
    np.testing.assert_array_equal(numbers_of(bits), torch.from_numpy(numbers).bfloat16().float().numpy())
    assert stored(bits, BFLOAT16) is bits
    truncated = (numbers.view(np.uint32) >> 16).astype(BFLOAT16)
    assert (truncated != bits).mean() > 0.3  # rounding down is something else


def test_float8_is_that_of_torch():
    """For all 256 bytes, all numbers halfway between two, and the range, beyond which the largest number stands."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(FLOAT8_NUMBERS, every)
    random = np.random.default_rng(0).normal(size=1000).astype("f") * np.float32([[1e-3], [1], [100]])
    numbers = np.concatenate([random.ravel(), FLOAT8_MIDDLES, -FLOAT8_MIDDLES, np.float32([0, -0.0, 1e-9, 500, -1e9])])
    expected = torch.from_numpy(numbers.clip(-448, 448)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    bits = stored(numbers, FLOAT8)
    np.testing.assert_array_equal(bits, expected)
    assert stored(bits, FLOAT8) is bits
    assert np.isnan(numbers_of(stored(np.float32([np.nan, -np.nan]), FLOAT8))).all()
    away = np.sign(numbers) * (np.abs(numbers) * (1 + 2**-20))  # ties, rounded away from zero
    assert (stored(away.astype("f"), FLOAT8) != bits).sum() >= len(FLOAT8_MIDDLES)


def test_other_types_are_left_alone():
    numbers = np.ones(3, np.float16)
    assert stored(numbers, np.float16) is numbers and numbers_of(numbers) is numbers


@pytest.mark.parametrize(
    ("bits", "kind"), [(BFLOAT16, onnx.TensorProto.BFLOAT16), (FLOAT8, onnx.TensorProto.FLOAT8E4M3FN)]
)
def test_a_cache_is_bound_as_its_type(tmp_path, bits, kind):
    """The graph copies its past, for which the CPU provider has a kernel."""
    geometry = CacheGeometry.of_attention(num_layers=1, num_kv_heads=1, head_dim=2)
    cache = StaticCache(geometry, CacheTypes(bits, bits), batch_size=1, capacity=3)
    key, value = geometry.tensors("")
    names = [(each.past, each.present) for each in (key, value)]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", [past], [present]) for past, present in names],
        "copies",
        [onnx.helper.make_tensor_value_info(past, kind, [1, 1, 3, 2]) for past, _ in names],
        [onnx.helper.make_tensor_value_info(present, kind, [1, 1, 3, 2]) for _, present in names],
    )
    opsets = [onnx.helper.make_opsetid("", 19)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "graph.onnx")
    ort = onnxruntime()
    session = ort.InferenceSession(str(tmp_path / "graph.onnx"), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    cache.write(3, lambda layer: [np.arange(6, dtype="f").reshape(1, 1, 3, 2)] * 2)
    cache.bind(binding)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(cache.read(2)[0][0].ravel(), [0, 1, 2, 3])
    cache.fill(float("nan"))
    assert np.isnan(cache.read(3)[0][1]).all()
    with pytest.raises(Exception, match="data type|Unexpected input"):
        session.run(None, {past: np.zeros((1, 1, 3, 2), bits) for past, _ in names})
