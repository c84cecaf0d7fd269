// Products of many rows, a tile of kTileRows rows and one panel at a time, over a SIMD level V (see simd_kernels.h).
//
// A block of a panel is unpacked to bytes once for up to kMostRows rows; bytes, activations and results of these rows
// stay in the first-level cache.
#pragma once

#include "simd_integers.h"
#include "simd_kernels.h"
#include "tile_products.h"

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

// Adds a block's sums of rows `begin` to `end`, [rows][columns], to their results. kCentred: of weights that are 16 times
// themselves minus their zero point.
template <class V, bool kCentred>
[[gnu::always_inline]] inline void add_scaled(const Block& block, const TileRows& rows, int begin, int end,
                                              const std::int32_t* sums) {
  constexpr int kColumns = 2 * V::kLanes;
  typename V::Floats scales[2];
  for (int half = 0; half < 2; ++half) {
    scales[half] = V::load_halves(block.scales + half * V::kLanes * sizeof(Half));
    if constexpr (kCentred) scales[half] = V::multiply(scales[half], V::splat(1.0f / 16));
  }
  sums += begin * kColumns;
  float* result = rows.results + begin * kColumns;
  const float* of_rows = rows.scales;
  const std::int32_t* offsets = rows.offsets;
  for (int row = begin; row < end; ++row) {
    const typename V::Floats of_row = V::splat(of_rows[row]);
    const std::int32_t offset = offsets[row];
    for (int half = 0; half < 2; ++half, sums += V::kLanes, result += V::kLanes) {
      typename V::Floats exact;
      if constexpr (kCentred) {
        exact = V::to_floats(V::load(sums));
      } else {
        const std::uint8_t* of_half = block.zero_points ? block.zero_points + half * V::kLanes : nullptr;
        const typename V::Ints all = V::add(V::load(sums), V::splat(start_of(block.zero_points, offset)));
        exact = corrected<V>(all, of_half, block.is_signed, offset);
      }
      V::store(result, V::multiply_add(exact, V::multiply(of_row, scales[half]), V::load(result)));
    }
  }
}

// The rows of a product and their results, [rows][columns].
struct RowsOfPanel {
  const Activations& activations;
  int first, count;
  float* results;

  TileRows tile(int row, int index, int columns) const {
    const std::size_t at = activations.at(first + row, index);
    return {activations.values_of(first + row, index), activations.word_stride(), activations.scales + at,
            activations.offsets + at, results + row * columns};
  }
};

// Adds the blocks of a panel, of 4-bit or 8-bit weights, times rows to their results. V's vectors multiply, or its unit of
// matrix tiles, for which rows are kept otherwise (TileForm).
template <class V, bool kNibbles, bool kByUnit>
class Blocks {
 public:
  // The next block, of this index.
  void multiply(Block block, int index, const RowsOfPanel& rows) {
    block.unpacked = unpacked_;
    // Matrices read words of two steps side by side, which are together in unpacked bytes only.
    if constexpr (kNibbles && HasMatrices<V>) unpack_nibbles<V>(block.integers, block.size, unpacked_);
    const int of_tile = rows.activations.tile_rows;
    for (int first = 0; first < rows.count; first += of_tile, block.is_new = false) {
      const TileRows tile = rows.tile(first, index, 2 * V::kLanes);
      const int size = std::min(rows.count - first, of_tile);
      if constexpr (!kNibbles) {
        kTiles<V, Form::kBytes>[size - 1](block, tile);
      } else if (HasMatrices<V> || !block.is_new) {
        kTiles<V, Form::kUnpacked>[size - 1](block, tile);
      } else if (rows.count > of_tile) {
        kTiles<V, Form::kPackedForOthers>[size - 1](block, tile);
      } else {
        kTiles<V, Form::kPacked>[size - 1](block, tile);
      }
    }
  }

  // After the last block.
  void finish(const RowsOfPanel&) {}

 private:
  alignas(kCacheLine) std::uint8_t unpacked_[kNibbles ? kMostNibbles * 2 * V::kLanes : 1];
};

// The unit takes two tiles of rows at a time. Nothing is read that was just stored, which would keep it waiting: while it
// multiplies, sums of the two tiles before become results, and the block behind is unpacked.
template <HasTiles V, bool kNibbles>
class Blocks<V, kNibbles, true> {
  static constexpr int kColumns = 2 * V::kLanes;

 public:
  void multiply(Block block, int index, const RowsOfPanel& rows) {
    block.unpacked = unpacked_[index % 2];
    if constexpr (!kNibbles) {
      const int size = block.size * kColumns;
      for (int at = 0; at < size; at += kCacheLine) V::prefetch(block.integers + at + kPrefetchDistance);
    } else if (block.zero_points != nullptr) {
      unpack_nibbles<V>(block.integers, block.size, block.unpacked);
    } else {
      unpack_nibbles<V>(block.integers, block.size, block.unpacked, V::centred_low_nibbles, V::centred_high_nibbles);
    }
    if (index > 0) multiply_last(index - 1, rows);
    block_ = block;
    last_index_ = index;
  }

