// Products by a unit of matrix tiles, V::Tiles, over a SIMD level V (see simd_kernels.h).
//
// The unit has eight registers. Registers 0 to 3 hold sums: of two tiles of up to kRows rows, times two vectors of columns.
// Registers 4 and 5 hold these rows, up to kWords words of each, and 6 and 7 hold the columns, a word of each in a row. A
// word is four bytes or two numbers of bfloat16. So columns are read as panels have them, and rows as they lie in memory:
//
//     sums[row][column] += Σ over words  rows[row][word] · columns[word][column]
//
// configure(rows, words, columns) comes before all, and release() behind all, since a system saves what is in use.
// kernels/tests/plain_tiles.h has such a unit in plain C++, with which the tests run everywhere.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace edgeformer {

template <class V>
concept HasTiles = requires { typename V::Tiles; };

// Words that are multiplied at once: as many as fit of which there is a whole number in all words.
template <class T>
int words_at_once(int words) {
  int step = std::min(words, T::kWords);
  while (words % step != 0) --step;
  return step;
}

// The unit is in use, for tiles of so many rows and words, for as long as one of these lives; or nothing is, without kIsUsed.
template <class V, bool kIsUsed>
class TilesInUse {
 public:
  TilesInUse(int, int) {}
};

template <HasTiles V>
class TilesInUse<V, true> {
  using T = typename V::Tiles;

