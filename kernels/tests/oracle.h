// The product in plain loops and float64, from the definition of the weights: what every level is held to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "weights.h"

namespace edgeformer {

// y: [rows][outputs], and for each number of it the sum of magnitudes of the blocks that it was added up from.
struct Product {
  std::vector<double> y, bound;
};

// Activations are rounded block by block to 127 steps of their largest magnitude.
inline Product oracle(const Weights& weights, const float* x, std::size_t rows) {
  Product product{std::vector<double>(rows * weights.outputs), std::vector<double>(rows * weights.outputs)};
  std::vector<double> rounded(weights.block);
  for (std::size_t row = 0; row < rows; ++row) {
    for (int block = 0; block < weights.blocks(); ++block) {
      const int first = block * weights.block, count = std::min(weights.block, weights.inputs - first);
      const float* from = x + row * weights.inputs + first;
      float largest = 0;
      for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(from[i]));
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      for (int i = 0; i < count; ++i) rounded[i] = std::nearbyint(from[i] * inverse);
      for (int output = 0; output < weights.outputs; ++output) {
        double sum = 0;
        const int zero_point = weights.zero_point(output, block);
        for (int i = 0; i < count; ++i) sum += rounded[i] * (weights.integer(output, first + i) - zero_point);
        const double added = sum * weights.scale(output, block) * (largest / 127.0f);
        product.y[row * weights.outputs + output] += added;
        product.bound[row * weights.outputs + output] += std::fabs(added);
      }
    }
  }
  return product;
}

}  // namespace edgeformer
