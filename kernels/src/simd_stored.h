// What attention keeps of keys and values, over a SIMD level V (see simd_kernels.h): numbers that are rotated, rounded as the
// cache stores them, and floats again.
#pragma once

#include <cstring>

#include "attention_rows.h"
#include "half.h"
#include "simd_kernels.h"
#include "simd_matrices.h"

namespace edgeformer {

// The scale behind the integers of a key or value.
inline float scale_behind(const std::int8_t* integers, int head_dim) {
  float scale;
  std::memcpy(&scale, integers + head_dim, sizeof scale);
  return scale;
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
