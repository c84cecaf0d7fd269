"""Does this CPU add products of integers exactly?

onnxruntime multiplies uint8 with int8 by instructions that add two products in 16 bits on x86 CPUs without VNNI or AMX,
and what does not fit is clipped without a word. It has exact products of half the speed for them, but only for those
who ask (`session.x64quantprecision`). So we look what a product with the largest integers comes to.
"""

import base64
from functools import lru_cache
from typing import Any

import numpy as np

ROWS, INPUTS = 4, 64
EXACT = INPUTS * 255 * 127

# Of this text, which the tests parse:
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
    """Whether products of uint8 and int8 are clipped, unless onnxruntime (`ort`, the package) is asked for others."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(base64.b64decode(GRAPH), options, providers=["CPUExecutionProvider"])
    (sums,) = session.run(None, {"a": np.full((ROWS, INPUTS), 255, np.uint8)})
    return bool((sums != EXACT).any())
