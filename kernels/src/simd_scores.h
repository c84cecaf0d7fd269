// Scores of attention and the weights that they become, over a SIMD level V (see simd_kernels.h), for one token and for many.
#pragma once

#include <limits>

#include "attention_rows.h"
#include "simd_math.h"

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

}  // namespace edgeformer
