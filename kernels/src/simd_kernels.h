// The kernels, written once over a SIMD level V (simd/*.h). Each simd level's file in src/ instantiates them.
//
// V has kLanes 32-bit lanes a vector and the types Ints, Floats, Bytes. Its one unusual operation is
//     dot4(sums, w, a): sums[i] + w[4i] a[4i] + … + w[4i+3] a[4i+3], with w unsigned bytes and a signed bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "level.h"
#include "simd_integers.h"

namespace edgeformer {

// Rounds `size` numbers to words of four bytes, which lie `stride` bytes apart, and pads them with zeros to a block.
//
// kExactly: to the integers that QuantizeLinear makes of a step of max(|x|, 1e-30) * (1 / 127): numbers are divided by it.
// A product with an inverse would round some of those in the middle between two integers the other way.
template <class V, bool kExactly>
void quantize_block(const float* x, int size, int block, std::size_t stride, std::int8_t* words, float& scale,
                    std::int32_t& sum) {
  typename V::Floats largest_lanes = V::splat(kExactly ? 1e-30f : 0.0f), nan_lanes = V::splat(0.0f);
  int i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) {
    const typename V::Floats part = V::load(x + i);
    largest_lanes = V::max(largest_lanes, V::abs(part));
    // 0 for finite numbers and NaN for all others, which the maximum of some processors drops.
    nan_lanes = V::multiply_add(part, V::splat(0.0f), nan_lanes);
  }
  float largest = V::reduce_max(largest_lanes), nan = V::reduce_add(nan_lanes);
  for (int j = i; j < size; ++j) {
    largest = std::max(largest, std::fabs(x[j]));
    nan += x[j] * 0.0f;
  }
  // Below the normal floats 127 / largest would overflow.
  const bool is_zero = largest < std::numeric_limits<float>::min() || nan != 0;
  const float step = kExactly ? largest * (1.0f / 127.0f) : largest / 127.0f, inverse = 127.0f / largest;
  typename V::Ints sum_lanes = V::splat(0);
  for (i = 0; i + V::kLanes <= size; i += V::kLanes, words += V::kLanes / 4 * stride) {
    typename V::Floats scaled = V::splat(0.0f);
    if (!is_zero) {
      scaled = kExactly ? V::divide(V::load(x + i), V::splat(step)) : V::multiply(V::load(x + i), V::splat(inverse));
    }
    const typename V::Ints rounded = V::round(scaled);
    alignas(kCacheLine) std::int8_t bytes[V::kLanes];
    V::store_narrow(bytes, rounded);
    if (stride == 4) {
      std::memcpy(words, bytes, V::kLanes);
    } else {
      for (int word = 0; word < V::kLanes / 4; ++word) std::memcpy(words + word * stride, bytes + 4 * word, 4);
    }
    sum_lanes = V::add(sum_lanes, rounded);
  }
  sum = V::reduce_add(sum_lanes);
  for (; i < block; i += 4, words += stride) {
    std::int8_t bytes[4];
    for (int j = 0; j < 4; ++j) {
      const float scaled = is_zero || i + j >= size ? 0.0f : kExactly ? x[i + j] / step : x[i + j] * inverse;
      bytes[j] = static_cast<std::int8_t>(std::nearbyint(scaled));
      sum += bytes[j];
    }
    std::memcpy(words, bytes, 4);
  }
  scale = step + nan;
}

template <class V, bool kExactly>
void quantize_row(const float* x, int inputs, const Activations& to, std::size_t row) {
  const std::size_t to_next = to.at(0, 1), word_stride = to.word_stride();
  std::int8_t* values = to.values_of(row, 0);
  std::size_t at = row;
  for (int first = 0; first < inputs; first += to.block, at += to_next, values += to_next * to.block) {
    std::int32_t sum;
    quantize_block<V, kExactly>(x + first, std::min(to.block, inputs - first), to.block, word_stride, values,
                                to.scales[at], sum);
    to.offsets[at] = -to.zero_point * sum;
  }
}

// The results of a panel for one row, which need not have all of the panel's columns.
template <class V>
void store_results(const Panels& panels, int panel, const typename V::Floats (&results)[2], float* y) {
  const float* factors = panels.factors(panel);
  const int left = panels.outputs() - panel * panels.columns();
  alignas(kCacheLine) float padded[2 * V::kLanes];
  float* to = left >= panels.columns() ? y : padded;
  for (int half = 0; half < 2; ++half) {
    V::store(to + half * V::kLanes, V::multiply(results[half], V::load(factors + half * V::kLanes)));
  }
  if (to == padded) std::memcpy(y, padded, left * sizeof(float));
}

// What the sums of a block begin with: what the common zero point subtracts, if there is one.
inline std::int32_t start_of(const std::uint8_t* own_zero_points, std::int32_t offset) {
  return own_zero_points == nullptr ? offset : 0;
}

// Integers of a block, ready to be multiplied by the scale: corrected for zero points of their own.
template <class V>
typename V::Floats corrected(typename V::Ints sums, const std::uint8_t* zero_points, bool is_signed, std::int32_t sum) {
  if (zero_points == nullptr) return V::to_floats(sums);
  const typename V::Ints points = is_signed ? V::widen_signed(zero_points) : V::widen(zero_points);
  return V::to_floats(V::subtract(sums, V::multiply(points, V::splat(sum))));
}

