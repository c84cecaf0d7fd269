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
// 8-bit weights whose lowest two bits are 0, as those of a file with 5 or 6 bits, are kept as 6 bits where inputs and blocks
// are whole sixteens, so that steps read three quarters of the bytes:
//
//     for every 16 inputs k … k+15:  for every column:  4 bytes; of inputs k+j below and k+4+j above, bits 4 to 7
//                                    for every column:  4 bytes; of inputs k+8+j and k+12+j likewise
//                                    for every column:  4 bytes; byte j has bits 2 and 3 of k+j, k+4+j, k+8+j and k+12+j
//     for every column:              its scale, as half
//
// The last block has the inputs that are left for it, rounded up to 8. So a vector of bytes meets four inputs, broadcast to
// all columns, in one dot4. Scales are divided by a power of two of
// their column, which keeps them in the range of halves; results are multiplied by it. These factors, as floats, follow
// the last panel, and behind them there is room for what the last block lacks, so that it may be read whole. Outputs that the
// weights lack have scale 0, and inputs that they lack meet an activation of 0.
//
// All of it is one array of bytes behind a header that describes it, so that panels can be stored, and read where a file
// is mapped. Whoever changes the order changes kPanelsVersion.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "aligned.h"
#include "half.h"
#include "parallel.h"
#include "per_channel_weights.h"
#include "weight_memory.h"
#include "weights.h"

namespace edgeformer {

inline constexpr int kPanelsVersion = 3;

// The largest block of weights that are kept in fewer than 8 bits: products of many rows unpack it onto the stack.
inline constexpr int kMostPacked = 256;

class Panels {
 public:
  // Packs weights into memory of its own.
  // columns: outputs of a panel. byte_bias: 0 or 128, what is subtracted from 8-bit integers and their zero points
  // before they are stored; 128 where the processor multiplies signed bytes only.
  Panels(const Weights& weights, int columns, int byte_bias, Parallel& parallel);

  // The same of weights with one scale for each output: one block of all inputs, whose halves are 1 and whose factors are
  // the scales.
  Panels(const PerChannelWeights& weights, int columns, int byte_bias, Parallel& parallel);

  // Reads stored panels where they lie: bytes() of others, which must outlive these, and must be readable.
  explicit Panels(std::span<const std::uint8_t> stored);

  // Says why bytes cannot be read as panels of these weights, whether they have zero points or not, by kernels with this
  // number of columns and this bias; empty if they can. Checks what bounds the kernels' reads.
  static std::string why_unreadable(std::span<const std::uint8_t> stored, const WeightSizes& sizes, int columns,
                                    int byte_bias);

  // Names the order of bytes, the same for all weights.
  static std::string format(int columns, int byte_bias);

  std::span<const std::uint8_t> bytes() const { return {bytes_, size_bytes()}; }

  int outputs() const { return sizes_.outputs; }
  int inputs() const { return sizes_.inputs; }
  int bits() const { return sizes_.bits; }
  int kept_bits() const { return kept_bits_; }  // 4, 6 or 8
  int block() const { return sizes_.block; }
  int blocks() const { return blocks_; }
  int columns() const { return columns_; }
  int count() const { return (outputs() + columns_ - 1) / columns_; }
  bool has_zero_points() const { return sizes_.own_zero_points; }
  // The zero point of all blocks, if they have none of their own.
  int common_zero_point() const { return (1 << (bits() - 1)) - bias_; }
  // Of stored integers and zero points: what was subtracted from them.
  int bias() const { return bias_; }

  // Inputs that a block has in a panel, a multiple of 8.
  int inputs_of(int of_block) const {
    return static_cast<int>(std::min<std::size_t>(block(), round_up(inputs() - of_block * block(), 8)));
  }
  // Of the integers of so many inputs.
  std::size_t integer_bytes(int inputs) const { return static_cast<std::size_t>(columns_) * inputs * kept_bits_ / 8; }
  // From a block to the next.
  std::size_t block_bytes() const { return integer_bytes(block()) + columns_ * sizeof(Half); }
  std::size_t panel_bytes() const {
    const std::size_t zero_points = has_zero_points() ? static_cast<std::size_t>(blocks()) * columns_ : 0;
    return round_up(blocks_bytes() + zero_points, kCacheLine);
  }

  const std::uint8_t* panel(int index) const { return bytes_ + kCacheLine + index * panel_bytes(); }
  const std::uint8_t* zero_points(int index) const { return panel(index) + blocks_bytes(); }
  // By which the results of a panel's columns are multiplied.
  const float* factors(int index) const {
    return reinterpret_cast<const float*>(panel(count())) + static_cast<std::size_t>(index) * columns_;
  }

 private:
  Panels(const WeightSizes& sizes, int columns, int bias, int kept_bits);

  std::size_t lacking_bytes() const { return integer_bytes(block()) - integer_bytes(inputs_of(blocks() - 1)); }
  std::size_t blocks_bytes() const { return blocks() * block_bytes() - lacking_bytes(); }
  std::size_t size_bytes() const {
    return kCacheLine + round_up(count() * (panel_bytes() + columns_ * sizeof(float)) + lacking_bytes(), kCacheLine);
  }
  template <class AnyWeights>
  void pack_all(const AnyWeights& weights, Parallel& parallel);
  void pack(const Weights& weights, int panel, std::uint8_t* to, float* factors) const;
  void pack(const PerChannelWeights& weights, int panel, std::uint8_t* to, float* factors) const;

  WeightSizes sizes_;
  int blocks_, columns_, bias_, kept_bits_;
  WeightMemory own_;  // null where panels are read from bytes of others
  const std::uint8_t* bytes_ = nullptr;
};

}  // namespace edgeformer
