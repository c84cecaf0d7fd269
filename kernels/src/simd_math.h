// Functions of floats over a SIMD level V (simd/*.h), to a few units in the last place of a float where no more is said.
#pragma once

#include <cstring>

#include "aligned.h"

namespace edgeformer {

// A vector of numbers, of which there may be fewer than lanes: zeros then stand for the others.
template <class V>
typename V::Floats load_or_zeros(const float* from, int count) {
  if (count >= V::kLanes) return V::load(from);
  alignas(kCacheLine) float padded[V::kLanes] = {};
  if (count > 0) std::memcpy(padded, from, count * sizeof(float));
  return V::load(padded);
}

// Stores a vector, or the first numbers of it where there are fewer.
template <class V>
void store_some(float* to, typename V::Floats from, int count) {
  if (count >= V::kLanes) return V::store(to, from);
  alignas(kCacheLine) float padded[V::kLanes];
  V::store(padded, from);
  std::memcpy(to, padded, count * sizeof(float));
}

// e^x is 2^n e^r, with |r| <= ln(2) / 2.
template <class V>
struct PowerAndRest {
  typename V::Floats power;       // 2^n
  typename V::Floats rest_minus_1;  // e^r - 1
};

template <class V>
PowerAndRest<V> split_exponential(typename V::Floats x) {
  // Below -88, n is -127, whose power of two is 0. A NaN stays one: max returns its second argument.
  x = V::max(V::splat(-88.0f), x);
  const typename V::Ints n = V::round(V::multiply(x, V::splat(1.44269504f)));
  const typename V::Floats whole = V::to_floats(n);
  // ln(2) in two parts, of which the first has few bits, so that its product with n is exact (Cody and Waite).
  typename V::Floats r = V::multiply_add(whole, V::splat(-0.693359375f), x);
  r = V::multiply_add(whole, V::splat(2.12194440e-4f), r);
  // e^r - 1 - r over r^2: near-minimax coefficients, as in Cephes' expf.
  typename V::Floats p = V::splat(1.9875691500e-4f);
  for (float coefficient : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = V::multiply_add(p, r, V::splat(coefficient));
  }
  return {V::power_of_two(n), V::multiply_add(V::multiply(p, r), r, r)};
}

// e^x for x <= 88.
template <class V>
typename V::Floats exponential(typename V::Floats x) {
  const PowerAndRest<V> parts = split_exponential<V>(x);
  return V::multiply_add(parts.power, parts.rest_minus_1, parts.power);
}

// 2^x for x <= 127, to 7.5e-5 of it: for what becomes bfloat16, whose rounding errs by 2e-3. Below -200 it is 0.
template <class V>
typename V::Floats rough_power_of_two(typename V::Floats x) {
  x = V::max(V::splat(-200.0f), x);  // a NaN stays one
  const typename V::Floats whole = V::nearest_whole(x), rest = V::subtract(x, whole);
  typename V::Floats p = V::splat(0.055171669f);  // minimax coefficients for |rest| <= 1/2
  for (float coefficient : {0.24261113f, 0.69326097f, 0.99992806f}) p = V::multiply_add(p, rest, V::splat(coefficient));
  return V::times_power_of_two(p, whole);
}

template <class V>
typename V::Floats hyperbolic_tangent(typename V::Floats x) {
  // tanh(x) = (e^2x - 1) / (e^2x + 1), with e^2x - 1 as accurate for small x as for large ones. Beyond 10 it is ±1.
  const typename V::Floats zero = V::splat(0.0f), limit = V::splat(-10.0f);
  x = V::max(limit, V::subtract(zero, V::max(limit, V::subtract(zero, x))));
  const PowerAndRest<V> parts = split_exponential<V>(V::add(x, x));
  const typename V::Floats minus_1 =
      V::multiply_add(parts.power, parts.rest_minus_1, V::subtract(parts.power, V::splat(1.0f)));
  return V::divide(minus_1, V::add(minus_1, V::splat(2.0f)));
}

}  // namespace edgeformer
