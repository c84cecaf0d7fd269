// Products of one tile of rows with some blocks of a panel, over a SIMD level V (see simd_kernels.h), and blocks of fewer than
// 8 bits as bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "aligned.h"
#include "simd_integers.h"
#include "simd_kernels.h"

namespace edgeformer {

// Rows of a tile whose results of several blocks stay in registers beside the sums of one; 0 where a level has too few of
// them.
template <class V>
constexpr int rows_in_registers() {
  if constexpr (requires { V::kRowsInRegisters; }) {
    return V::kRowsInRegisters;
  } else {
    return 0;
  }
}

// What a tile reads and writes beside the weights: its rows of a block, as Activations has them.
struct TileRows {
  const std::int8_t* values;
  std::size_t word_stride;
  const float* scales;
  const std::int32_t* offsets;
  std::size_t to_values, to_scales;  // from a block to the next

  float* results;  // [rows][columns]
  // Of a tile whose results stay in registers: they begin with 0 instead of what `results` has; and where y is not null they
  // end there, times the factors of columns, with rows `stride` apart.
  bool begins;
  float* y;
  std::size_t stride;
  const float* factors;
};

// What a tile reads of a block: weights as they are kept, of which the first tile of several unpacks those of fewer than 8 bits
// for the others; or what it has unpacked.
enum class Form { kPacked, kPackedForOthers, kUnpacked };

// Some blocks of a panel, one behind the other: integers of the first, memory for all of them as bytes, and zero points (or
// null) of its columns. is_new: whether the integers are read for the first time.
struct SomeBlocks {
  const std::uint8_t* integers;
  std::uint8_t* unpacked;
  const std::uint8_t* zero_points;
  int count, inputs, inputs_of_last;
  std::size_t bytes, input_bytes;  // from a block to the next, and of an input
  bool is_signed, is_new;

  // Integers of later blocks, which a few tiles in registers fetch: each of them so many cache lines a block. 0 lines: the
  // first tile fetches all of them.
  const std::uint8_t *ahead = nullptr, *end_ahead = nullptr;
  int lines = 0;

  // Those of the last block.
  const std::uint8_t* scales() const { return integers + (count - 1) * bytes + inputs_of_last * input_bytes; }
};

// results += rows times blocks. kInRegisters: the results stay there until the last block.
//
// Fields are read one by one: a copy of a whole structure would wait until all that was just stored is in the cache.
template <class V, int kRows, int kBits, Form kForm, bool kInRegisters>
void multiply_tile(const SomeBlocks& blocks, const TileRows& rows) {
  // Few sums would wait for each other, so those of high halves of bytes are apart where registers allow it.
  constexpr bool kApart = !kInRegisters && 2 * kRows <= V::kTileRows;
  constexpr int kColumns = 2 * V::kLanes, kInputBytes = kColumns * kBits / 8;
  const std::uint8_t *integers = blocks.integers, *points = blocks.zero_points;
  std::uint8_t* unpacked = blocks.unpacked;
  const std::int8_t* values = rows.values;
  const float* of_rows = rows.scales;
  const std::int32_t* offsets = rows.offsets;
  float* const results = rows.results;
  const std::size_t word_stride = rows.word_stride, to_values = rows.to_values, to_scales = rows.to_scales;
  const std::size_t bytes = blocks.bytes;
  const int inputs_of_others = blocks.inputs, inputs_of_last = blocks.inputs_of_last;
  const bool is_signed = blocks.is_signed, is_new = blocks.is_new;
  const std::uint8_t *ahead = blocks.ahead, *const end_ahead = blocks.end_ahead;
  const int lines = blocks.lines;
  typename V::Floats kept[kInRegisters ? kRows : 1][2];
  if constexpr (kInRegisters) {
    const bool begins = rows.begins;
    if (const float* y = rows.y; y != nullptr) {
#pragma clang loop unroll(full)
      for (int i = 0; i < 2 * kRows; ++i) __builtin_prefetch(y + i / 2 * rows.stride + i % 2 * V::kLanes, 1);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < 2 * kRows; ++i) kept[i / 2][i % 2] = begins ? V::splat(0.0f) : V::load(results + i * V::kLanes);
  }
  for (int left = blocks.count; left > 0; --left) {
    const int inputs = left > 1 ? inputs_of_others : inputs_of_last;
    if constexpr (kInRegisters) {
      for (int line = 0; line < lines && ahead < end_ahead; ++line, ahead += kCacheLine) V::prefetch(ahead);
    }
    typename V::Ints sums[kRows][2];
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = V::splat(start_of(points, offsets[row]));
    constexpr bool kKeep = kForm == Form::kPackedForOthers;
    if constexpr (kBits == 8) {
      add_products<V, kRows, false>(integers, inputs, values, word_stride, is_new && lines == 0, sums);
    } else if constexpr (kForm == Form::kUnpacked) {
      add_products<V, kRows, kBits == 4>(unpacked, inputs, values, word_stride, false, sums);
    } else if constexpr (kBits == 6) {
      add_six_bits<V, kRows, kKeep>(integers, inputs, values, word_stride, lines == 0, unpacked, sums);
    } else {
      add_packed<V, kRows, kKeep, kApart>(integers, inputs, values, word_stride, lines == 0, unpacked, sums);
    }
    typename V::Floats scales[2];
    for (int half = 0; half < 2; ++half) {
      scales[half] = V::load_halves(integers + inputs * kInputBytes + half * V::kLanes * sizeof(Half));
    }
    float* result = results;
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) {
      const typename V::Floats of_row = V::splat(of_rows[row]);
      for (int half = 0; half < 2; ++half, result += V::kLanes) {
        const std::uint8_t* of_half = points != nullptr ? points + half * V::kLanes : nullptr;
        const typename V::Floats exact = corrected<V>(sums[row][half], of_half, is_signed, offsets[row]);
        const typename V::Floats scale = V::multiply(of_row, scales[half]);
        if constexpr (kInRegisters) {
          kept[row][half] = V::multiply_add(exact, scale, kept[row][half]);
        } else {
          V::store(result, V::multiply_add(exact, scale, V::load(result)));
        }
      }
    }
    integers += bytes;
    unpacked += inputs * kColumns;
    values += to_values;
    of_rows += to_scales;
    offsets += to_scales;
    if (points != nullptr) points += kColumns;
  }
  if constexpr (kInRegisters) {
    if (float* y = rows.y; y != nullptr) {
      const std::size_t stride = rows.stride;
      const typename V::Floats factors[2] = {V::load(rows.factors), V::load(rows.factors + V::kLanes)};
#pragma clang loop unroll(full)
      for (int row = 0; row < kRows; ++row, y += stride) {
        for (int half = 0; half < 2; ++half) V::store(y + half * V::kLanes, V::multiply(kept[row][half], factors[half]));
      }
    } else {
#pragma clang loop unroll(full)
      for (int i = 0; i < 2 * kRows; ++i) V::store(results + i * V::kLanes, kept[i / 2][i % 2]);
    }
  }
}