// A block of 4-bit weights times one row: adds to sums. Low and high halves of bytes have sums of their own, since one
// dot4 takes as long as several can be started.
template <class V>
void multiply_nibbles(const std::uint8_t* w, const std::int8_t* a, int block, typename V::Ints (&sums)[2]) {
  typename V::Ints high_sums[2] = {V::splat(0), V::splat(0)};
  for (int input = 0; input < block; input += 8, a += 8, w += 2 * V::kBytes) {
    const typename V::Bytes a_low = V::broadcast4(a), a_high = V::broadcast4(a + 4);
    for (int half = 0; half < 2; ++half) {
      V::prefetch(w + half * V::kBytes + kPrefetchDistance);
      const typename V::Bytes both = V::load_bytes(w + half * V::kBytes);
      sums[half] = V::dot4_nibbles(sums[half], V::low_nibbles(both), a_low);
      high_sums[half] = V::dot4_nibbles(high_sums[half], V::high_nibbles(both), a_high);
    }
  }
  for (int half = 0; half < 2; ++half) sums[half] = V::add(sums[half], high_sums[half]);
}

// The same for 8-bit weights, with sums of their own for every second step.
template <class V>
void multiply_bytes(const std::uint8_t* w, const std::int8_t* a, int block, typename V::Ints (&sums)[2]) {
  typename V::Ints odd_sums[2] = {V::splat(0), V::splat(0)};
  for (int input = 0; input < block; input += 8, a += 8, w += 4 * V::kBytes) {
    const typename V::Bytes a_even = V::broadcast4(a), a_odd = V::broadcast4(a + 4);
    for (int half = 0; half < 2; ++half) {
      const std::uint8_t* even = w + half * V::kBytes;
      const std::uint8_t* odd = even + 2 * V::kBytes;
      V::prefetch(even + kPrefetchDistance);
      V::prefetch(odd + kPrefetchDistance);
      sums[half] = V::dot4(sums[half], V::load_bytes(even), a_even);
      odd_sums[half] = V::dot4(odd_sums[half], V::load_bytes(odd), a_odd);
    }
  }
  for (int half = 0; half < 2; ++half) sums[half] = V::add(sums[half], odd_sums[half]);
}

// The same for 8-bit weights of which 6 bits are kept.
template <class V>
void multiply_six_bits(const std::uint8_t* w, const std::int8_t* a, int block, typename V::Ints (&sums)[2]) {
  typename V::Ints odd_sums[2] = {V::splat(0), V::splat(0)};
  for (int input = 0; input < block; input += 16, w += 6 * V::kBytes) {
    take_sixteen<V>(w, true, [&](int word, typename V::Bytes left, typename V::Bytes right) {
      typename V::Ints(&of_word)[2] = word % 2 == 0 ? sums : odd_sums;
      const typename V::Bytes four = V::broadcast4(a);
      of_word[0] = V::dot4(of_word[0], left, four);
      of_word[1] = V::dot4(of_word[1], right, four);
      a += 4;
    });
  }
  for (int half = 0; half < 2; ++half) sums[half] = V::add(sums[half], odd_sums[half]);
}

template <class V, int kBits>
void multiply_row_of(const Panels& panels, const Activations& activations, int begin, int end, float* y) {
  for (int panel = begin; panel < end; ++panel) {
    const std::uint8_t* w = panels.panel(panel);
    const std::uint8_t* points = panels.has_zero_points() ? panels.zero_points(panel) : nullptr;
    typename V::Floats results[2] = {V::splat(0.0f), V::splat(0.0f)};
    for (int block = 0; block < panels.blocks(); ++block) {
      const std::int32_t offset = activations.offsets[block];
      const typename V::Ints start = V::splat(start_of(points, offset));
      typename V::Ints sums[2] = {start, start};
      const std::int8_t* a = activations.values + static_cast<std::size_t>(block) * panels.block();
      const int inputs = panels.inputs_of(block);
      if constexpr (kBits == 4) {
        multiply_nibbles<V>(w, a, inputs, sums);
      } else if constexpr (kBits == 6) {
        multiply_six_bits<V>(w, a, inputs, sums);
      } else {
        multiply_bytes<V>(w, a, inputs, sums);
      }
      w += panels.integer_bytes(inputs);
      for (int half = 0; half < 2; ++half, w += V::kLanes * sizeof(Half)) {
        const typename V::Floats exact = corrected<V>(sums[half], points, panels.bias() != 0, offset);
        const typename V::Floats scale = V::multiply(V::splat(activations.scales[block]), V::load_halves(w));
        results[half] = V::multiply_add(exact, scale, results[half]);
        if (points != nullptr) points += V::kLanes;
      }
    }
    store_results<V>(panels, panel, results, y + (panel - begin) * panels.columns());
  }
}

template <class V>
void multiply_row(const Panels& panels, const Activations& activations, int begin, int end, float* y) {
  constexpr auto kOf4Bits = multiply_row_of<V, 4>, kOf6Bits = multiply_row_of<V, 6>, kOf8Bits = multiply_row_of<V, 8>;
  const auto multiply = panels.kept_bits() == 4 ? kOf4Bits : panels.kept_bits() == 6 ? kOf6Bits : kOf8Bits;
  multiply(panels, activations, begin, end, y);
}

}  // namespace edgeformer
