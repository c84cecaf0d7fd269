// The kernels of attention, written once over a SIMD level V (see simd_kernels.h). head_dim is a multiple of V::kLanes.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "attention_rows.h"
#include "half.h"
#include "simd_kernels.h"
#include "simd_math.h"
#include "simd_matrices.h"
#include "simd_quad_values.h"
#include "simd_quads.h"
#include "simd_words.h"
#include "tile_products.h"

namespace edgeformer {

inline constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// The largest score to subtract, which must be a number: rows that see nothing have none.
inline float shift_of(float largest) { return largest == kNoScore ? 0.0f : largest; }

template <class V>
constexpr int whole_vectors(int count) {
  return (count + V::kLanes - 1) / V::kLanes * V::kLanes;
}

// Scores become e^(score - shift); returns their sum. They are in whole vectors.
template <class V>
float exponentials(float* scores, int count, float shift) {
  typename V::Floats sums = V::splat(0.0f);
  for (int i = 0; i < count; i += V::kLanes) {
    const typename V::Floats weights = exponential<V>(V::subtract(V::load(scores + i), V::splat(shift)));
    V::store(scores + i, weights);
    sums = V::add(sums, weights);
  }
  return V::reduce_add(sums);
}

// The same, roughly, as pairs of bfloat16 in the first half of the scores' memory; the last of an odd count of vectors is
// paired with zeros.
template <class V, int kCount>
float exponentials_as_pairs(float* scores, int count, float shift) {
  constexpr float kLog2OfE = 1.44269504f;
  const int all = kCount > 0 ? kCount : count;
  typename V::Floats sums = V::splat(0.0f), others = sums;
  const auto weights_at = [&](int i) {
    return rough_power_of_two<V>(V::multiply_add(V::load(scores + i), V::splat(kLog2OfE), V::splat(-kLog2OfE * shift)));
  };
#pragma clang loop unroll(full)
  for (int i = 0; i < all; i += 2 * V::kLanes) {
    const typename V::Floats first = weights_at(i);
    const typename V::Floats second = i + V::kLanes < all ? weights_at(i + V::kLanes) : V::splat(0.0f);
    V::store(scores + i / 2, V::pair_halves(first, second));
    sums = V::add(sums, first);
    others = V::add(others, second);
  }
  return V::reduce_add(V::add(sums, others));
}

// Applies the soft-cap and the bias of a row to its scores of the keys `begin` to `end`, of which the first is scores[0].
template <class V>
void finish_scores(const AttentionRows& rows, int row, int begin, int end, float* scores) {
  if (rows.softcap > 0) {
    for (int i = 0; i < end - begin; i += V::kLanes) {
      const typename V::Floats inner = V::divide(V::load(scores + i), V::splat(rows.softcap));
      V::store(scores + i, V::multiply(hyperbolic_tangent<V>(inner), V::splat(rows.softcap)));
    }
  }
  if (rows.bias != nullptr) {
    const float* bias = rows.bias + row % rows.heads * rows.bias_head_stride + row / rows.heads * rows.bias_token_stride;
    for (int key = begin; key < end; ++key) scores[key - begin] += bias[key];
  }
}

template <class V>
float largest_of(const float* scores, int count) {
  typename V::Floats largest = V::load(scores);
  for (int i = V::kLanes; i < count; i += V::kLanes) largest = V::max(largest, V::load(scores + i));
  return V::reduce_max(largest);
}

// Query heads that share each read of a key or value, and columns of values that are summed at once, in vectors: sums stay in
// registers.
template <class V>
inline constexpr int kHeadsAtOnce = V::kTileRows < 8 ? 2 : 4;
inline constexpr int kValueVectors = 4;

// Values that are read for some columns before they are for others, so that reading goes on in the order of memory.
inline constexpr int kValuesAtOnce = 16;

// Fetches numbers that are read soon. A cache is read in pieces, a head of a row each, and the processor's own prefetchers
// begin anew with each of them, and with each page; nor do they follow several keys that are read side by side. So all is
// fetched in the order in which it lies, a few cache lines at a time: where many are underway, processors drop what is asked.
template <class V, class T>
[[gnu::always_inline]] inline void fetch(const T* numbers, int count) {
  const auto* from = reinterpret_cast<const std::byte*>(numbers);
  for (std::size_t at = 0; at < count * sizeof(T); at += kCacheLine) V::prefetch(from + at);
}

// scores[kHeads][kKeysAtOnce] = queries[kHeads][head_dim] times up to kLanes keys. Missing keys are read as the last one.
// values: of the same keys, which are read next.
template <class V, Stored kStored, int kHeads>
[[gnu::always_inline]] inline void multiply_keys(const float* queries, const StoredNumber<kStored>* keys,
                                                 const StoredNumber<kStored>* values, int head_dim, int count,
                                                 float* scores) {
  using T = StoredNumber<kStored>;
  const std::size_t width = stored_width(kStored, head_dim);
  typename V::Floats fours[kHeads][V::kLanes / 4];
#pragma clang loop unroll(disable)
  for (int four = 0; four < V::kLanes / 4; ++four) {
    const T* from[4];
    for (int key = 0; key < 4; ++key) {
      from[key] = keys + std::min(4 * four + key, count - 1) * width;
    }
    typename V::Floats sums[kHeads][4];
    for (auto& of_head : sums) std::fill(std::begin(of_head), std::end(of_head), V::splat(0.0f));
    for (int i = 0; i < head_dim; i += V::kLanes) {
      fetch<V>(values + 4 * (four * width + i), 4 * V::kLanes);
      typename V::Floats of_keys[4];
#pragma clang loop unroll(full)
      for (int key = 0; key < 4; ++key) of_keys[key] = load_floats<V>(from[key] + i);
#pragma clang loop unroll(full)
      for (int head = 0; head < kHeads; ++head) {
        const typename V::Floats query = V::load(queries + static_cast<std::size_t>(head) * head_dim + i);
#pragma clang loop unroll(full)
        for (int key = 0; key < 4; ++key) sums[head][key] = V::multiply_add(query, of_keys[key], sums[head][key]);
      }
    }
#pragma clang loop unroll(full)
    for (int head = 0; head < kHeads; ++head) {
      fours[head][four] = V::sums_of_four(sums[head][0], sums[head][1], sums[head][2], sums[head][3]);
    }
  }
  for (int head = 0; head < kHeads; ++head) V::store(scores + head * kKeysAtOnce, V::join_sums(fours[head]));
}

// outputs[kHeads][head_dim] += weights[kHeads][kKeysAtOnce] times values, of kVectors vectors of columns. ahead: what is fetched
// meanwhile, as many numbers.
template <class V, Stored kStored, int kHeads, int kVectors>
void weigh_values(const float* weights, const StoredNumber<kStored>* values, const StoredNumber<kStored>* ahead, int keys,
                  int head_dim, float* outputs) {
  const int width = stored_width(kStored, head_dim);
  typename V::Floats sums[kHeads][kVectors];
  for (int head = 0; head < kHeads; ++head) {
    for (int i = 0; i < kVectors; ++i) sums[head][i] = V::load(outputs + head * head_dim + i * V::kLanes);
  }
  for (int key = 0; key < keys; ++key, values += width, ahead += kVectors * V::kLanes) {
    fetch<V>(ahead, kVectors * V::kLanes);
    typename V::Floats of_value[kVectors];
#pragma clang loop unroll(full)
    for (int i = 0; i < kVectors; ++i) of_value[i] = load_floats<V>(values + i * V::kLanes);
#pragma clang loop unroll(full)
    for (int head = 0; head < kHeads; ++head) {
      const typename V::Floats weight = V::splat(weights[head * kKeysAtOnce + key]);
#pragma clang loop unroll(full)
      for (int i = 0; i < kVectors; ++i) sums[head][i] = V::multiply_add(weight, of_value[i], sums[head][i]);
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    for (int i = 0; i < kVectors; ++i) V::store(outputs + head * head_dim + i * V::kLanes, sums[head][i]);
  }
}

// The scale behind the integers of a key or value.
inline float scale_behind(const std::int8_t* integers, int head_dim) {
  float scale;
  std::memcpy(&scale, integers + head_dim, sizeof scale);
  return scale;
}

// Multiplies numbers of kHeads heads and kKeysAtOnce keys by the scales of up to `count` keys or values, in whole vectors.
template <class V, int kHeads>
void multiply_scales(const std::int8_t* integers, int head_dim, int count, float* numbers) {
  const std::size_t width = stored_width(Stored::kInt8PerToken, head_dim);
  // All are stored before the first vector of them is loaded, which would wait for its numbers to reach the cache.
  alignas(kCacheLine) float scales[kKeysAtOnce];
  for (int key = 0; key < count; ++key) scales[key] = scale_behind(integers + key * width, head_dim);
  std::fill(scales + count, scales + whole_vectors<V>(count), 0.0f);
  for (int first = 0; first < count; first += V::kLanes) {
    for (int head = 0; head < kHeads; ++head) {
      float* of_head = numbers + head * kKeysAtOnce + first;
      V::store(of_head, V::multiply(V::load(of_head), V::load(scales + first)));
    }
  }
}

// Scores of kHeads heads become weights, which fill whole vectors.
template <class V, int kHeads>
void weigh_heads(const AttentionRows& rows, int row, int begin, int end, float* scores, const AttentionSums& to) {
  const int count = end - begin;
  for (int head = 0; head < kHeads; ++head) {
    float* of_head = scores + head * kKeysAtOnce;
    finish_scores<V>(rows, row + head, begin, end, of_head);
    std::fill(of_head + count, of_head + whole_vectors<V>(count), kNoScore);
    to.largest[row + head] = largest_of<V>(of_head, count);
    to.weights[row + head] = exponentials<V>(of_head, count, shift_of(to.largest[row + head]));
  }
}

// The most numbers of a head that become words at once.
inline constexpr int kMostWords = 512;

// attend_heads over integers of a cache with a scale for each token, where head_dim is a multiple of two vectors.
template <class V, int kHeads>
void attend_heads_by_words(const AttentionRows& rows, int row, int begin, int end, const AttentionSums& to) {
  alignas(kCacheLine) float scores[kHeads * kKeysAtOnce];
  alignas(kCacheLine) std::int16_t queries[kHeads * kMostWords], weights[kHeads * kKeysAtOnce];
  float steps[kHeads];
  const int count = end - begin, head_dim = rows.head_dim;
  const std::size_t width = stored_width(Stored::kInt8PerToken, head_dim), of_row = static_cast<std::size_t>(row) * head_dim;
  const auto *keys = static_cast<const std::int8_t*>(rows.keys) + begin * width,
             *values = static_cast<const std::int8_t*>(rows.values) + begin * width;
  for (int head = 0; head < kHeads; ++head) {
    const std::size_t at = static_cast<std::size_t>(head) * head_dim;
    steps[head] = round_to_words<V>(rows.queries + of_row + at, head_dim, largest_word(head_dim), queries + at);
  }
  for (int key = 0; key < count; key += V::kLanes) {
    const std::size_t from = key * width;
    typename V::Ints sums[kHeads];
    multiply_keys_by_words<V, kHeads>(queries, keys + from, values + from, head_dim, count - key, sums);
    for (int head = 0; head < kHeads; ++head) {
      V::store(scores + head * kKeysAtOnce + key, V::multiply(V::to_floats(sums[head]), V::splat(steps[head])));
    }
  }
  multiply_scales<V, kHeads>(keys, head_dim, count, scores);
  weigh_heads<V, kHeads>(rows, row, begin, end, scores, to);
  multiply_scales<V, kHeads>(values, head_dim, count, scores);
  for (int head = 0; head < kHeads; ++head) {
    const int at = head * kKeysAtOnce;
    steps[head] = round_to_words<V>(scores + at, whole_vectors<V>(count), largest_word(kKeysAtOnce), weights + at);
  }
  const auto* ahead = rows.keys_ahead != nullptr ? static_cast<const std::int8_t*>(rows.keys_ahead) : keys;
  float* outputs = to.outputs + of_row;
  int column = 0;
  for (; column + kValueVectors * V::kLanes <= head_dim; column += kValueVectors * V::kLanes) {
    weigh_values_by_words<V, kHeads, kValueVectors>(weights, steps, values + column, ahead + count * column, count, head_dim, outputs + column);
  }
  if (column < head_dim) {
    weigh_values_by_words<V, kHeads, 2>(weights, steps, values + column, ahead + count * column, count, head_dim, outputs + column);
  }
}

// attend_one for the heads from `row` on.
template <class V, Stored kStored, int kHeads>
void attend_heads(const AttentionRows& rows, int row, int begin, int end, const AttentionSums& to) {
  using T = StoredNumber<kStored>;
  constexpr bool kHasScales = kStored == Stored::kInt8PerToken;
  const int count = end - begin, head_dim = rows.head_dim;
  if constexpr (kHasScales && HasWords<V>) {
    static_assert(kValueVectors == 4);
    const bool fits = head_dim % (2 * V::kLanes) == 0 && head_dim <= kMostWords;
    if (rows.may_round && fits) return attend_heads_by_words<V, kHeads>(rows, row, begin, end, to);
  }
  alignas(kCacheLine) float scores[kHeads * kKeysAtOnce];
  const std::size_t width = stored_width(kStored, head_dim), first = begin * width, of_row = static_cast<std::size_t>(row) * head_dim;
  const T *keys = static_cast<const T*>(rows.keys) + first, *values = static_cast<const T*>(rows.values) + first;
  for (int key = 0; key < count; key += V::kLanes) {
    const std::size_t from = key * width;
    multiply_keys<V, kStored, kHeads>(rows.queries + of_row, keys + from, values + from, head_dim, count - key, scores + key);
  }
  if constexpr (kHasScales) multiply_scales<V, kHeads>(keys, head_dim, count, scores);
  weigh_heads<V, kHeads>(rows, row, begin, end, scores, to);
  if constexpr (kHasScales) multiply_scales<V, kHeads>(values, head_dim, count, scores);
  const T* ahead = rows.keys_ahead != nullptr ? static_cast<const T*>(rows.keys_ahead) : keys;
  float* outputs = to.outputs + of_row;
  std::fill_n(outputs, kHeads * head_dim, 0.0f);
  const int most = head_dim > kValueVectors * V::kLanes ? kValuesAtOnce : count;
  for (int key = 0; key < count; key += most, values += most * width, ahead += most * width) {
    const int at_once = std::min(most, count - key);
    const float* weights = scores + key;
    int column = 0;
    for (; column + kValueVectors * V::kLanes <= head_dim; column += kValueVectors * V::kLanes) {
      weigh_values<V, kStored, kHeads, kValueVectors>(weights, values + column, ahead + at_once * column, at_once, head_dim, outputs + column);
    }
    for (; column < head_dim; column += V::kLanes) {
      weigh_values<V, kStored, kHeads, 1>(weights, values + column, ahead + at_once * column, at_once, head_dim, outputs + column);
    }
  }
}

template <class V, Stored kStored>
void attend_stored(const AttentionRows& rows, int begin, int end, const AttentionSums& to) {
  for (int row = 0; row < rows.rows; row += kHeadsAtOnce<V>) {
    const int heads = std::min(kHeadsAtOnce<V>, rows.rows - row);
    if (heads == 1) attend_heads<V, kStored, 1>(rows, row, begin, end, to);
    if (heads == 2) attend_heads<V, kStored, 2>(rows, row, begin, end, to);
    if constexpr (kHeadsAtOnce<V> == 4) {
      if (heads == 3) attend_heads<V, kStored, 3>(rows, row, begin, end, to);
      if (heads == 4) attend_heads<V, kStored, 4>(rows, row, begin, end, to);
    }
  }
}

template <class V>
void attend_one(const AttentionRows& rows, int begin, int end, const AttentionSums& to) {
  switch (rows.stored) {
    case Stored::kFloat: return attend_stored<V, Stored::kFloat>(rows, begin, end, to);
    case Stored::kHalf: return attend_stored<V, Stored::kHalf>(rows, begin, end, to);
    case Stored::kInt8: return attend_stored<V, Stored::kInt8>(rows, begin, end, to);
    case Stored::kInt8PerToken: return attend_stored<V, Stored::kInt8PerToken>(rows, begin, end, to);
  }
}

template <class V, class T>
const float* widen(const T* from, int count, float* to) {
  for (int i = 0; i < count; i += V::kLanes) V::store(to + i, load_floats<V>(from + i));
  return to;
}

// Integers times the scale behind them, of each of `count` keys or values.
template <class V>
const float* widen_per_token(const std::int8_t* from, int count, int head_dim, float* to) {
  for (float* at = to; at < to + std::size_t(count) * head_dim; from += stored_width(Stored::kInt8PerToken, head_dim)) {
    const typename V::Floats scale = V::splat(scale_behind(from, head_dim));
    for (int i = 0; i < head_dim; i += V::kLanes, at += V::kLanes) V::store(at, V::multiply(load_floats<V>(from + i), scale));
  }
  return to;
}

// Keys or values `begin` to `end` as floats: where they are, or in `scratch`.
template <class V>
const float* floats_of(const AttentionRows& rows, const void* elements, int begin, int end, float* scratch) {
  const std::size_t first = static_cast<std::size_t>(begin) * stored_width(rows.stored, rows.head_dim);
  const int count = (end - begin) * rows.head_dim;
  switch (rows.stored) {
    case Stored::kFloat: break;
    case Stored::kHalf: return widen<V>(static_cast<const Half*>(elements) + first, count, scratch);
    case Stored::kInt8: return widen<V>(static_cast<const std::int8_t*>(elements) + first, count, scratch);
    case Stored::kInt8PerToken:
      return widen_per_token<V>(static_cast<const std::int8_t*>(elements) + first, end - begin, rows.head_dim, scratch);
  }
  return static_cast<const float*>(elements) + first;
}

template <class V>
void round_to_half(const float* x, int count, Half* to) {
  for (int i = 0; i < count; i += V::kLanes) V::store_halves(to + i, V::load(x + i));
}

template <class V>
void round_to_int8(const float* x, const float* scales, int count, std::int8_t* to) {
  for (int i = 0; i < count; i += V::kLanes) {
    const typename V::Floats inverse = V::divide(V::splat(1.0f), V::load(scales + i));
    const typename V::Floats scaled = V::max(V::multiply(V::load(x + i), inverse), V::splat(-128.0f));
    V::store_narrow(to + i, V::round(V::min(scaled, V::splat(127.0f))));
  }
}

template <class V>
void round_to_int8_per_token(const float* x, int count, std::int8_t* to) {
  float scale;
  std::int32_t sum;
  quantize_block<V, false>(x, count, count, sizeof(std::int32_t), to, scale, sum);
  std::memcpy(to + count, &scale, sizeof scale);
}

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

template <class V>
void rotate(const Rotation& rotation, const float* x, float scale, float* y) {
  const int half = rotation.rotary_dim / 2;
  for (int i = 0; rotation.interleaved && i < half; ++i) {
    const float first = x[2 * i] * scale, second = x[2 * i + 1] * scale;
    y[2 * i] = first * rotation.cosines[i] - second * rotation.sines[i];
    y[2 * i + 1] = second * rotation.cosines[i] + first * rotation.sines[i];
  }
  for (int i = 0; !rotation.interleaved && i < half; ++i) {
    const float first = x[i] * scale, second = x[i + half] * scale;
    y[i] = first * rotation.cosines[i] - second * rotation.sines[i];
    y[i + half] = second * rotation.cosines[i] + first * rotation.sines[i];
  }
  for (int i = rotation.rotary_dim; i < rotation.head_dim; ++i) y[i] = x[i] * scale;
}

}  // namespace edgeformer