 public:
  TilesInUse(int rows, int words) { T::configure(rows, words_at_once<T>(words), V::kLanes); }
  ~TilesInUse() { T::release(); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

// The numbers of a word: signed bytes by signed bytes; by unsigned bytes of columns; or pairs of bfloat16.
enum class Words { kSigned, kUnsigned, kPairs };

// One or two tiles of rows times one or two vectors of columns. Strides are in bytes, from row to row.
struct TileProduct {
  const void *rows, *columns;
  void* sums;
  std::size_t row_stride, column_stride, sum_stride;
  int of_tile, words, words_at_once;
};

template <class V, Words kWords, int kSums, int kOfRows, int kOfColumns>
void add_tile_product() {
  using T = typename V::Tiles;
  if constexpr (kWords == Words::kSigned) T::template add_signed<kSums, kOfRows, kOfColumns>();
  if constexpr (kWords == Words::kUnsigned) T::template add_unsigned<kSums, kOfRows, kOfColumns>();
  if constexpr (kWords == Words::kPairs) T::template add_pairs<kSums, kOfRows, kOfColumns>();
}

// sums (+)= rows times columns. meanwhile() is run behind each product of registers, so that other work is near enough in the
// program to be done at the same time.
template <class V, Words kWords, bool kAdds, bool kTwoTiles, bool kTwoVectors, class F>
[[gnu::always_inline]] inline void multiply_tiles(const TileProduct& product, F meanwhile) {
  using T = typename V::Tiles;
  constexpr std::size_t kVector = 4 * V::kLanes;
  const auto* rows = static_cast<const std::byte*>(product.rows);
  const auto* columns = static_cast<const std::byte*>(product.columns);
  auto *sums = static_cast<std::byte*>(product.sums), *more_sums = sums + product.of_tile * product.sum_stride;
  const std::byte* more_rows = rows + product.of_tile * product.row_stride;
  const std::size_t to_sums = product.sum_stride, to_row = product.row_stride, to_word = product.column_stride;
  if constexpr (kAdds) {
    T::template load<0>(sums, to_sums);
    if constexpr (kTwoVectors) T::template load<1>(sums + kVector, to_sums);
    if constexpr (kTwoTiles) T::template load<2>(more_sums, to_sums);
    if constexpr (kTwoTiles && kTwoVectors) T::template load<3>(more_sums + kVector, to_sums);
  } else {
    T::template clear<0>();
    if constexpr (kTwoVectors) T::template clear<1>();
    if constexpr (kTwoTiles) T::template clear<2>();
    if constexpr (kTwoTiles && kTwoVectors) T::template clear<3>();
  }
  for (int word = 0; word < product.words; word += product.words_at_once) {
    T::template load<6>(columns, to_word);
    T::template load<4>(rows, to_row);
    add_tile_product<V, kWords, 0, 4, 6>();
    meanwhile();
    if constexpr (kTwoVectors) {
      T::template load<7>(columns + kVector, to_word);
      add_tile_product<V, kWords, 1, 4, 7>();
      meanwhile();
    }
    if constexpr (kTwoTiles) {
      T::template load<5>(more_rows, to_row);
      add_tile_product<V, kWords, 2, 5, 6>();
      meanwhile();
      if constexpr (kTwoVectors) {
        add_tile_product<V, kWords, 3, 5, 7>();
        meanwhile();
      }
    }
    rows += 4 * product.words_at_once;
    more_rows += 4 * product.words_at_once;
    columns += product.words_at_once * to_word;
  }
  T::template store<0>(sums, to_sums);
  if constexpr (kTwoVectors) T::template store<1>(sums + kVector, to_sums);
  if constexpr (kTwoTiles) T::template store<2>(more_sums, to_sums);
  if constexpr (kTwoTiles && kTwoVectors) T::template store<3>(more_sums + kVector, to_sums);
}

// Rows of float32, each a sum of parts of bfloat16 with the largest first, and columns of bfloat16. Strides are in pairs.
struct PartsProduct {
  static constexpr int kParts = 3;  // worth a number of float32

  const float *rows, *columns;  // pairs, of rows those of the first part
  std::size_t row_stride, part_stride, column_stride;
  float* sums;  // [2 * kRows][2 * V::kLanes]
  int words;    // whole kWords
};

// sums = rows times two vectors of columns, the smallest parts first: their sums round least. meanwhile() is run behind each
// step.
template <class V, bool kTwoTiles, class F>
[[gnu::always_inline]] inline void multiply_parts(const PartsProduct& product, F meanwhile) {
  using T = typename V::Tiles;
  constexpr std::size_t kWord = sizeof(float), kSums = 2 * V::kLanes * kWord;
  const std::size_t to_row = product.row_stride * kWord, to_word = product.column_stride * kWord;
  T::template clear<0>();
  T::template clear<1>();
  if constexpr (kTwoTiles) T::template clear<2>();
  if constexpr (kTwoTiles) T::template clear<3>();
  for (int part = PartsProduct::kParts - 1; part >= 0; --part) {
    const float *rows = product.rows + part * product.part_stride, *columns = product.columns;
    for (int word = 0; word < product.words; word += T::kWords, rows += T::kWords, columns += T::kWords * product.column_stride) {
      T::template load<6>(columns, to_word);
      T::template load<4>(rows, to_row);
      T::template add_pairs<0, 4, 6>();
      T::template load<7>(columns + V::kLanes, to_word);
      T::template add_pairs<1, 4, 7>();
      if constexpr (kTwoTiles) {
        T::template load<5>(rows + T::kRows * product.row_stride, to_row);
        T::template add_pairs<2, 5, 6>();
        T::template add_pairs<3, 5, 7>();
      }
      meanwhile();
    }
  }
  T::template store<0>(product.sums, kSums);
  T::template store<1>(product.sums + V::kLanes, kSums);
  if constexpr (kTwoTiles) T::template store<2>(product.sums + T::kRows * 2 * V::kLanes, kSums);
  if constexpr (kTwoTiles) T::template store<3>(product.sums + (T::kRows * 2 + 1) * V::kLanes, kSums);
}

// The product of one or two tiles with a panel, which is two vectors wide.
template <class V, Words kWords, class F>
[[gnu::always_inline]] inline void multiply_panel(const TileProduct& product, bool two_tiles, F meanwhile) {
  two_tiles ? multiply_tiles<V, kWords, false, true, true>(product, meanwhile)
            : multiply_tiles<V, kWords, false, false, true>(product, meanwhile);
}

}  // namespace edgeformer
