#include "float_linear.h"

#include <algorithm>

#include "activations.h"

namespace edgeformer {
namespace {

// Columns that are neighbours in memory, and that a chunk of few rows takes together: whole squares of every level.
constexpr int kStrip = 64;

// Bytes of weights that are worth a chunk of their own.
constexpr std::size_t kChunkBytes = 32 << 10;

// Rows that share a panel, whose numbers of a panel's inputs stay in the second-level cache.
constexpr std::size_t kMostFloatRows = 288;

}  // namespace

void FloatLinear::run(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  if (rows == 0) return;
  rows <= kFewRows ? run_few(x, static_cast<int>(rows), y, parallel) : run_many(x, rows, y, parallel);
}

void FloatLinear::run_few(const float* x, int rows, float* y, Parallel& parallel) const {
  const std::size_t strips = (outputs() + kStrip - 1) / kStrip;
  const std::size_t bytes = static_cast<std::size_t>(inputs()) * outputs() * sizeof(float);
  const std::size_t most = std::max<std::size_t>(1, bytes / kChunkBytes);
  const std::size_t chunks = std::min({strips, most, kChunksPerThread * parallel.threads()});
  parallel.run(chunks, Task([&](std::size_t chunk) {
                 const int begin = static_cast<int>(chunk * strips / chunks) * kStrip;
                 const int end = static_cast<int>((chunk + 1) * strips / chunks) * kStrip;
                 level_.multiply_few_floats(weights_, x, rows, begin, std::min(end, outputs()), y);
               }));
}

void FloatLinear::run_many(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  static thread_local GrowingArray<float> buffer;
  const std::size_t tile = tile_rows_of(rows, level_.tile_rows), tiles = (rows + tile - 1) / tile;
  const std::size_t stride = round_up(inputs() * tile + kBehindTile, kCacheLine / sizeof(float));
  const FloatRows of_tiles{buffer.at_least(tiles * stride), inputs(), static_cast<int>(tile), tiles, stride};
  parallel.run(tiles, Task([&](std::size_t index) {
                 const int size = static_cast<int>(std::min(tile, rows - index * tile));
                 level_.tile_floats(x + index * tile * inputs(), size, of_tiles, index);
               }));
  const std::size_t panels = (outputs() + level_.columns - 1) / level_.columns;
  const std::size_t parts = (tiles * tile + kMostFloatRows - 1) / kMostFloatRows;
  // Chunks of neighbouring rows read the same weights, so rows are the inner index.
  const std::size_t wanted = 2 * kChunksPerThread * parallel.threads();
  const std::size_t groups = std::min(panels, std::max<std::size_t>(1, (wanted + parts - 1) / parts));
  parallel.run(groups * parts, Task([&](std::size_t chunk) {
                 const std::size_t group = chunk / parts, part = chunk % parts;
                 const std::size_t row = part * tiles / parts * tile, end = std::min(rows, (part + 1) * tiles / parts * tile);
                 const int first = static_cast<int>(group * panels / groups) * level_.columns;
                 const int last = static_cast<int>((group + 1) * panels / groups) * level_.columns;
                 level_.multiply_many_floats(weights_, of_tiles, first, std::min(last, outputs()), row,
                                             static_cast<int>(end - row), y);
               }));
}

}  // namespace edgeformer
