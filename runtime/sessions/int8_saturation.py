"""Detect whether this CPU saturates products of uint8 and int8.

On x86 CPUs without VNNI or AMX, onnxruntime multiplies uint8 with int8 by instructions that add two products in 16 bits
and silently saturate. Its exact kernels take twice as long and must be asked for (`session.x64quantprecision`). The
test is a product of the largest integers.
"""

import base64
from functools import lru_cache
from typing import Any

import numpy as np

ROWS, INPUTS = 4, 64
"""Rows of the product, and terms of each sum."""

EXACT = INPUTS * 255 * 127
"""The sum without saturation, of the largest uint8 and the largest int8."""

# This text, serialized; a test parses it:
#   <ir_version: 8, opset_import: ["" : 13]>
#   overflow (uint8[m, 64] a) => (int32[m, 16] c) <int64[2] shape = {64, 16}>
#   {
#     b = ConstantOfShape <value: tensor = int8[1] {127}> (shape)
#     c = MatMulInteger(a, b)
#   }
GRAPH = (
    "CAg6mQEKNAoFc2hhcGUSAWIiD0NvbnN0YW50T2ZTaGFwZSoVCgV2YWx1ZSoJCAEQAyoBf0IAoAEEOgAKGgoBYQoBYhIBYyINTWF0TXVsSW50ZWdl"
    "cjoAEghvdmVyZmxvdyoPCAIQBzoCQBBCBXNoYXBlWhQKAWESDwoNCAISCQoDEgFtCgIIQGIUCgFjEg8KDQgGEgkKAxIBbQoCCBBCBAoAEA0="
)


@lru_cache(maxsize=1)
def products_saturate(ort: Any) -> bool:
    """Return whether products of uint8 and int8 saturate by default; ort: the package onnxruntime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(base64.b64decode(GRAPH), options, providers=["CPUExecutionProvider"])
    (sums,) = session.run(None, {"a": np.full((ROWS, INPUTS), 255, np.uint8)})
    return bool((sums != EXACT).any())
