// Products of many rows, a tile of kTileRows rows and one panel at a time, over a SIMD level V (see simd_kernels.h).
//
// A block of a panel is unpacked to bytes once for up to kMostRows rows; bytes, activations and results of these rows
// stay in the first-level cache.
#pragma once

#include "simd_kernels.h"
#include "simd_row_tiles.h"
#include "tile_products.h"

namespace edgeformer {

// Adds a block's sums of rows `begin` to `end`, [rows][columns], to their results. kCentred: of weights that are 16 times
// themselves minus their zero point.
template <class V, bool kCentred>
[[gnu::always_inline]] inline void add_scaled(const SomeBlocks& block, const TileRows& rows, int begin, int end,
                                              const std::int32_t* sums) {
  constexpr int kColumns = 2 * V::kLanes;
  typename V::Floats scales[2];
  for (int half = 0; half < 2; ++half) {
    scales[half] = V::load_halves(block.scales() + half * V::kLanes * sizeof(Half));
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

// The rows of a product with a panel, and their results, [rows][columns].
struct RowsOfPanel {
  const Panels& panels;
  int panel;
  const Activations& activations;
  int first, count;
  float* results;
  float* y;
  std::size_t stride;

  // Blocks from this index on, and memory for them as bytes.
  SomeBlocks blocks(int index, int some, std::uint8_t* unpacked) const {
    const std::uint8_t* points = panels.has_zero_points() ? panels.zero_points(panel) + index * panels.columns() : nullptr;
    return {panels.panel(panel) + index * panels.block_bytes(),
            unpacked,
            points,
            some,
            panels.block(),
            panels.inputs_of(index + some - 1),
            panels.block_bytes(),
            panels.integer_bytes(1),
            panels.bias() != 0,
            true};
  }

  // Some rows and blocks from this index on, of which is_last has the last one.
  TileRows tile(int row, int index, bool is_last) const {
    const std::size_t at = activations.at(first + row, index), to_next = activations.at(0, 1);
    const bool is_whole = (panel + 1) * panels.columns() <= panels.outputs();
    return {activations.values_of(first + row, index),
            activations.word_stride(),
            activations.scales + at,
            activations.offsets + at,
            to_next * activations.block,
            to_next,
            results + row * panels.columns(),
            index == 0,
            is_last && is_whole ? y + row * stride : nullptr,
            stride,
            panels.factors(panel)};
  }

  // To the next tile.
  void step(TileRows& tile) const {
    const int size = activations.tile_rows;
    tile.values += activations.block * size;
    tile.scales += size;
    tile.offsets += size;
    tile.results += size * panels.columns();
    if (tile.y != nullptr) tile.y += size * stride;
  }

  void clear() const { std::memset(results, 0, count * panels.columns() * sizeof(float)); }

  // From rows `begin` to `end`, of which all blocks have been added.
  template <class V>
  void store(int begin, int end) const {
    for (int row = begin; row < end; ++row) {
      const float* from = results + row * 2 * V::kLanes;
      const typename V::Floats halves[2] = {V::load(from), V::load(from + V::kLanes)};
      store_results<V>(panels, panel, halves, y + row * stride);
    }
  }
};

// Multiplies a panel, of weights of which 4, 6 or 8 bits are kept, by rows. V's vectors multiply, or its unit of matrix
// tiles, for which rows are kept otherwise (TileForm).
template <class V, int kBits, bool kByUnit>
class Blocks {
 public:
  void multiply(const RowsOfPanel& rows) {
    const int blocks = rows.panels.blocks();
    if constexpr (kInRegisters) {
      const int most = std::max(1, kInputsAtOnce / rows.panels.block()), parts = (blocks + most - 1) / most;
      for (int part = 0, index = 0; part < parts; ++part) {
        const int end = (part + 1) * blocks / parts;
        multiply_some(index, end - index, rows);
        index = end;
      }
    } else {
      rows.clear();
      for (int index = 0; index < blocks; ++index) multiply_some(index, 1, rows);
      rows.store<V>(0, rows.count);
    }
  }

 private:
  static constexpr bool kInRegisters = rows_in_registers<V>() > 0;

  // Inputs that a tile multiplies before it stores its results. Their bytes have to stay in the first-level cache for the
  // other tiles: they take 20 kB.
  static constexpr int kInputsAtOnce = kInRegisters ? 640 : kMostPacked;

  // Rows of a tile whose sums leave registers for what unpacks 6 bits; of more, a block is unpacked before. With results in
  // registers, too, 16 rows in tiles of 6 took 1.1 times as long (AMD Zen 4).
  static constexpr int kRowsBesideSixBits = kInRegisters ? 4 : V::kTileRows;

  // Tiles that take less time than memory: more of them lose 2 % by fetching.
  static constexpr int kFewTiles = 4;

  void multiply_some(int index, int some, const RowsOfPanel& rows) {
    SomeBlocks blocks = rows.blocks(index, some, unpacked_);
    // Matrices read words of two steps side by side, which are together in unpacked bytes only.
    if constexpr (kBits == 4 && HasMatrices<V>) unpack_nibbles<V>(blocks.integers, blocks.inputs_of_last, unpacked_);
    const bool is_last = index + some == rows.panels.blocks();
    const int of_tile = rows.activations.tile_rows, tiles = (rows.count + of_tile - 1) / of_tile;
    if (kBits == 6 && (HasMatrices<V> || of_tile > kRowsBesideSixBits)) {
      unpack(blocks);
      blocks.is_new = false;
    }
    if (kInRegisters && tiles > 1 && tiles <= kFewTiles) {
      // The first tile alone would wait for what it fetches, while memory waits for the others.
      blocks.ahead = blocks.integers + kPrefetchDistance;
      blocks.end_ahead = blocks.ahead + some * blocks.bytes;
      blocks.lines = static_cast<int>((blocks.bytes + tiles * kCacheLine - 1) / (tiles * kCacheLine));
    }
    TileRows tile = rows.tile(0, index, is_last);
    for (int first = 0; first < rows.count; first += of_tile, blocks.is_new = false) {
      const int size = std::min(rows.count - first, of_tile);
      multiply_tile_of(blocks, tile, size, rows.count);
      if (kInRegisters && is_last && tile.y == nullptr) rows.store<V>(first, first + size);
      rows.step(tile);
      blocks.ahead += some * blocks.lines * kCacheLine;
    }
  }

  static void unpack(const SomeBlocks& blocks) {
    std::uint8_t* to = blocks.unpacked;
    for (int block = 0; block < blocks.count; ++block, to += blocks.inputs * 2 * V::kLanes) {
      const int inputs = block + 1 < blocks.count ? blocks.inputs : blocks.inputs_of_last;
      unpack_six_bits<V>(blocks.integers + block * blocks.bytes, inputs, to);
    }
  }

  // A tile of `size` rows, of which there are `all` with others.
  static void multiply_tile_of(const SomeBlocks& blocks, const TileRows& tile, int size, int all) {
    if constexpr (kBits == 8) {
      kTiles<V, kBits, Form::kPacked, kInRegisters>[size - 1](blocks, tile);
    } else if (HasMatrices<V> || !blocks.is_new) {
      kTiles<V, kBits, Form::kUnpacked, kInRegisters>[size - 1](blocks, tile);
    } else if (all > size) {
      kTiles<V, kBits, Form::kPackedForOthers, kInRegisters>[size - 1](blocks, tile);
    } else {
      kTiles<V, kBits, Form::kPacked, kInRegisters>[size - 1](blocks, tile);
    }
  }

  alignas(kCacheLine) std::uint8_t unpacked_[kBits < 8 ? kInputsAtOnce * 2 * V::kLanes : 1];
};

// The unit takes two tiles of rows at a time. Nothing is read that was just stored, which would keep it waiting: while it
// multiplies, sums of the two tiles before become results, and the block behind is unpacked.
template <HasTiles V, int kBits>
class Blocks<V, kBits, true> {
  static constexpr int kColumns = 2 * V::kLanes;

 public:
  void multiply(const RowsOfPanel& rows) {
    rows.clear();
    for (int index = 0; index < rows.panels.blocks(); ++index) multiply_next(index, rows);
    multiply_last(rows.panels.blocks() - 1, rows);
    is_centred() ? add_sums<true>(sums_.count) : add_sums<false>(sums_.count);
    rows.store<V>(0, rows.count);
  }

 private:
  void multiply_next(int index, const RowsOfPanel& rows) {
    // The last one is read whole, as the unit is configured.
    const SomeBlocks block = rows.blocks(index, 1, unpacked_[index % 2]);
    if constexpr (kBits == 6) {
      unpack_six_bits<V>(block.integers, block.inputs, block.unpacked);
    } else if constexpr (kBits == 8) {
      const int size = block.inputs * kColumns;
      for (int at = 0; at < size; at += kCacheLine) V::prefetch(block.integers + at + kPrefetchDistance);
    } else if (block.zero_points != nullptr) {
      unpack_nibbles<V>(block.integers, block.inputs, block.unpacked);
    } else {
      unpack_nibbles<V>(block.integers, block.inputs, block.unpacked, V::centred_low_nibbles, V::centred_high_nibbles);
    }
    if (index > 0) multiply_last(index - 1, rows);
    block_ = block;
  }

  // Sums that wait to be added to results, from row `next` on.
  struct Sums {
    SomeBlocks block{};
    TileRows rows{};
    int count = 0, next = 0, buffer = 0;
  };

  // Whether bytes are 16 times weights minus their zero point: they are made so where all have the same.
  bool is_centred() const { return kBits == 4 && block_.zero_points == nullptr; }

  void multiply_last(int index, const RowsOfPanel& rows) {
    is_centred() ? multiply_bytes<true>(block_.unpacked, index, rows)
                 : multiply_bytes<false>(kBits < 8 ? block_.unpacked : block_.integers, index, rows);
  }

  template <bool kCentred>
  void multiply_bytes(const std::uint8_t* bytes, int index, const RowsOfPanel& rows) {
    const std::size_t to_row = block_.inputs, to_word = 4 * kColumns;
    const int of_tile = rows.activations.tile_rows, words = block_.inputs / 4;
    const int at_once = words_at_once<typename V::Tiles>(words), products = 4 * words / at_once;
    for (int first = 0; first < rows.count; first += 2 * of_tile) {
      const TileRows two = rows.tile(first, index, false);
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

  alignas(kCacheLine) std::uint8_t unpacked_[2][kBits < 8 ? kMostPacked * kColumns : kCacheLine];
  alignas(kCacheLine) std::int32_t memory_[2][2 * V::Tiles::kRows * kColumns];
  Sums sums_;
  SomeBlocks block_{};
};

template <class V, int kBits, bool kByUnit>
void multiply_rows_of(const Panels& panels, const Activations& activations, int begin, int end, int row, int rows,
                      float* y, std::size_t stride) {
  constexpr int kColumns = 2 * V::kLanes;
  alignas(kCacheLine) float results[kMostRows * kColumns];
  [[maybe_unused]] const TilesInUse<V, kByUnit> in_use(activations.tile_rows, panels.block() / 4);
  for (int panel = begin; panel < end; ++panel, y += kColumns) {
    Blocks<V, kBits, kByUnit> blocks;  // without parentheses, which would set its memory to 0: 0.2 us a panel
    blocks.multiply({panels, panel, activations, row, rows, results, y, stride});
  }
}

template <class V, bool kByUnit>
void multiply_rows_by(const Panels& panels, const Activations& activations, int begin, int end, int row, int rows,
                      float* y, std::size_t stride) {
  constexpr auto kOf4Bits = multiply_rows_of<V, 4, kByUnit>, kOf6Bits = multiply_rows_of<V, 6, kByUnit>;
  constexpr auto kOf8Bits = multiply_rows_of<V, 8, kByUnit>;
  const auto multiply = panels.kept_bits() == 4 ? kOf4Bits : panels.kept_bits() == 6 ? kOf6Bits : kOf8Bits;
  multiply(panels, activations, begin, end, row, rows, y, stride);
}

template <class V>
void multiply_rows(const Panels& panels, const Activations& activations, int begin, int end, int row, int rows,
                   float* y, std::size_t stride) {
  if constexpr (HasTiles<V>) {
    if (activations.by_rows) return multiply_rows_by<V, true>(panels, activations, begin, end, row, rows, y, stride);
  }
  multiply_rows_by<V, false>(panels, activations, begin, end, row, rows, y, stride);
}

}  // namespace edgeformer
