// Weights in panels: the order in which the kernels read them, front to back.
//
// A panel is `columns` outputs, two vectors of a SIMD level. It holds its blocks one after the other, and then, for
// weights with zero points, one byte for each column of each block. A block of 4-bit weights, by increasing address:
//
//     for every 8 inputs k … k+7:  for every column:  4 bytes; byte j has input k+j below and input k+4+j above
//     for every column:            its scale, as half
//
// and a block of 8-bit weights:
//
//     for every 4 inputs k … k+3:  for every column:  4 bytes
//     for every column:            its scale, as half
//
// So a vector of bytes meets four inputs, broadcast to all columns, in one dot4. Scales are divided by a power of two of
// their column, which keeps them in the range of halves; results are multiplied by it. Inputs and outputs that
// the weights lack have scale 0, or meet an activation of 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aligned.h"
#include "half.h"
#include "weights.h"

namespace edgeformer {

class Panels {
 public:
  // columns: outputs of a panel. byte_bias: what is subtracted from 8-bit integers and their zero points before they
  // are stored; 128 where the processor multiplies signed bytes only.
  Panels(const Weights& weights, int columns, int byte_bias);

  int outputs() const { return outputs_; }
  int bits() const { return bits_; }
  int block() const { return block_; }
  int blocks() const { return blocks_; }
  int columns() const { return columns_; }
  int count() const { return (outputs_ + columns_ - 1) / columns_; }
  bool has_zero_points() const { return has_zero_points_; }
  // The zero point of all blocks, if they have none of their own.
  int common_zero_point() const { return (1 << (bits_ - 1)) - bias_; }
  // Of stored integers and zero points: what was subtracted from them.
  int bias() const { return bias_; }

  std::size_t integer_bytes() const { return static_cast<std::size_t>(columns_) * block_ * bits_ / 8; }
  std::size_t block_bytes() const { return integer_bytes() + columns_ * sizeof(Half); }
  std::size_t panel_bytes() const {
    const std::size_t zero_points = has_zero_points_ ? static_cast<std::size_t>(blocks_) * columns_ : 0;
    return round_up(blocks_ * block_bytes() + zero_points, kCacheLine);
  }

  const std::uint8_t* panel(int index) const { return bytes_.get() + index * panel_bytes(); }
  const std::uint8_t* zero_points(int index) const { return panel(index) + blocks_ * block_bytes(); }
  // By which the results of a panel's columns are multiplied.
  const float* factors(int index) const { return factors_.get() + static_cast<std::size_t>(index) * columns_; }

 private:
  void pack_column(const Weights& weights, int output);

  int outputs_, bits_, block_, blocks_, columns_, bias_;
  bool has_zero_points_;
  AlignedArray<std::uint8_t> bytes_;
  AlignedArray<float> factors_;
};

}  // namespace edgeformer
