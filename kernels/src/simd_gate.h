// Activations and norms, written once over a SIMD level V (see simd_kernels.h).
#pragma once

#include <cmath>

#include "gate.h"
#include "simd_math.h"

namespace edgeformer {

// x / (1 + e^-x)
template <class V>
typename V::Floats silu(typename V::Floats x) {
  // e^88 is a float; more would not be.
  const typename V::Floats bounded = V::max(V::splat(-88.0f), x);
  const typename V::Floats power = exponential<V>(V::subtract(V::splat(0.0f), bounded));
  return V::divide(x, V::add(V::splat(1.0f), power));
}

// x / 2 · (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
template <class V>
typename V::Floats gelu_tanh(typename V::Floats x) {
  const typename V::Floats cubic = V::multiply_add(V::multiply(x, x), V::splat(0.044715f), V::splat(1.0f));
  const typename V::Floats inner = V::multiply(V::multiply(x, cubic), V::splat(0.797884561f));
  const typename V::Floats half = V::multiply(x, V::splat(0.5f));
  return V::multiply_add(half, hyperbolic_tangent<V>(inner), half);
}

// x times the normal distribution's share below x: max(x, 0) - |x| / 2 · erfc(|x| / sqrt(2)).
template <class V>
typename V::Floats gelu(typename V::Floats x) {
  const typename V::Floats magnitude = V::abs(x), z = V::multiply(magnitude, V::splat(0.707106781f));
  const typename V::Floats one = V::splat(1.0f);
  // erfc(z) = t e^(-z^2 + polynomial in t), t = 1 / (1 + z / 2), to 1.2e-7 of itself (Numerical Recipes, "erfcc").
  const typename V::Floats t = V::divide(one, V::multiply_add(z, V::splat(0.5f), one));
  typename V::Floats p = V::splat(0.17087277f);
  for (float coefficient : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f,
                            1.00002368f, -1.26551223f}) {
    p = V::multiply_add(p, t, V::splat(coefficient));
  }
  const typename V::Floats exponent = V::subtract(p, V::multiply(z, z));
  const typename V::Floats tail = V::multiply(t, exponential<V>(exponent));
  const typename V::Floats half = V::multiply(magnitude, V::splat(-0.5f));
  return V::multiply_add(half, tail, V::max(V::splat(0.0f), x));
}

template <class V, typename V::Floats (*kActivation)(typename V::Floats)>
void gate_by(const float* gate, const float* up, int count, float* y) {
  for (int i = 0; i < count; i += V::kLanes) {
    V::store(y + i, V::multiply(kActivation(V::load(gate + i)), V::load(up + i)));
  }
}

template <class V>
void gate_numbers(Activation activation, const float* gate, const float* up, int count, float* y) {
  switch (activation) {
    case Activation::kSilu: return gate_by<V, silu<V>>(gate, up, count, y);
    case Activation::kGelu: return gate_by<V, gelu<V>>(gate, up, count, y);
    case Activation::kGeluTanh: return gate_by<V, gelu_tanh<V>>(gate, up, count, y);
  }
}

template <class V>
void add_and_norm(const float* x, const float* skip, const float* weight, int size, float epsilon, float* sum, float* y) {
  typename V::Floats squares[2] = {V::splat(0.0f), V::splat(0.0f)};
  int i = 0;
  for (int part = 0; i + V::kLanes <= size; i += V::kLanes, part ^= 1) {
    const typename V::Floats both = V::add(V::load(x + i), V::load(skip + i));
    V::store(sum + i, both);
    squares[part] = V::multiply_add(both, both, squares[part]);
  }
  float total = V::reduce_add(V::add(squares[0], squares[1]));
  for (; i < size; ++i) {
    sum[i] = x[i] + skip[i];
    total += sum[i] * sum[i];
  }
  const float factor = 1 / std::sqrt(total / static_cast<float>(size) + epsilon);
  for (i = 0; i + V::kLanes <= size; i += V::kLanes) {
    V::store(y + i, V::multiply(V::multiply(V::load(sum + i), V::splat(factor)), V::load(weight + i)));
  }
  for (; i < size; ++i) y[i] = sum[i] * factor * weight[i];
}

}  // namespace edgeformer
