// Products of matrices of floats in registers, written once over a SIMD level V (see simd_kernels.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "half.h"
#include "simd_integers.h"

namespace edgeformer {

// A vector of numbers that are stored as floats, halves, bfloat16 or bytes.
template <class V>
typename V::Floats load_floats(const float* from) {
  return V::load(from);
}
template <class V>
typename V::Floats load_floats(const Half* from) {
  return V::load_halves(reinterpret_cast<const std::uint8_t*>(from));
}
template <class V>
typename V::Floats load_floats(const std::int8_t* from) {
  return V::to_floats(V::widen_signed(reinterpret_cast<const std::uint8_t*>(from)));
}
template <class V>
typename V::Floats load_floats(const Bfloat16* from) {
  return V::load_bfloat16(from);
}

// Levels that multiply pairs of bfloat16, each in the 32 bits of a float: add_pairs(a, b, sums) adds both products of a pair.
// pair_halves makes pairs of neighbours in two vectors, pair_rows of the first number with the second.
template <class V>
concept HasPairs = requires(typename V::Floats pairs) { V::add_pairs(pairs, pairs, pairs); };

// c[kRows][columns] (+)= a[kRows][depth] b[depth][columns], of kVectors vectors of columns. Strides are from row to row. Of
// pairs, a and b have one in each float, and depth counts them. T: of a number of b.
template <class T>
struct TileOf {
  const float* a;
  const T* b;
  float* c;
  std::size_t a_stride, b_stride, c_stride;
  int depth;
};
using Tile = TileOf<float>;

// kStreams: b comes from memory.
template <class V, class T, int kRows, int kVectors, bool kAdds, bool kPairs, bool kStreams>
void multiply_float_tile(const TileOf<T>& tile) {
  typename V::Floats sums[kRows][kVectors];
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kVectors; ++i) sums[row][i] = V::splat(0.0f);
  }
  const T* b = tile.b;
  for (int step = 0; step < tile.depth; ++step, b += tile.b_stride) {
    typename V::Floats columns[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (kStreams) V::prefetch(reinterpret_cast<const std::byte*>(b + i * V::kLanes) + kPrefetchDistance);
      columns[i] = load_floats<V>(b + i * V::kLanes);
    }
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) {
      const typename V::Floats a = V::splat(tile.a[row * tile.a_stride + step]);
      for (int i = 0; i < kVectors; ++i) {
        if constexpr (kPairs) {
          sums[row][i] = V::add_pairs(a, columns[i], sums[row][i]);
        } else {
          sums[row][i] = V::multiply_add(a, columns[i], sums[row][i]);
        }
      }
    }
  }
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kVectors; ++i) {
      float* c = tile.c + row * tile.c_stride + i * V::kLanes;
      V::store(c, kAdds ? V::add(V::load(c), sums[row][i]) : sums[row][i]);
    }
  }
}

template <class V, class T, int kVectors, bool kAdds, bool kPairs, bool kStreams, int... kRows>
constexpr auto float_tiles_of(std::integer_sequence<int, kRows...>) {
  return std::array{&multiply_float_tile<V, T, kRows + 1, kVectors, kAdds, kPairs, kStreams>...};
}

// Tiles of one row to kTileRows rows.
template <class V, class T, int kVectors, bool kAdds, bool kPairs, bool kStreams>
inline constexpr auto kFloatTiles =
    float_tiles_of<V, T, kVectors, kAdds, kPairs, kStreams>(std::make_integer_sequence<int, V::kTileRows>());

// The product of any number of rows, and columns in whole vectors.
template <class V, bool kAdds, bool kPairs>
void multiply_matrices(const Tile& whole, int rows, int columns) {
  for (int column = 0; column < columns;) {
    const int vectors = column + 2 * V::kLanes <= columns ? 2 : 1;
    for (int row = 0; row < rows; row += V::kTileRows) {
      const Tile tile{whole.a + row * whole.a_stride, whole.b + column, whole.c + row * whole.c_stride + column,
                      whole.a_stride, whole.b_stride, whole.c_stride, whole.depth};
      const int index = std::min(rows - row, V::kTileRows) - 1;
      vectors == 2 ? kFloatTiles<V, float, 2, kAdds, kPairs, false>[index](tile)
                   : kFloatTiles<V, float, 1, kAdds, kPairs, false>[index](tile);
    }
    column += vectors * V::kLanes;
  }
}

}  // namespace edgeformer
