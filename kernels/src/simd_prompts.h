// Attention of many tokens, over a SIMD level V (see simd_kernels.h): blocks of keys are laid out as columns, and tiles of rows
// are multiplied by them as matrices. head_dim is a multiple of V::kLanes.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "simd_matrices.h"
#include "simd_quad_values.h"
#include "simd_quads.h"
#include "simd_scores.h"
#include "simd_steps.h"
#include "simd_stored.h"
#include "tile_products.h"

namespace edgeformer {

// How a prompt's attention multiplies matrices: numbers of a word, rows that are multiplied together, rows that are where they
// see different keys, of which number whole ones are written, and the product.
template <class V>
struct OfFloats {
  static constexpr int kNumbers = 1, kRows = kRowsOfScores, kRowsApart = V::kTileRows, kRowsWritten = 1;
  template <bool kAdds>
  void multiply(const Tile& tile, int rows, int columns) {
    multiply_matrices<V, kAdds, false>(tile, rows, columns);
  }
};

template <class V>
struct OfPairs {
  static constexpr int kNumbers = 2, kRows = kRowsOfScores, kRowsApart = V::kTileRows, kRowsWritten = 1;
  template <bool kAdds>
  void multiply(const Tile& tile, int rows, int columns) {
    multiply_matrices<V, kAdds, true>(tile, rows, columns);
  }
};

// By a unit of matrix tiles, to whole tiles of rows: those behind the last may be written, and mean nothing.
template <HasTiles V>
class OfPairs<V> {
  using T = typename V::Tiles;

 public:
  static constexpr int kNumbers = 2, kRows = 2 * kTileRowsOfUnit, kRowsApart = kRows, kRowsWritten = kTileRowsOfUnit;
  static_assert(T::kRows == kTileRowsOfUnit);

  OfPairs() = default;
  OfPairs(const OfPairs&) = delete;
  OfPairs& operator=(const OfPairs&) = delete;
  ~OfPairs() {
    if (words_ > 0) T::release();
  }

  template <bool kAdds>
  void multiply(const Tile& whole, int rows, int columns) {
    constexpr std::size_t kBytes = sizeof(float);
    const int words = words_at_once<T>(whole.depth);
    if (words != words_) T::configure(T::kRows, words, V::kLanes);
    words_ = words;
    const auto nothing = [] {};
    for (int row = 0; row < rows; row += 2 * T::kRows) {
      for (int column = 0; column < columns; column += 2 * V::kLanes) {
        const TileProduct product{whole.a + row * whole.a_stride, whole.b + column, whole.c + row * whole.c_stride + column,
                                  whole.a_stride * kBytes, whole.b_stride * kBytes, whole.c_stride * kBytes,
                                  T::kRows, whole.depth, words};
        const bool two_tiles = row + T::kRows < rows, two_vectors = column + V::kLanes < columns;
        if (two_tiles && two_vectors) multiply_tiles<V, Words::kPairs, kAdds, true, true>(product, nothing);
        if (two_tiles && !two_vectors) multiply_tiles<V, Words::kPairs, kAdds, true, false>(product, nothing);
        if (!two_tiles && two_vectors) multiply_tiles<V, Words::kPairs, kAdds, false, true>(product, nothing);
        if (!two_tiles && !two_vectors) multiply_tiles<V, Words::kPairs, kAdds, false, false>(product, nothing);
      }
    }
  }

 private:
  int words_ = 0;  // that the unit is configured for
};

// By bytes, but those of the first block of keys: of one before it there is no mean, and its first keys are often the ones that
// most tokens attend to. Values of a block that a row sees in part are multiplied as floats are, or by pairs where there are any.
template <class V>
struct OfQuads : std::conditional_t<HasPairs<V>, OfPairs<V>, OfFloats<V>> {
  QuadQueries queries;
  QuadKeys keys;
  QuadValues values;
  QuadFactors factors;

  // In memory for head_dim / 4 + 4 floats of each row in whole vectors, and head_dim / 2 + 2 of each key and head_dim three times.
  void lay_out(float* of_rows, float* of_keys, int rows, int head_dim) {
    const int whole = whole_vectors<V>(rows), words = kKeysAtOnce * head_dim / 4;
    float* behind = of_rows + static_cast<std::size_t>(whole) * head_dim / 4;
    queries = {reinterpret_cast<std::int8_t*>(of_rows), behind, behind + whole};
    factors = {behind + 2 * whole, behind + 3 * whole};
    behind = of_keys + 2 * words;
    keys = {reinterpret_cast<std::uint8_t*>(of_keys), behind, reinterpret_cast<std::int32_t*>(behind + kKeysAtOnce),
            behind + 2 * kKeysAtOnce};
    behind = keys.mean + head_dim;
    values = {reinterpret_cast<std::uint8_t*>(of_keys + words), behind, reinterpret_cast<std::int32_t*>(behind + head_dim)};
  }

