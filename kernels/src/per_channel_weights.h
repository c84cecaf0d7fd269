// Signed 8-bit weights with one scale for each output, as a graph stores them for onnxruntime's MatMulIntegerToFloat.
#pragma once

#include <cstdint>

#include "weights.h"

namespace edgeformer {

struct PerChannelWeights {
  int outputs, inputs;
  const std::int8_t* integers;  // [inputs][outputs]
  const float* scales;          // [outputs]
  const float* bias = nullptr;  // [outputs], or null; whoever multiplies adds it

  // Of the same weights in one block, without signs.
  WeightSizes sizes() const { return {outputs, inputs, 8, (inputs + 7) / 8 * 8}; }
};

}  // namespace edgeformer
