// Attention of one token for each row, over a SIMD level V (see simd_kernels.h): keys and values are read as they are stored.
// head_dim is a multiple of V::kLanes.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "simd_matrices.h"
#include "simd_scores.h"
#include "simd_stored.h"
#include "simd_words.h"

namespace edgeformer {

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

}  // namespace edgeformer
