// Activations and norms, written once over a SIMD level V (see simd_kernels.h).
#pragma once

#include <array>
#include <cmath>
#include <cstring>

#include "gate.h"
#include "simd_math.h"

namespace edgeformer {

// x / (1 + e^-y)
template <class V>
typename V::Floats times_sigmoid(typename V::Floats x, typename V::Floats y) {
  // e^88 is a float; more would not be.
  const typename V::Floats bounded = V::max(V::splat(-88.0f), y);
  const typename V::Floats power = exponential<V>(V::subtract(V::splat(0.0f), bounded));
  return V::divide(x, V::add(V::splat(1.0f), power));
}

template <class V>
typename V::Floats silu(typename V::Floats x) {
  return times_sigmoid<V>(x, x);
}

// x / 2 · (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), where (1 + tanh(z)) / 2 is the sigmoid of 2 z.
template <class V>
typename V::Floats gelu_tanh(typename V::Floats x) {
  const typename V::Floats cubic = V::multiply_add(V::multiply(x, x), V::splat(0.044715f), V::splat(1.0f));
  return times_sigmoid<V>(x, V::multiply(V::multiply(x, cubic), V::splat(1.59576912f)));
}

inline constexpr std::array kGelu{
    -4.635572338e-04f, 1.059326034e-03f,  -4.623269466e-04f, 6.087640465e-04f,  -3.443904338e-03f, 6.066748967e-03f,
    -7.751740617e-03f, 1.120733620e-02f,  -1.623067817e-02f, 2.129823290e-02f,  -2.641393696e-02f, 3.187788013e-02f,
    -3.808169642e-02f, 4.655494182e-02f,  -6.242912360e-02f, 1.249920763e-01f};

// x (1 + erf(x / sqrt(2))) / 2, with an error of 2e-7 |x|. erf(z) / z is a polynomial in z^2 here, for |z| up to 4, where
// erf is 1 to half a unit in the last place.
template <class V>
typename V::Floats gelu(typename V::Floats x) {
  constexpr float kMost = 5.65685425f;  // 4 sqrt(2)
  const typename V::Floats within = V::max(V::splat(-kMost), V::min(V::splat(kMost), x));
  const typename V::Floats u = V::multiply_add(V::multiply(within, within), V::splat(0.0625f), V::splat(-1.0f));
  // Chebyshev's approximation of degree 15 of erf(z) / z / sqrt(8), over u = z^2 / 8 - 1.
  typename V::Floats p = V::splat(kGelu[0]);
#pragma clang loop unroll(full)
  for (std::size_t i = 1; i < kGelu.size(); ++i) p = V::multiply_add(p, u, V::splat(kGelu[i]));
  return V::multiply(x, V::multiply_add(within, p, V::splat(0.5f)));
}

// max(x, 0), and NaN of NaN: the maximum of a number and NaN is the second.
template <class V>
typename V::Floats relu(typename V::Floats x) {
  return V::max(V::splat(0.0f), x);
}

template <class V>
typename V::Floats same(typename V::Floats x) {
  return x;
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
    case Activation::kNone: return gate_by<V, same<V>>(gate, up, count, y);
    case Activation::kRelu: return gate_by<V, relu<V>>(gate, up, count, y);
    case Activation::kSilu: return gate_by<V, silu<V>>(gate, up, count, y);
    case Activation::kGelu: return gate_by<V, gelu<V>>(gate, up, count, y);
    case Activation::kGeluTanh: return gate_by<V, gelu_tanh<V>>(gate, up, count, y);
  }
}

template <class V>
typename V::Floats sigmoid(typename V::Floats x) {
  return times_sigmoid<V>(V::splat(1.0f), x);
}

// max(x, 0) + log(1 + e), e = e^-|x|. With s = e / (2 + e) the logarithm is 2 artanh(s) = s P(s²), which keeps the digits of
// small results. P interpolates at the Chebyshev nodes of [0, 1/9], to 4e-9
// (export/lower/softplus.py has the same).
template <class V>
typename V::Floats softplus(typename V::Floats x) {
  const typename V::Floats zero = V::splat(0.0f), e = exponential<V>(V::subtract(zero, V::abs(x)));
  const typename V::Floats s = V::divide(e, V::add(e, V::splat(2.0f))), square = V::multiply(s, s);
  typename V::Floats p = V::splat(2.81577783135e-1f);
  for (float coefficient : {2.79651577568e-1f, 4.00245952298e-1f, 6.66663216414e-1f, 2.00000000768f}) {
    p = V::multiply_add(p, square, V::splat(coefficient));
  }
  return V::multiply_add(s, p, relu<V>(x));
}

template <class V, typename V::Floats (*kMap)(typename V::Floats)>
void map_by(const float* x, int count, float* y) {
  for (int i = 0; i < count; i += V::kLanes) store_some<V>(y + i, kMap(load_or_zeros<V>(x + i, count - i)), count - i);
}

