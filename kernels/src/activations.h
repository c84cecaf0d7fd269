// Rows of activations, rounded to signed bytes block by block.
//
// The largest magnitude of a block becomes 127. A row is padded with zeros to whole blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aligned.h"

namespace edgeformer {

struct Activations {
  int block, blocks;     // those of the weights that they meet
  std::int8_t* values;   // [rows][blocks * block]
  float* scales;         // [rows][blocks]
  std::int32_t* sums;    // [rows][blocks]: of the values, for zero points

  const std::int8_t* row(std::size_t index) const { return values + index * blocks * block; }
  const float* scales_of(std::size_t index) const { return scales + index * blocks; }
  const std::int32_t* sums_of(std::size_t index) const { return sums + index * blocks; }
};

// Memory for the activations of one product at a time.
class ActivationBuffer {
 public:
  Activations make(std::size_t rows, int block, int blocks) {
    const std::size_t count = rows * blocks;
    return {block, blocks, values_.at_least(count * block), scales_.at_least(count), sums_.at_least(count)};
  }

 private:
  GrowingArray<std::int8_t> values_;
  GrowingArray<float> scales_;
  GrowingArray<std::int32_t> sums_;
};

}  // namespace edgeformer
