// Rows of activations, rounded to signed bytes block by block.
//
// The largest magnitude of a block becomes 127. A row is padded with zeros to whole blocks. Rows are kept in tiles, which
// are multiplied together: of each block, four inputs of all rows of a tile lie side by side, then the next four. So tiles
// are read front to back, and their rows do not compete for the same sets of the cache. Units of matrix tiles read rows, so
// for them a block of a row lies behind that of the row before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aligned.h"
#include "panels.h"

namespace edgeformer {

// How a level wants its tiles.
struct TileForm {
  int most_rows;
  bool by_rows;  // the inputs of a row lie side by side, instead of four inputs of all rows

  // Rows of a tile, of which there are as few as can be: they are as equal as can be, too. Of 16 rows, two tiles of 8 take
  // less time than one of 12 and one of 4.
  int rows_of(std::size_t rows) const {
    const std::size_t tiles = (rows + most_rows - 1) / most_rows;
    return static_cast<int>((rows + tiles - 1) / tiles);
  }
};

struct Activations {
  int block, blocks;      // those of the weights that they meet
  int zero_point;         // of all weights; -1 where blocks have their own
  int tile_rows;
  bool by_rows;  // see TileForm
  std::size_t tiles;
  std::int8_t* values;    // [blocks][tiles][block / 4][tile_rows][4], or [blocks][tiles][tile_rows][block]
  float* scales;          // [blocks][tiles][tile_rows]
  std::int32_t* offsets;  // [blocks][tiles][tile_rows]: sums of the values, times -zero_point

  std::size_t at(std::size_t row, int of_block) const { return of_block * tiles * tile_rows + row; }
  // The first four values of a row in a block; the next are word_stride() bytes behind.
  std::int8_t* values_of(std::size_t row, int of_block) const {
    return values + (of_block * tiles + row / tile_rows) * block * tile_rows + row % tile_rows * (by_rows ? block : 4);
  }
  std::size_t word_stride() const { return by_rows ? 4 : 4 * static_cast<std::size_t>(tile_rows); }
};

// Memory for the activations of one product at a time.
class ActivationBuffer {
 public:
  Activations make(std::size_t rows, TileForm form, const Panels& panels) {
    const int tile_rows = form.rows_of(rows);
    const std::size_t tiles = round_up(rows, tile_rows) / tile_rows, count = tiles * tile_rows * panels.blocks();
    return {panels.block(),
            panels.blocks(),
            panels.has_zero_points() ? -1 : panels.common_zero_point(),
            tile_rows,
            form.by_rows,
            tiles,
            values_.at_least(count * panels.block()),
            scales_.at_least(count),
            offsets_.at_least(count)};
  }

 private:
  GrowingArray<std::int8_t> values_;
  GrowingArray<float> scales_;
  GrowingArray<std::int32_t> offsets_;
};

}  // namespace edgeformer