template <class V>
void map_numbers(Map map, const float* x, int count, float* y) {
  switch (map) {
    case Map::kSigmoid: return map_by<V, sigmoid<V>>(x, count, y);
    case Map::kSoftplus: return map_by<V, softplus<V>>(x, count, y);
  }
}

template <class V, typename V::Floats (*kActivation)(typename V::Floats)>
void add_bias_of(const float* bias, int rows, int columns, float* y, std::size_t stride) {
  const auto finish = [](float* to, const float* from) { V::store(to, kActivation(V::add(V::load(to), V::load(from)))); };
  for (int row = 0; row < rows; ++row, y += stride) {
    int i = 0;
    for (; i + V::kLanes <= columns; i += V::kLanes) finish(y + i, bias + i);
    if (i == columns) continue;
    float padded[V::kLanes] = {};
    std::memcpy(padded, y + i, (columns - i) * sizeof(float));
    finish(padded, bias + i);
    std::memcpy(y + i, padded, (columns - i) * sizeof(float));
  }
}

template <class V>
void add_bias(Activation activation, const float* bias, int rows, int columns, float* y, std::size_t stride) {
  switch (activation) {
    case Activation::kNone: return add_bias_of<V, same<V>>(bias, rows, columns, y, stride);
    case Activation::kRelu: return add_bias_of<V, relu<V>>(bias, rows, columns, y, stride);
    case Activation::kSilu: return add_bias_of<V, silu<V>>(bias, rows, columns, y, stride);
    case Activation::kGelu: return add_bias_of<V, gelu<V>>(bias, rows, columns, y, stride);
    case Activation::kGeluTanh: return add_bias_of<V, gelu_tanh<V>>(bias, rows, columns, y, stride);
  }
}

// y = x / rms(x) · weight, of a row whose squares have this sum.
template <class V>
void scale_by_norm(const float* x, float squares, const float* weight, int size, float epsilon, float* y) {
  const float factor = 1 / std::sqrt(squares / static_cast<float>(size) + epsilon);
  int i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) {
    V::store(y + i, V::multiply(V::multiply(V::load(x + i), V::splat(factor)), V::load(weight + i)));
  }
  for (; i < size; ++i) y[i] = x[i] * factor * weight[i];
}

template <class V>
void norm(const float* x, const float* weight, int size, float epsilon, float* y) {
  typename V::Floats squares[2] = {V::splat(0.0f), V::splat(0.0f)};
  int i = 0;
  for (int part = 0; i + V::kLanes <= size; i += V::kLanes, part ^= 1) {
    squares[part] = V::multiply_add(V::load(x + i), V::load(x + i), squares[part]);
  }
  float total = V::reduce_add(V::add(squares[0], squares[1]));
  for (; i < size; ++i) total += x[i] * x[i];
  scale_by_norm<V>(x, total, weight, size, epsilon, y);
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
  scale_by_norm<V>(sum, total, weight, size, epsilon, y);
}

template <class V>
void add_and_layer_norm(const float* x, const float* skip, const float* weight, const float* bias, int size, float epsilon,
                        float* sum, float* y) {
  if (sum == nullptr) sum = y;
  typename V::Floats sums[2] = {V::splat(0.0f), V::splat(0.0f)}, squares[2] = {V::splat(0.0f), V::splat(0.0f)};
  int i = 0;
  for (int part = 0; i + V::kLanes <= size; i += V::kLanes, part ^= 1) {
    const typename V::Floats both = V::add(V::load(x + i), V::load(skip + i));
    V::store(sum + i, both);
    sums[part] = V::add(sums[part], both);
  }
  float total = V::reduce_add(V::add(sums[0], sums[1]));
  for (; i < size; ++i) {
    sum[i] = x[i] + skip[i];
    total += sum[i];
  }
  const float mean = total / static_cast<float>(size);
  i = 0;
  for (int part = 0; i + V::kLanes <= size; i += V::kLanes, part ^= 1) {
    const typename V::Floats off = V::subtract(V::load(sum + i), V::splat(mean));
    squares[part] = V::multiply_add(off, off, squares[part]);
  }
  total = V::reduce_add(V::add(squares[0], squares[1]));
  for (; i < size; ++i) total += (sum[i] - mean) * (sum[i] - mean);
  const float factor = 1 / std::sqrt(total / static_cast<float>(size) + epsilon);
  for (i = 0; i + V::kLanes <= size; i += V::kLanes) {
    const typename V::Floats normed = V::multiply(V::subtract(V::load(sum + i), V::splat(mean)), V::splat(factor));
    const typename V::Floats shift = bias == nullptr ? V::splat(0.0f) : V::load(bias + i);
    V::store(y + i, V::multiply_add(normed, V::load(weight + i), shift));
  }
  for (; i < size; ++i) y[i] = (sum[i] - mean) * factor * weight[i] + (bias == nullptr ? 0.0f : bias[i]);
}

}  // namespace edgeformer
