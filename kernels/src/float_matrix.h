// Weights of float32, where the graph has them, and rows that are multiplied by them.
#pragma once

#include <cstddef>

#include "aligned.h"

namespace edgeformer {

struct FloatMatrix {
  const float* numbers;  // [inputs][outputs], or [outputs][inputs]
  int inputs, outputs;
  bool by_outputs;  // the latter: as an embedding has them
};

// Rows, a tile of them side by side: [tiles][tile_stride], and in a tile [inputs][tile_rows].
struct FloatRows {
  float* numbers;
  int inputs, tile_rows;
  std::size_t tiles, tile_stride;

  float* tile(std::size_t index) const { return numbers + index * tile_stride; }
};

// y = the first `rows` rows of x, at most kFewRows, times the matrix, in columns `begin` to `end`.
using MultiplyFewFloats = void (*)(const FloatMatrix&, const float* x, int rows, int begin, int end, float* y);

// The same for `rows` rows from `row` on, of which the first begins a tile.
using MultiplyManyFloats = void (*)(const FloatMatrix&, const FloatRows&, int begin, int end, std::size_t row, int rows,
                                    float* y);

// Puts `rows` rows of x, at most a tile, side by side.
using TileFloats = void (*)(const float* x, int rows, const FloatRows& to, std::size_t tile);

inline constexpr int kFewRows = 8;

// Numbers behind a tile that a whole vector may write.
inline constexpr int kBehindTile = 16;

}  // namespace edgeformer
