// Products of many rows, a tile of kTileRows rows and one panel at a time, over a SIMD level V (see simd_kernels.h).
//
// A block of a panel is unpacked to bytes once for up to kMostRows rows; bytes, activations and results of these rows
// stay in the first-level cache.
#pragma once

#include "simd_integers.h"
#include "simd_kernels.h"

namespace edgeformer {

// What a tile reads and writes beside the weights: its rows of a block, as Activations has them.
struct TileRows {
  const std::int8_t* values;
  std::size_t word_stride;
  const float* scales;
  const std::int32_t* offsets;
  float* results;  // [rows][columns]
};

// What a tile reads of a block: 8-bit weights; 4-bit weights as they are stored, which the first tile of several unpacks for
// the others; or what it has unpacked.
enum class Form { kBytes, kPacked, kPackedForOthers, kUnpacked };

// One block of a panel: its integers, memory for them as bytes, and the scales and zero points (or null) of its columns.
// is_new: whether the integers are read for the first time.
struct Block {
  const std::uint8_t* integers;
  std::uint8_t* unpacked;
  const std::uint8_t* scales;
  const std::uint8_t* zero_points;
  int size;
  bool is_signed, is_new;
};

// results += rows times block.
template <class V, int kRows, Form kForm>
void multiply_tile(const Block& block, const TileRows& rows) {
  typename V::Ints sums[kRows][2];
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
    sums[row][0] = sums[row][1] = V::splat(start_of(block.zero_points, rows.offsets[row]));
  }
  if constexpr (kForm == Form::kBytes) {
    add_products<V, kRows, false>(block.integers, block.size, rows.values, rows.word_stride, block.is_new, sums);
  } else if constexpr (kForm == Form::kUnpacked) {
    add_products<V, kRows, true>(block.unpacked, block.size, rows.values, rows.word_stride, false, sums);
  } else {
    constexpr bool kKeep = kForm == Form::kPackedForOthers;
    add_packed<V, kRows, kKeep>(block.integers, block.size, rows.values, rows.word_stride, block.unpacked, sums);
  }
  // Everything is read ahead of the results, which the compiler must take for aliases of bytes.
  const float* of_rows = rows.scales;
  const std::int32_t* offsets = rows.offsets;
  const std::uint8_t* points = block.zero_points;
  float* result = rows.results;
  const bool is_signed = block.is_signed;
  typename V::Floats scales[2];
  for (int half = 0; half < 2; ++half) scales[half] = V::load_halves(block.scales + half * V::kLanes * sizeof(Half));
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
    const typename V::Floats of_row = V::splat(of_rows[row]);
    for (int half = 0; half < 2; ++half, result += V::kLanes) {
      const std::uint8_t* of_half = points != nullptr ? points + half * V::kLanes : nullptr;
      const typename V::Floats exact = corrected<V>(sums[row][half], of_half, is_signed, offsets[row]);
      V::store(result, V::multiply_add(exact, V::multiply(of_row, scales[half]), V::load(result)));
    }
  }
}

template <class V, Form kForm, int... kRows>
constexpr auto tiles_of(std::integer_sequence<int, kRows...>) {
  return std::array{&multiply_tile<V, kRows + 1, kForm>...};
}

// Tiles of one row to kTileRows rows.
template <class V, Form kForm>
inline constexpr auto kTiles = tiles_of<V, kForm>(std::make_integer_sequence<int, V::kTileRows>());

// 4-bit weights of a block, one in a byte, in the order of 8-bit weights.
template <class V>
void unpack_nibbles(const std::uint8_t* w, int block, std::uint8_t* bytes) {
  for (int input = 0; input < block; input += 8, w += 2 * V::kBytes, bytes += 4 * V::kBytes) {
    for (int half = 0; half < 2; ++half) {
      V::prefetch(w + half * V::kBytes + kPrefetchDistance);
      const typename V::Bytes both = V::load_bytes(w + half * V::kBytes);
      V::store_bytes(bytes + half * V::kBytes, V::low_nibbles(both));
      V::store_bytes(bytes + (2 + half) * V::kBytes, V::high_nibbles(both));
    }
  }
}

template <class V, bool kNibbles>
void multiply_rows_of(const Panels& panels, const Activations& activations, int begin, int end, int row, int rows,
                      float* y, std::size_t stride) {
  constexpr int kColumns = 2 * V::kLanes;
  alignas(kCacheLine) std::uint8_t unpacked[kNibbles ? kMostNibbles * kColumns : 1];
  alignas(kCacheLine) float results[kMostRows * kColumns];
  for (int panel = begin; panel < end; ++panel, y += kColumns) {
    std::memset(results, 0, rows * kColumns * sizeof(float));
    const std::uint8_t* w = panels.panel(panel);
    for (int index = 0; index < panels.blocks(); ++index, w += panels.block_bytes()) {
      const std::uint8_t* points = panels.has_zero_points() ? panels.zero_points(panel) + index * kColumns : nullptr;
      Block block{w, unpacked, w + panels.integer_bytes(), points, panels.block(), panels.bias() != 0, true};
      // Matrices read words of two steps side by side, which are together in unpacked bytes only.
      if constexpr (kNibbles && HasMatrices<V>) unpack_nibbles<V>(w, panels.block(), unpacked);
      for (int first = 0; first < rows; first += activations.tile_rows, block.is_new = false) {
        const std::size_t at = activations.at(row + first, index);
        const TileRows tile{activations.values_of(row + first, index), activations.word_stride(),
                            activations.scales + at, activations.offsets + at, results + first * kColumns};
        const int size = std::min(rows - first, activations.tile_rows);
        if constexpr (!kNibbles) {
          kTiles<V, Form::kBytes>[size - 1](block, tile);
        } else if (HasMatrices<V> || !block.is_new) {
          kTiles<V, Form::kUnpacked>[size - 1](block, tile);
        } else if (rows > activations.tile_rows) {
          kTiles<V, Form::kPackedForOthers>[size - 1](block, tile);
        } else {
          kTiles<V, Form::kPacked>[size - 1](block, tile);
        }
      }
    }
    for (int each = 0; each < rows; ++each) {
      const float* from = results + each * kColumns;
      const typename V::Floats halves[2] = {V::load(from), V::load(from + V::kLanes)};
      store_results<V>(panels, panel, halves, y + each * stride);
    }
  }
}

template <class V>
void multiply_rows(const Panels& panels, const Activations& activations, int begin, int end, int row, int rows,
                   float* y, std::size_t stride) {
  if (panels.bits() == 4) {
    multiply_rows_of<V, true>(panels, activations, begin, end, row, rows, y, stride);
  } else {
    multiply_rows_of<V, false>(panels, activations, begin, end, row, rows, y, stride);
  }
}

}  // namespace edgeformer
