// Scores of a prompt's attention by bytes, over a SIMD level V (see simd_kernels.h).
//
// A query is a scale times integers from -127 to 127, and so is the difference of a key from the mean of the keys of the
// block before its own, which takes out what channels have in common in all of them:
//
//     q · k  =  q · mean  +  scale_of_query · scale_of_key · Σ integer · integer
//
// So a key's integers depend on keys before it alone, and results neither on the size of chunks nor on later tokens. Four
// integers are a word, and one dot4 multiplies words where bfloat16 takes two instructions. Source: SageAttention (Zhang et
// al., 2024), which subtracts the mean of all keys.
//
// The first bytes of a dot4 are unsigned, or unsigned ones less kByteBias = 128 where it has signed ones only. Queries are stored
// plus 128 - kByteBias, which the sums begin with times a key's integers.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "attention_rows.h"
#include "simd_integers.h"
#include "simd_matrices.h"

namespace edgeformer {

// Queries as words, [rows][head_dim / 4], of integers plus 128 - kByteBias; their scales; and their products with the mean of the
// keys, in whole vectors.
struct QuadQueries {
  std::int8_t* words;
  float *scales, *of_mean;
};

// Keys of a block as columns of words, [head_dim / 4][kKeysAtOnce]; their scales; what dot4 is to begin with, which takes
// what was added to queries out again; and the mean of the keys of the block before, [head_dim].
struct QuadKeys {
  std::uint8_t* words;
  float* scales;
  std::int32_t* starts;
  float* mean;
  float nan = 0;  // NaN where a scale is
};

// What rounds numbers up to `largest` to integers: 0 for numbers that are all 0. A largest that is not finite gives a scale
// that is none either.
struct QuadScale {
  float inverse, scale;
  explicit QuadScale(float largest)
      : inverse(largest > std::numeric_limits<float>::min() && largest <= std::numeric_limits<float>::max() ? 127.0f / largest : 0.0f),
        scale(largest / 127.0f) {}
};

// Largest magnitude; NaN where a number is NaN.
template <class V>
float largest_magnitude(const float* x, const float* less, int count) {
  typename V::Floats largest = V::splat(0.0f), nan = largest;
  for (int i = 0; i < count; i += V::kLanes) {
    const typename V::Floats part = less != nullptr ? V::subtract(V::load(x + i), V::load(less + i)) : V::load(x + i);
    largest = V::max(largest, V::abs(part));
    nan = V::multiply_add(part, V::splat(0.0f), nan);
  }
  return V::reduce_max(largest) + V::reduce_add(nan);
}

template <class V>
void round_to_quads(const float* x, const float* less, int count, float inverse, std::int8_t* to) {
  for (int i = 0; i < count; i += V::kLanes) {
    const typename V::Floats part = less != nullptr ? V::subtract(V::load(x + i), V::load(less + i)) : V::load(x + i);
    V::store_narrow(to + i, V::round(V::multiply(part, V::splat(inverse))));
  }
}

// Integers of rows of queries, as the first bytes of a dot4.
template <class V>
void quad_queries(const float* queries, int rows, int head_dim, const QuadQueries& to) {
  for (int row = 0; row < rows; ++row, queries += head_dim) {
    const QuadScale scale(largest_magnitude<V>(queries, nullptr, head_dim));
    std::int8_t* words = to.words + static_cast<std::size_t>(row) * head_dim;
    round_to_quads<V>(queries, nullptr, head_dim, scale.inverse, words);
    for (int i = 0; i < head_dim; ++i) words[i] = static_cast<std::int8_t>(words[i] + 128 - V::kByteBias);
    to.scales[row] = scale.scale;
  }
}

// The mean of the keys of a whole block, or 0 where it is not finite: rows that do not see these keys would get it, too.
template <class V>
void mean_of_keys(const float* keys, int head_dim, float* mean) {
  for (int i = 0; i < head_dim; i += V::kLanes) {
    typename V::Floats sum = V::splat(0.0f);
    for (int key = 0; key < kKeysAtOnce; ++key) sum = V::add(sum, V::load(keys + static_cast<std::size_t>(key) * head_dim + i));
    V::store(mean + i, V::multiply(sum, V::splat(1.0f / kKeysAtOnce)));
  }
  for (int i = 0; i < head_dim; ++i) mean[i] = std::isfinite(mean[i]) ? mean[i] : 0.0f;
}

// Keys of a block. Columns behind the last are copies of it.
template <class V>
void quad_keys(const float* keys, int count, int head_dim, QuadKeys& to) {
  to.nan = 0;
  static constexpr std::int8_t kOnes[] = {1, 1, 1, 1};
  constexpr int kNumbers = 4 * V::kLanes;  // of a key in a square of words
  for (int first = 0; first < count; first += V::kLanes) {
    const float* of_key[V::kLanes];
    float inverses[V::kLanes];
    for (int key = 0; key < V::kLanes; ++key) {
      of_key[key] = keys + static_cast<std::size_t>(std::min(first + key, count - 1)) * head_dim;
      const QuadScale scale(largest_magnitude<V>(of_key[key], to.mean, head_dim));
      inverses[key] = scale.inverse;
      to.scales[first + key] = scale.scale;
      to.nan += 0.0f * scale.scale;
    }
    typename V::Ints starts = V::splat(0);
    for (int i = 0; i < head_dim; i += kNumbers) {
      const int numbers = std::min(kNumbers, head_dim - i);
      alignas(kCacheLine) std::int8_t rounded[V::kLanes][kNumbers] = {};
      for (int key = 0; key < V::kLanes; ++key) {
        round_to_quads<V>(of_key[key] + i, to.mean + i, numbers, inverses[key], rounded[key]);
      }
      typename V::Floats square[V::kLanes];
#pragma clang loop unroll(full)
      for (int key = 0; key < V::kLanes; ++key) square[key] = V::load(reinterpret_cast<const float*>(rounded[key]));
      V::transpose(square);
      for (int word = 0; word < numbers / 4; ++word) {
        float* column = reinterpret_cast<float*>(to.words) + static_cast<std::size_t>(i / 4 + word) * kKeysAtOnce + first;
        V::store(column, square[word]);
        starts = V::dot4(starts, V::broadcast4(kOnes), V::load_bytes(reinterpret_cast<const std::uint8_t*>(column)));
      }
    }
    V::store(to.starts + first, V::multiply(starts, V::splat(V::kByteBias - 128)));
  }
}

// Sums of rows with what those of each column begin with.
template <class V, int kRows, int kVectors>
[[gnu::always_inline]] inline void begin_sums(const std::int32_t* starts, typename V::Ints (&sums)[kRows][kVectors]) {
  for (int i = 0; i < kVectors; ++i) {
    const typename V::Ints start = V::load(starts + i * V::kLanes);
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) sums[row][i] = start;
  }
}

