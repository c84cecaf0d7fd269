// The product in plain loops and float64, from the definition of the weights: what every level is held to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "weights.h"

namespace edgeformer {

// y: [rows][outputs]. Activations are rounded block by block to 127 steps of their largest magnitude.
inline std::vector<double> oracle(const Weights& weights, const float* x, std::size_t rows) {
  std::vector<double> y(rows * weights.outputs);
  for (std::size_t row = 0; row < rows; ++row) {
    for (int block = 0; block < weights.blocks(); ++block) {
      const int first = block * weights.block, end = std::min(first + weights.block, weights.inputs);
      const float* from = x + row * weights.inputs;
      float largest = 0;
      for (int input = first; input < end; ++input) largest = std::max(largest, std::fabs(from[input]));
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      for (int output = 0; output < weights.outputs; ++output) {
        double sum = 0;
        for (int input = first; input < end; ++input) {
          sum += std::nearbyint(from[input] * inverse) * (weights.integer(output, input) - weights.zero_point(output, block));
        }
        y[row * weights.outputs + output] += sum * weights.scale(output, block) * (largest / 127.0f);
      }
    }
  }
  return y;
}

}  // namespace edgeformer
