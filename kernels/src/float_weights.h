// The weights of a product of floats: as a graph has them, and in the panels that kernels read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aligned.h"
#include "half.h"
#include "parallel.h"
#include "tile_products.h"
#include "weight_memory.h"

namespace edgeformer {

enum class Numbers { kFloat, kBfloat16 };

constexpr std::size_t bytes_of(Numbers type) { return type == Numbers::kFloat ? sizeof(float) : sizeof(Bfloat16); }

struct FloatWeights {
  int outputs, inputs;
  bool by_output;  // [outputs][inputs]; else [inputs][outputs]
  Numbers type;
  const void* numbers;

  std::size_t bytes() const { return static_cast<std::size_t>(outputs) * inputs * bytes_of(type); }
};

// Weights side by side as they are multiplied: [panel][inputs][columns], in the type that they had. Columns behind the last
// output are zero. Memory is read front to back, whatever the number of rows.
class FloatPanels {
 public:
  // Copies the weights; they may be freed afterwards.
  FloatPanels(const FloatWeights& weights, int columns, Parallel& parallel);

  int outputs() const { return outputs_; }
  int inputs() const { return inputs_; }
  int columns() const { return columns_; }
  int count() const { return (outputs_ + columns_ - 1) / columns_; }
  Numbers type() const { return type_; }
  std::size_t panel_bytes() const { return static_cast<std::size_t>(inputs_) * columns_ * bytes_of(type_); }
  const std::uint8_t* panel(int index) const { return memory_.get() + index * panel_bytes(); }

 private:
  template <class T>
  void copy(const FloatWeights& weights, Parallel& parallel);

  int outputs_, inputs_, columns_;
  Numbers type_;
  WeightMemory memory_;
};

// y = rows of x, [rows][inputs], times the panels from `begin` to `end`, whose outputs y has, from row to row `stride` floats
// apart. There are at most kMostRows rows. A row's results do not depend on the other rows.
using MultiplyFloats = void (*)(const FloatPanels&, const float* x, int rows, int begin, int end, float* y, std::size_t stride);

// Rows of x as sums of parts of bfloat16, for a unit of matrix tiles: [part][rows][pairs] of pairs, with zeros behind the
// last input. Rows are whole tiles, of which those behind the last may have anything.
struct SplitRows {
  static constexpr std::size_t kPairs = 16;  // a row has whole ones of it: what a tile takes of a row

  float* numbers;
  std::size_t rows, pairs;

  static std::size_t pairs_of(int inputs) { return round_up((static_cast<std::size_t>(inputs) + 1) / 2, kPairs); }
  // Between rows lies an odd number of cache lines, so that the rows of a tile do not compete for a few sets of the cache.
  std::size_t stride() const { return pairs | kPairs; }
  std::size_t part() const { return rows * stride(); }
  std::size_t size() const { return PartsProduct::kParts * part(); }
};

// Splits a row.
using SplitRow = void (*)(const float* x, int inputs, const SplitRows& to, std::size_t row);

// MultiplyFloats of rows `row` to `row + rows` of split rows, of which the first begins a tile, by weights of bfloat16.
using MultiplySplit = void (*)(const FloatPanels&, const SplitRows&, std::size_t row, int rows, int begin, int end, float* y,
                               std::size_t stride);

}  // namespace edgeformer