// Levels whose dot4 reads a word of a vector for all lanes: dot4_word<kWord>(sums, words, columns). A broadcast is an instruction
// of its own there, beside the load.
template <class V>
concept HasDot4OfWord = requires(typename V::Ints sums, typename V::Bytes bytes) { V::template dot4_word<0>(sums, bytes, bytes); };

// Words of a row that a vector has, of levels that multiply several of a row at once.
inline constexpr int kWordsOfVector = 4;

// sums += one of the words of rows times columns.
template <class V, int kWord, int kRows, int kVectors>
[[gnu::always_inline]] inline void add_word(const typename V::Bytes (&of_rows)[kRows], const std::uint8_t* columns,
                                            typename V::Ints (&sums)[kRows][kVectors]) {
  typename V::Bytes of_columns[kVectors];
  for (int i = 0; i < kVectors; ++i) of_columns[i] = V::load_bytes(columns + i * V::kBytes);
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kVectors; ++i) sums[row][i] = V::template dot4_word<kWord>(sums[row][i], of_rows[row], of_columns[i]);
  }
}

// sums += rows of words times columns, as add_quads, for `count` words, a multiple of kWordsOfVector.
template <class V, int kRows, int kVectors>
  requires HasDot4OfWord<V>
[[gnu::always_inline]] inline void add_quads_by_word(const std::int8_t* words, std::size_t stride, const std::uint8_t* columns,
                                                     std::size_t to_next, int count, typename V::Ints (&sums)[kRows][kVectors]) {
  static_assert(V::kBytes == 4 * kWordsOfVector);
  for (int word = 0; word < count; word += kWordsOfVector, words += V::kBytes, columns += kWordsOfVector * to_next) {
    typename V::Bytes of_rows[kRows];
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) of_rows[row] = V::load_bytes(reinterpret_cast<const std::uint8_t*>(words + row * stride));
    add_word<V, 0, kRows, kVectors>(of_rows, columns, sums);
    add_word<V, 1, kRows, kVectors>(of_rows, columns + to_next, sums);
    add_word<V, 2, kRows, kVectors>(of_rows, columns + 2 * to_next, sums);
    add_word<V, 3, kRows, kVectors>(of_rows, columns + 3 * to_next, sums);
  }
}

// The same of two rows by two columns at a time, for an even number of words. The last of an odd number of rows is multiplied twice.
template <class V, int kRows, int kVectors>
  requires HasMatrices<V>