template <class V, int kBits, Form kForm, bool kInRegisters, int... kRows>
constexpr auto tiles_of(std::integer_sequence<int, kRows...>) {
  return std::array{&multiply_tile<V, kRows + 1, kBits, kForm, kInRegisters>...};
}

// Tiles of one row to as many as there may be.
template <class V, int kBits, Form kForm, bool kInRegisters>
inline constexpr auto kTiles =
    tiles_of<V, kBits, kForm, kInRegisters>(std::make_integer_sequence<int, kInRegisters ? rows_in_registers<V>() : V::kTileRows>());

// 4-bit weights of a block, one in a byte, in the order of 8-bit weights. low, high: take them from a vector of bytes.
template <class V, class Low, class High>
void unpack_nibbles(const std::uint8_t* w, int block, std::uint8_t* bytes, Low low, High high) {
  for (int input = 0; input < block; input += 8, w += 2 * V::kBytes, bytes += 4 * V::kBytes) {
    for (int half = 0; half < 2; ++half) {
      V::prefetch(w + half * V::kBytes + kPrefetchDistance);
      const typename V::Bytes both = V::load_bytes(w + half * V::kBytes);
      V::store_bytes(bytes + half * V::kBytes, low(both));
      V::store_bytes(bytes + (2 + half) * V::kBytes, high(both));
    }
  }
}

template <class V>
void unpack_nibbles(const std::uint8_t* w, int block, std::uint8_t* bytes) {
  unpack_nibbles<V>(w, block, bytes, V::low_nibbles, V::high_nibbles);
}

// 8-bit weights of a block, of which 6 bits are kept.
template <class V>
void unpack_six_bits(const std::uint8_t* w, int block, std::uint8_t* bytes) {
  for (int input = 0; input < block; input += 16, w += 6 * V::kBytes) {
    take_sixteen<V>(w, true, [&](int, typename V::Bytes left, typename V::Bytes right) {
      V::store_bytes(bytes, left);
      V::store_bytes(bytes + V::kBytes, right);
      bytes += 2 * V::kBytes;
    });
  }
}

}  // namespace edgeformer
