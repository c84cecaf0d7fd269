#include "float_linear.h"

#include <algorithm>

namespace edgeformer {
namespace {

// Bytes of weights that are worth a chunk of their own, about a microsecond of reading.
constexpr std::size_t kFloatChunkBytes = 32 << 10;

// Rows that are split by one chunk.
constexpr std::size_t kFloatRowsAtOnce = 16;

}  // namespace

void FloatLinear::run(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  if (rows == 0) return;
  static thread_local GrowingArray<float> memory;
  const bool splits = panels_.type() == Numbers::kBfloat16 && level_.multiply_split != nullptr &&
                      rows > static_cast<std::size_t>(level_.tile_rows);
  SplitRows split{nullptr, round_up(rows, kTileRowsOfUnit), SplitRows::pairs_of(inputs())};
  if (splits) {
    split.numbers = memory.at_least(split.size());
    parallel.run((rows + kFloatRowsAtOnce - 1) / kFloatRowsAtOnce, Task([&](std::size_t chunk) {
                   const std::size_t end = std::min(rows, (chunk + 1) * kFloatRowsAtOnce);
                   for (std::size_t row = chunk * kFloatRowsAtOnce; row < end; ++row) {
                     level_.split_row(x + row * inputs(), inputs(), split, row);
                   }
                 }));
  }
  const std::size_t tile = splits ? level_.unit_rows : 1, tiles = (rows + tile - 1) / tile;
  const std::size_t panels = panels_.count(), parts = (tiles * tile + kMostRows - 1) / kMostRows;
  const std::size_t bytes = panels * panels_.panel_bytes() * (up_ ? 2 : 1);
  const std::size_t most = rows == 1 ? std::max<std::size_t>(1, bytes / kFloatChunkBytes) : panels;
  const std::size_t wanted = kChunksPerThread * parallel.threads() * (rows == 1 ? 1 : 2);
  const std::size_t groups = std::min({panels, most, std::max<std::size_t>(1, (wanted + parts - 1) / parts)});
  // Chunks of neighbouring rows read the same panels, so rows are the inner index.
  parallel.run(groups * parts, Task([&](std::size_t chunk) {
                 const std::size_t group = chunk / parts, part = chunk % parts;
                 const std::size_t row = part * tiles / parts * tile, end = std::min(rows, (part + 1) * tiles / parts * tile);
                 const int first = group * panels / groups, last = (group + 1) * panels / groups;
                 multiply({x, splits ? &split : nullptr, row, static_cast<int>(end - row)}, first, last,
                          y + row * outputs() + first * panels_.columns());
               }));
}

void FloatLinear::multiply(const FloatPanels& panels, const Rows& rows, int begin, int end, float* y, std::size_t stride) const {
  if (rows.split != nullptr) {
    level_.multiply_split(panels, *rows.split, rows.first, rows.count, begin, end, y, stride);
  } else {
    level_.multiply_floats(panels, rows.x + rows.first * inputs(), rows.count, begin, end, y, stride);
  }
}

void FloatLinear::multiply(const Rows& rows, int begin, int end, float* y) const {
  const std::size_t stride = outputs();
  if (!up_) return multiply(panels_, rows, begin, end, y, stride);
  alignas(kCacheLine) float ups[kMostRows * kGateColumns];
  const int columns = panels_.columns();
  for (int panel = begin; panel < end; ++panel, y += columns) {
    multiply(panels_, rows, panel, panel + 1, y, stride);
    multiply(*up_, rows, panel, panel + 1, ups, columns);
    for (int row = 0; row < rows.count; ++row) {
      level_.gate(activation_, y + row * stride, ups + row * columns, columns, y + row * stride);
    }
  }
}

}  // namespace edgeformer