  void finish(const RowsOfPanel& rows) {
    multiply_last(last_index_, rows);
    is_centred() ? add_sums<true>(sums_.count) : add_sums<false>(sums_.count);
  }

 private:
  // Sums that wait to be added to results, from row `next` on.
  struct Sums {
    Block block{};
    TileRows rows{};
    int count = 0, next = 0, buffer = 0;
  };

  // Whether bytes are 16 times weights minus their zero point: they are made so where all have the same.
  bool is_centred() const { return kNibbles && block_.zero_points == nullptr; }

  void multiply_last(int index, const RowsOfPanel& rows) {
    is_centred() ? multiply_bytes<true>(block_.unpacked, index, rows)
                 : multiply_bytes<false>(kNibbles ? block_.unpacked : block_.integers, index, rows);
  }

  template <bool kCentred>
  void multiply_bytes(const std::uint8_t* bytes, int index, const RowsOfPanel& rows) {
    const std::size_t to_row = block_.size, to_word = 4 * kColumns;
    const int of_tile = rows.activations.tile_rows, words = block_.size / 4;
    const int at_once = words_at_once<typename V::Tiles>(words), products = 4 * words / at_once;
    for (int first = 0; first < rows.count; first += 2 * of_tile) {
      const TileRows two = rows.tile(first, index, kColumns);
      const int count = std::min(rows.count - first, 2 * of_tile), buffer = 1 - sums_.buffer;
      const int added = (sums_.count + products - 1) / products;
      multiply_panel<V, kCentred ? Words::kSigned : Words::kUnsigned>(
          {two.values, bytes, memory_[buffer], to_row, to_word, to_word, of_tile, words, at_once}, count > of_tile,
          [&] { add_sums<kCentred>(added); });
      add_sums<kCentred>(sums_.count);
      sums_ = {block_, two, count, 0, buffer};
    }
  }

  // Some more rows.
  template <bool kCentred>
  [[gnu::always_inline]] void add_sums(int rows) {
    const int end = std::min(sums_.next + rows, sums_.count);
    if (sums_.next < end) add_scaled<V, kCentred>(sums_.block, sums_.rows, sums_.next, end, memory_[sums_.buffer]);
    sums_.next = end;
  }

  alignas(kCacheLine) std::uint8_t unpacked_[2][kNibbles ? kMostNibbles * kColumns : kCacheLine];
  alignas(kCacheLine) std::int32_t memory_[2][2 * V::Tiles::kRows * kColumns];
  Sums sums_;
  Block block_{};
  int last_index_ = 0;
};

template <class V, bool kNibbles, bool kByUnit>
void multiply_rows_of(const Panels& panels, const Activations& activations, int begin, int end, int row, int rows,
                      float* y, std::size_t stride) {
  constexpr int kColumns = 2 * V::kLanes;
  alignas(kCacheLine) float results[kMostRows * kColumns];
  [[maybe_unused]] const TilesInUse<V, kByUnit> in_use(activations.tile_rows, panels.block() / 4);
  const RowsOfPanel of_panel{activations, row, rows, results};
  for (int panel = begin; panel < end; ++panel, y += kColumns) {
    std::memset(results, 0, rows * kColumns * sizeof(float));
    Blocks<V, kNibbles, kByUnit> blocks;
    const std::uint8_t* w = panels.panel(panel);
    for (int index = 0; index < panels.blocks(); ++index, w += panels.block_bytes()) {
      const std::uint8_t* points = panels.has_zero_points() ? panels.zero_points(panel) + index * kColumns : nullptr;
      blocks.multiply({w, nullptr, w + panels.integer_bytes(), points, panels.block(), panels.bias() != 0, true}, index,
                      of_panel);
    }
    blocks.finish(of_panel);
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
  if constexpr (HasTiles<V>) {
    if (activations.by_rows) {
      constexpr auto kOf4Bits = multiply_rows_of<V, true, true>, kOf8Bits = multiply_rows_of<V, false, true>;
      return (panels.bits() == 4 ? kOf4Bits : kOf8Bits)(panels, activations, begin, end, row, rows, y, stride);
    }
  }
  constexpr auto kOf4Bits = multiply_rows_of<V, true, false>, kOf8Bits = multiply_rows_of<V, false, false>;
  (panels.bits() == 4 ? kOf4Bits : kOf8Bits)(panels, activations, begin, end, row, rows, y, stride);
}

}  // namespace edgeformer