  // Queries take the place of keys.
  void multiply_mean(const AttentionRows& rows) const {
    for (int row = 0; row < rows.rows; row += V::kLanes) {
      const float* from = rows.queries + static_cast<std::size_t>(row) * rows.head_dim;
      multiply_keys<V, Stored::kFloat, 1>(keys.mean, from, from, rows.head_dim, rows.rows - row, queries.of_mean + row);
    }
  }
};

template <class M>
inline constexpr bool has_quads = requires(M matrices) { matrices.lay_out(nullptr, nullptr, 0, 0); };

// Keys as columns, [head_dim][kKeysAtOnce]. Columns behind the last are copies of it.
template <class V>
void transpose_keys(const float* keys, int count, int head_dim, float* columns) {
  typename V::Floats square[V::kLanes];
  for (int first = 0; first < count; first += V::kLanes) {
    for (int i = 0; i < head_dim; i += V::kLanes) {
#pragma clang loop unroll(full)
      for (int key = 0; key < V::kLanes; ++key) {
        square[key] = V::load(keys + static_cast<std::size_t>(std::min(first + key, count - 1)) * head_dim + i);
      }
      V::transpose(square);
#pragma clang loop unroll(full)
      for (int j = 0; j < V::kLanes; ++j) V::store(columns + (i + j) * kKeysAtOnce + first, square[j]);
    }
  }
}

// Pairs of rows' numbers: [rows][size / 2], of size numbers each.
template <class V>
void pair_numbers(const float* x, std::size_t count, float* pairs) {
  for (std::size_t i = 0; i < count; i += 2 * V::kLanes, pairs += V::kLanes) {
    const bool whole = i + V::kLanes < count;
    V::store(pairs, V::pair_halves(V::load(x + i), whole ? V::load(x + i + V::kLanes) : V::splat(0.0f)));
  }
}

// Keys as columns of pairs, [head_dim / 2][kKeysAtOnce]. Columns behind the last are copies of it.
template <class V>
void pair_keys(const float* keys, int count, int head_dim, float* columns) {
  typename V::Floats square[V::kLanes];
  for (int first = 0; first < count; first += V::kLanes) {
    for (int i = 0; i < head_dim; i += 2 * V::kLanes) {
      const bool whole = i + V::kLanes < head_dim;
#pragma clang loop unroll(full)
      for (int key = 0; key < V::kLanes; ++key) {
        const float* from = keys + static_cast<std::size_t>(std::min(first + key, count - 1)) * head_dim + i;
        square[key] = V::pair_halves(V::load(from), whole ? V::load(from + V::kLanes) : V::splat(0.0f));
      }
      V::transpose(square);
      const int pairs = whole ? V::kLanes : V::kLanes / 2;
      for (int j = 0; j < pairs; ++j) V::store(columns + (i / 2 + j) * kKeysAtOnce + first, square[j]);
    }
  }
}

// Pairs of neighbouring values, [count / 2][head_dim], in whole vectors of values. The last of an odd count is paired with
// itself, and behind it are zeros.
template <class V>
void pair_values(const float* values, int count, int head_dim, float* pairs) {
  for (int key = 0; key < count; key += 2, values += 2 * head_dim) {
    const float* next = key + 1 < count ? values + head_dim : values;
    for (int i = 0; i < head_dim; i += V::kLanes, pairs += V::kLanes) {
      V::store(pairs, V::pair_rows(V::load(values + i), V::load(next + i)));
    }
  }
  const int behind = (whole_vectors<V>(count) - count) / 2 * head_dim;
  std::fill(pairs, pairs + behind, 0.0f);
}

// Scores of a row become weights, as pairs where kPairs, and what was summed before is made to fit a new largest score.
template <class V, bool kPairs>
void weigh_scores(const AttentionSums& to, int row, float* scores, int width, int head_dim) {
  const float before = to.largest[row], largest = largest_of<V>(scores, width);
  const auto weigh = [&](float shift) {
    if constexpr (!kPairs) return exponentials<V>(scores, width, shift);
    else if (width == kKeysAtOnce) return exponentials_as_pairs<V, kKeysAtOnce>(scores, width, shift);
    else return exponentials_as_pairs<V, 0>(scores, width, shift);
  };
  if (largest <= before) {
    to.weights[row] += weigh(shift_of(before));
    return;
  }
  const float factor = std::exp(before - largest);
  to.largest[row] = largest;
  to.weights[row] = to.weights[row] * factor + weigh(shift_of(largest));
  float* outputs = to.outputs + static_cast<std::size_t>(row) * head_dim;
  for (int i = 0; i < head_dim; i += V::kLanes) {
    V::store(outputs + i, V::multiply(V::load(outputs + i), V::splat(factor)));
  }
}

// Keys of a block that a token does not see, and columns behind the block's last key, get no score.
inline void hide_keys(const AttentionRows& rows, int token, int begin, int end, int width, float* scores) {
  const int first = std::clamp(rows.first_key(token), begin, end), last = std::clamp(rows.end_of_keys(token), first, end);
  std::fill(scores, scores + (first - begin), kNoScore);
  std::fill(scores + (last - begin), scores + width, kNoScore);
}

// Rows from `first` to before `end`.
struct RowSpan {
  int first, end;
};

// Rows that see all keys from `begin` to before `end`, from a multiple of kMultiple to the next, or to the last row.
template <int kMultiple>
RowSpan rows_that_see(const AttentionRows& rows, int begin, int end) {
  int first = 0, last = rows.rows / rows.heads;
  while (first < last && rows.end_of_keys(first) < end) ++first;
  while (first < last && rows.first_key(last - 1) > begin) --last;
  first = (first * rows.heads + kMultiple - 1) / kMultiple * kMultiple;
  last = last * rows.heads == rows.rows ? rows.rows : last * rows.heads / kMultiple * kMultiple;
  return {std::min(first, last), last};
}

// The first keys of a block: columns [head_dim][kKeysAtOnce] of keys, and values [seen][head_dim]; or pairs of both; or words.
struct KeysOfBlock {
  const float *columns, *values;
  int begin, seen;
  bool by_all;             // whether all rows see all of them
  bool by_words, weighed;  // whether keys are words, and whether values are
};

// Adds the values of a block to the sums of `count` rows from `row` on. queries: of all rows, as columns are. M: OfFloats,
// OfPairs or OfQuads.
template <class V, class M>
void attend_block(const AttentionRows& rows, const KeysOfBlock& block, const float* queries, int row, int count,
                  const AttentionSums& to, float* scores, M& matrices) {
  const int head_dim = rows.head_dim, end = block.begin + block.seen, width = whole_vectors<V>(block.seen);
  const std::size_t of_queries = head_dim / M::kNumbers, of_keys = kKeysAtOnce, of_outputs = head_dim;
  if constexpr (has_quads<M>) {
    if (block.by_words) multiply_quads<V>(matrices.queries, matrices.keys, head_dim, row, count, width, scores);
  }
  if (!block.by_words) {
    const Tile tile{queries + row * of_queries, block.columns, scores, of_queries, of_keys, of_keys, head_dim / M::kNumbers};
    matrices.template multiply<false>(tile, count, width);
  }
  for (int each = 0; each < count; ++each) {
    float* of_row = scores + each * of_keys;
    finish_scores<V>(rows, row + each, block.begin, end, of_row);
    if (!block.by_all || width > block.seen) {
      hide_keys(rows, (row + each) / rows.heads, block.begin, end, width, of_row);
    }
    if (!block.weighed) weigh_scores<V, M::kNumbers == 2>(to, row + each, of_row, width, head_dim);
  }
  if constexpr (has_quads<M>) {
    if (block.weighed) return attend_quads<V>(rows, matrices.values, matrices.factors, row, count, matrices.keys.nan, scores, to);
  }
  // Floats are read where they are, and behind the last value may be anything.
  const int depth = M::kNumbers == 2 ? width / 2 : block.seen;
  matrices.template multiply<true>(
      {scores, block.values, to.outputs + row * of_outputs, of_keys, of_outputs, of_outputs, depth}, count, head_dim);
}

template <class V, class M>
void attend_blocks(const AttentionRows& rows, const AttentionSums& to, float* scratch) {
  constexpr bool kPairs = M::kNumbers == 2;
  const int head_dim = rows.head_dim, end = rows.end_of_keys((rows.rows - 1) / rows.heads);
  const std::size_t of_elements = static_cast<std::size_t>(head_dim) * kKeysAtOnce, of_queries = head_dim / M::kNumbers;
  float *columns = scratch, *widened = columns + of_elements, *scores = widened + of_elements;
  float *paired_values = scores + std::size_t(kRowsOfScores) * kKeysAtOnce, *words = paired_values + of_elements / 2;
  float* of_rows = words + of_elements / 2 + 2 * kKeysAtOnce + 3 * head_dim;
  M matrices;
  const float* queries = rows.queries;
  if constexpr (kPairs) {
    for (int row = 0; row < rows.rows; ++row) {
      pair_numbers<V>(rows.queries + static_cast<std::size_t>(row) * head_dim, head_dim, of_rows + row * of_queries);
    }
    queries = of_rows;
    of_rows += whole_tiles(rows.rows) * of_queries;
  }
  const int first = rows.first_key(0) / kKeysAtOnce * kKeysAtOnce;
  if constexpr (has_quads<M>) {
    matrices.lay_out(of_rows, words, rows.rows, head_dim);
    quad_queries<V>(rows.queries, rows.rows, head_dim, matrices.queries);
    if (first > 0) mean_of_keys<V>(floats_of<V>(rows, rows.keys, first - kKeysAtOnce, first, widened), head_dim, matrices.keys.mean);
  }
  for (int begin = first; begin < end; begin += kKeysAtOnce) {
    const int keys = std::min(kKeysAtOnce, end - begin);
    const bool by_words = has_quads<M> && begin > 0, weighed = by_words && keys == kKeysAtOnce;
    const RowSpan see_all = rows_that_see<M::kRowsWritten>(rows, begin, begin + keys);
    const float* of_keys = floats_of<V>(rows, rows.keys, begin, begin + keys, widened);
    if constexpr (has_quads<M>) {
      if (by_words) {
        quad_keys<V>(of_keys, keys, head_dim, matrices.keys);
        matrices.multiply_mean(rows);
      }
      if (keys == kKeysAtOnce) mean_of_keys<V>(of_keys, head_dim, matrices.keys.mean);
    }
    if constexpr (kPairs) {
      if (!by_words) pair_keys<V>(of_keys, keys, head_dim, columns);
    } else if (!by_words) {
      transpose_keys<V>(of_keys, keys, head_dim, columns);
    }
    const float* values = floats_of<V>(rows, rows.values, begin, begin + keys, widened);
    if constexpr (has_quads<M>) {
      if (weighed) quad_values<V>(values, head_dim, matrices.values);
    }
    if constexpr (kPairs) {
      if (!weighed || see_all.end - see_all.first < rows.rows) pair_values<V>(values, keys, head_dim, paired_values);
      values = paired_values;
    }
    const auto attend = [&](RowSpan span, int at_once, bool by_all) {
      for (int row = span.first; row < span.end; row += at_once) {
        const int count = std::min(at_once, span.end - row);
        const int seen = std::min(rows.end_of_keys((row + count - 1) / rows.heads) - begin, keys);
        if (seen <= 0 || rows.first_key(row / rows.heads) >= begin + keys) continue;
        const KeysOfBlock block{columns, values, begin, seen, by_all, by_words, weighed && by_all};
        attend_block<V, M>(rows, block, queries, row, count, to, scores, matrices);
      }
    };
    // Where tokens see different keys, a tile of rows is multiplied with those of its last token alone.
    attend({0, see_all.first}, M::kRowsApart, false);
    attend(see_all, M::kRows, true);
    attend({see_all.end, rows.rows}, M::kRowsApart, false);
  }
}

template <class V>
void attend_many(const AttentionRows& rows, const AttentionSums& to, float* scratch) {
  std::fill(to.outputs, to.outputs + static_cast<std::size_t>(rows.rows) * rows.head_dim, 0.0f);
  std::fill(to.weights, to.weights + rows.rows, 0.0f);
  std::fill(to.largest, to.largest + rows.rows, kNoScore);
  // Bytes were not tried in the unit of matrix tiles.
  using Exact = OfFloats<V>;
  using Rounded = std::conditional_t<HasTiles<V>, OfPairs<V>, std::conditional_t<HasQuads<V>, OfQuads<V>, Exact>>;
  rows.may_round ? attend_blocks<V, Rounded>(rows, to, scratch) : attend_blocks<V, Exact>(rows, to, scratch);
}

}  // namespace edgeformer
