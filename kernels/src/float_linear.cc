#include "float_linear.h"

#include <algorithm>

namespace edgeformer {
namespace {

// Bytes of weights that are worth a chunk of their own, about a microsecond of reading.
constexpr std::size_t kChunkBytes = 32 << 10;

}  // namespace

void FloatLinear::run(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  if (rows == 0) return;
  const std::size_t panels = panels_.count(), parts = (rows + kMostRows - 1) / kMostRows;
  const std::size_t bytes = panels * panels_.panel_bytes() * (up_ ? 2 : 1);
  const std::size_t most = rows == 1 ? std::max<std::size_t>(1, bytes / kChunkBytes) : panels;
  const std::size_t wanted = kChunksPerThread * parallel.threads() * (rows == 1 ? 1 : 2);
  const std::size_t groups = std::min({panels, most, std::max<std::size_t>(1, (wanted + parts - 1) / parts)});
  // Chunks of neighbouring rows read the same panels, so rows are the inner index.
  parallel.run(groups * parts, Task([&](std::size_t chunk) {
                 const std::size_t group = chunk / parts, part = chunk % parts;
                 const std::size_t row = part * rows / parts, end = (part + 1) * rows / parts;
                 const int first = group * panels / groups, last = (group + 1) * panels / groups;
                 multiply(x + row * inputs(), static_cast<int>(end - row), first, last,
                          y + row * outputs() + first * panels_.columns());
               }));
}

void FloatLinear::multiply(const float* x, int rows, int begin, int end, float* y) const {
  const std::size_t stride = outputs();
  if (!up_) return level_.multiply_floats(panels_, x, rows, begin, end, y, stride);
  alignas(kCacheLine) float ups[kMostRows * kGateColumns];
  const int columns = panels_.columns();
  for (int panel = begin; panel < end; ++panel, y += columns) {
    level_.multiply_floats(panels_, x, rows, panel, panel + 1, y, stride);
    level_.multiply_floats(*up_, x, rows, panel, panel + 1, ups, columns);
    for (int row = 0; row < rows; ++row) level_.gate(activation_, y + row * stride, ups + row * columns, columns, y + row * stride);
  }
}

}  // namespace edgeformer
