// Products with weights of floats in panels, written once over a SIMD level V (see simd_kernels.h).
#pragma once

#include <algorithm>
#include <cstring>

#include "float_weights.h"
#include "simd_integers.h"
#include "simd_matrices.h"

namespace edgeformer {

// Inputs that are summed by themselves before they are added to the sums of those before: errors grow less, and a part of a
// panel and of x stays in the first-level cache.
inline constexpr int kInputsAtOnce = 256;

template <class V, class T>
void multiply_floats_of(const FloatPanels& panels, const float* x, int rows, int begin, int end, float* y, std::size_t stride) {
  constexpr int kColumns = 2 * V::kLanes;
  alignas(kCacheLine) float last[kMostRows * kColumns];
  const std::size_t inputs = panels.inputs();
  for (int panel = begin; panel < end; ++panel, y += kColumns) {
    const T* w = reinterpret_cast<const T*>(panels.panel(panel));
    const int left = panels.outputs() - panel * kColumns;
    float* const to = left < kColumns ? last : y;
    const std::size_t to_stride = left < kColumns ? kColumns : stride;
    for (std::size_t first = 0; first < inputs; first += kInputsAtOnce, w += kInputsAtOnce * kColumns) {
      const int depth = static_cast<int>(std::min<std::size_t>(kInputsAtOnce, inputs - first));
      for (int row = 0; row < rows; row += V::kTileRows) {
        const int index = std::min(rows - row, V::kTileRows) - 1;
        const TileOf<T> tile{x + row * inputs + first, w, to + row * to_stride, inputs, kColumns, to_stride, depth};
        const bool is_new = row == 0;
        if (first == 0) {
          (is_new ? kFloatTiles<V, T, 2, false, false, true> : kFloatTiles<V, T, 2, false, false, false>)[index](tile);
        } else {
          (is_new ? kFloatTiles<V, T, 2, true, false, true> : kFloatTiles<V, T, 2, true, false, false>)[index](tile);
        }
      }
    }
    for (int row = 0; row < rows && left < kColumns; ++row) {
      std::memcpy(y + row * stride, last + row * kColumns, left * sizeof(float));
    }
  }
}

template <class V>
void multiply_floats(const FloatPanels& panels, const float* x, int rows, int begin, int end, float* y, std::size_t stride) {
  switch (panels.type()) {
    case Numbers::kFloat: return multiply_floats_of<V, float>(panels, x, rows, begin, end, y, stride);
    case Numbers::kBfloat16: return multiply_floats_of<V, Bfloat16>(panels, x, rows, begin, end, y, stride);
  }
}

}  // namespace edgeformer
