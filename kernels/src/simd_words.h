// Attention of steps over integers of a cache by words of 16 bits, over a SIMD level V that multiplies pairs of them. A query
// becomes words of its largest number, and so do the weights of a block of values: they err by 1/65534 of it at most, where the
// integers of the cache err by 1/254.
//
// Numbers of 8 bits become words in one instruction for a vector, and floats in two; and a product of two words takes half of
// what one of two floats takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "aligned.h"
#include "attention_rows.h"

namespace edgeformer {

// dot2(sums, a, b): sums[i] + a[2i] b[2i] + a[2i+1] b[2i+1]. zip_low and zip_high pair the words of two rows, in an order that
// unzip undoes.
template <class V>
concept HasWords = requires(typename V::Ints ints) { V::dot2(ints, ints, ints); };

inline constexpr int kLargestInt8 = 127;

// The largest word whose products with `count` integers have a sum of 32 bits.
constexpr int largest_word(int count) {
  return std::min<int>(std::numeric_limits<std::int16_t>::max(), std::numeric_limits<std::int32_t>::max() / (kLargestInt8 * count));
}

// Words of x, and what one of them stands for; NaN if a number is not finite. count is in whole vectors.
template <class V>
float round_to_words(const float* x, int count, int largest, std::int16_t* words) {
  typename V::Floats most_lanes = V::splat(0.0f), nan_lanes = V::splat(0.0f);
  for (int i = 0; i < count; i += V::kLanes) {
    most_lanes = V::max(most_lanes, V::abs(V::load(x + i)));
    nan_lanes = V::multiply_add(V::load(x + i), V::splat(0.0f), nan_lanes);
  }
  const float most = V::reduce_max(most_lanes), nan = V::reduce_add(nan_lanes);
  const float inverse = most < std::numeric_limits<float>::min() || nan != 0 ? 0.0f : static_cast<float>(largest) / most;
  for (int i = 0; i < count; i += V::kLanes) {
    V::store_words(words + i, V::round(V::multiply(V::load(x + i), V::splat(inverse))));
  }
  return most / static_cast<float>(largest) + nan;
}

// multiply_keys of words; scores are integers still.
template <class V, int kHeads>
[[gnu::always_inline]] inline void multiply_keys_by_words(const std::int16_t* queries, const std::int8_t* keys,
                                                          const std::int8_t* values, int head_dim, int count,
                                                          typename V::Ints (&scores)[kHeads]) {
  const std::size_t width = stored_width(Stored::kInt8PerToken, head_dim);
  typename V::Ints fours[kHeads][V::kLanes / 4];
#pragma clang loop unroll(disable)
  for (int four = 0; four < V::kLanes / 4; ++four) {
    const std::int8_t* from[4];
    for (int key = 0; key < 4; ++key) from[key] = keys + std::min(4 * four + key, count - 1) * width;
    typename V::Ints sums[kHeads][4];
    for (auto& of_head : sums) std::fill(std::begin(of_head), std::end(of_head), V::splat(0));
    for (int i = 0; i < head_dim; i += 2 * V::kLanes) {
      for (int at = 0; at < 8 * V::kLanes; at += kCacheLine) V::prefetch(values + 4 * (four * width + i) + at);
      typename V::Ints of_keys[4];
#pragma clang loop unroll(full)
      for (int key = 0; key < 4; ++key) of_keys[key] = V::widen_to_words(from[key] + i);
#pragma clang loop unroll(full)
      for (int head = 0; head < kHeads; ++head) {
        const typename V::Ints query = V::load_words(queries + head * head_dim + i);
#pragma clang loop unroll(full)
        for (int key = 0; key < 4; ++key) sums[head][key] = V::dot2(sums[head][key], query, of_keys[key]);
      }
    }
#pragma clang loop unroll(full)
    for (int head = 0; head < kHeads; ++head) {
      fours[head][four] = V::sums_of_four(sums[head][0], sums[head][1], sums[head][2], sums[head][3]);
    }
  }
#pragma clang loop unroll(full)
  for (int head = 0; head < kHeads; ++head) scores[head] = V::join_sums(fours[head]);
}

// weigh_values of words [kHeads][kKeysAtOnce], of which those behind the last of an odd number are 0; steps: of each head's.
template <class V, int kHeads, int kVectors>
void weigh_values_by_words(const std::int16_t* weights, const float* steps, const std::int8_t* values, const std::int8_t* ahead,
                           int keys, int head_dim, float* outputs) {
  static_assert(kVectors % 2 == 0);
  const int width = stored_width(Stored::kInt8PerToken, head_dim);
  typename V::Ints sums[kHeads][kVectors];
  for (auto& of_head : sums) std::fill(std::begin(of_head), std::end(of_head), V::splat(0));
  for (int key = 0; key < keys; key += 2, values += 2 * width, ahead += 2 * kVectors * V::kLanes) {
    for (int at = 0; at < 2 * kVectors * V::kLanes; at += kCacheLine) V::prefetch(ahead + at);
    const std::int8_t* next = key + 1 < keys ? values + width : values;
#pragma clang loop unroll(full)
    for (int i = 0; i < kVectors; i += 2) {
      const typename V::Ints first = V::widen_to_words(values + i * V::kLanes), second = V::widen_to_words(next + i * V::kLanes);
      const typename V::Ints low = V::zip_low(first, second), high = V::zip_high(first, second);
#pragma clang loop unroll(full)
      for (int head = 0; head < kHeads; ++head) {
        const typename V::Ints pair = V::broadcast_pair(weights + head * kKeysAtOnce + key);
        sums[head][i] = V::dot2(sums[head][i], low, pair);
        sums[head][i + 1] = V::dot2(sums[head][i + 1], high, pair);
      }
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    for (int i = 0; i < kVectors; i += 2) V::unzip(sums[head][i], sums[head][i + 1]);
    for (int i = 0; i < kVectors; ++i) {
      V::store(outputs + head * head_dim + i * V::kLanes, V::multiply(V::to_floats(sums[head][i]), V::splat(steps[head])));
    }
  }
}

}  // namespace edgeformer