[[gnu::always_inline]] inline void add_quads_by_matrices(const std::int8_t* words, std::size_t stride, const std::uint8_t* columns,
                                                         std::size_t to_next, int count, typename V::Ints (&sums)[kRows][kVectors]) {
  constexpr int kPaired = (kRows + 1) / 2 * 2;
  typename V::Ints pairs[kPaired][kVectors];
#pragma clang loop unroll(full)
  for (int row = 0; row < kPaired; row += 2) {
    for (int i = 0; i < kVectors; ++i) {
      pairs[row][i] = sums[row][i];
      pairs[row + 1][i] = sums[std::min(row + 1, kRows - 1)][i];
      exchange<V>(pairs[row][i], pairs[row + 1][i]);
    }
  }
  for (int word = 0; word < count; word += 2, words += 8, columns += 2 * to_next) {
    typename V::Bytes low[kVectors], high[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const typename V::Bytes first = V::load_bytes(columns + i * V::kBytes), second = V::load_bytes(columns + to_next + i * V::kBytes);
      low[i] = V::zip_low_words(first, second);
      high[i] = V::zip_high_words(first, second);
    }
#pragma clang loop unroll(full)
    for (int row = 0; row < kPaired; row += 2) {
      const typename V::Bytes two = V::load_words(words + row * stride, words + std::min(row + 1, kRows - 1) * stride);
      for (int i = 0; i < kVectors; ++i) {
        pairs[row][i] = V::multiply_pairs(pairs[row][i], two, low[i]);
        pairs[row + 1][i] = V::multiply_pairs(pairs[row + 1][i], two, high[i]);
      }
    }
  }
#pragma clang loop unroll(full)
  for (int row = 0; row < kPaired; row += 2) {
    for (int i = 0; i < kVectors; ++i) {
      exchange<V>(pairs[row][i], pairs[row + 1][i]);
      sums[row][i] = pairs[row][i];
      if (row + 1 < kRows) sums[row + 1][i] = pairs[row + 1][i];
    }
  }
}

// sums += rows of words, which lie `stride` bytes apart, times kVectors vectors of columns of `count` words: one of a block of
// keys, or a channel of its values. to_next: bytes from a word of a column to the next.
template <class V, int kRows, int kVectors>
[[gnu::always_inline]] inline void add_quads(const std::int8_t* words, std::size_t stride, const std::uint8_t* columns, std::size_t to_next,
                                             int count, typename V::Ints (&sums)[kRows][kVectors]) {
  int word = 0;
  if constexpr (HasMatrices<V> && kRows > 1) {
    word = count / 2 * 2;
    add_quads_by_matrices<V, kRows, kVectors>(words, stride, columns, to_next, word, sums);
  } else if constexpr (HasDot4OfWord<V>) {
    word = count / kWordsOfVector * kWordsOfVector;
    add_quads_by_word<V, kRows, kVectors>(words, stride, columns, to_next, word, sums);
  }
  words += 4 * word;
  columns += word * to_next;
  for (; word < count; ++word, words += 4, columns += to_next) {
    typename V::Bytes of_columns[kVectors];
    for (int i = 0; i < kVectors; ++i) of_columns[i] = V::load_bytes(columns + i * V::kBytes);
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) {
      const typename V::Bytes four = V::broadcast4(words + row * stride);
      for (int i = 0; i < kVectors; ++i) sums[row][i] = V::dot4(sums[row][i], four, of_columns[i]);
    }
  }
}

// scores[kRows][kKeysAtOnce] of kVectors vectors of keys from column `first` on.
template <class V, int kRows, int kVectors>
void multiply_quad_tile(const QuadQueries& queries, const QuadKeys& keys, int head_dim, int row, int first, float* scores) {
  typename V::Ints sums[kRows][kVectors];
  begin_sums<V, kRows, kVectors>(keys.starts + first, sums);
  add_quads<V, kRows, kVectors>(queries.words + static_cast<std::size_t>(row) * head_dim, head_dim, keys.words + std::size_t(4) * first,
                                4 * kKeysAtOnce, head_dim / 4, sums);
  typename V::Floats scales[kVectors];
  for (int i = 0; i < kVectors; ++i) scales[i] = V::load(keys.scales + first + i * V::kLanes);
#pragma clang loop unroll(full)
  for (int each = 0; each < kRows; ++each) {
    const typename V::Floats scale = V::splat(queries.scales[row + each]), mean = V::splat(queries.of_mean[row + each]);
    for (int i = 0; i < kVectors; ++i) {
      const typename V::Floats of_both = V::multiply(scale, scales[i]);
      V::store(scores + each * kKeysAtOnce + first + i * V::kLanes, V::multiply_add(V::to_floats(sums[each][i]), of_both, mean));
    }
  }
}

template <class V, int kVectors, int... kRows>
constexpr auto quad_tiles_of(std::integer_sequence<int, kRows...>) {
  return std::array{&multiply_quad_tile<V, kRows + 1, kVectors>...};
}

template <class V, int kVectors>
inline constexpr auto kQuadTiles = quad_tiles_of<V, kVectors>(std::make_integer_sequence<int, V::kTileRows>());

// Scores of rows `row` to `row + rows`, [rows][kKeysAtOnce], of so many columns in whole vectors.
template <class V>
void multiply_quads(const QuadQueries& queries, const QuadKeys& keys, int head_dim, int row, int rows, int columns, float* scores) {
  for (int column = 0; column < columns;) {
    const int vectors = column + 2 * V::kLanes <= columns ? 2 : 1;
    for (int each = 0; each < rows; each += V::kTileRows) {
      const int index = std::min(rows - each, V::kTileRows) - 1;
      float* of_tile = scores + static_cast<std::size_t>(each) * kKeysAtOnce;
      (vectors == 2 ? kQuadTiles<V, 2> : kQuadTiles<V, 1>)[index](queries, keys, head_dim, row + each, column, of_tile);
    }
    column += vectors * V::kLanes;
  }
}

}  // namespace edgeformer
