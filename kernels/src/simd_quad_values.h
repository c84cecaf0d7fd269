// Values of a prompt's attention by bytes, over a SIMD level V (see simd_kernels.h): those of a whole block of keys, for rows that
// see all of it.
//
// Values are a scale of their channel times integers from -127 to 127, and weights of a row are integers from 0 to 255, of which
// 255 stands for the largest in the block:
//
//     Σ weight · value  =  e^(largest score in the block - largest of all) / 255 · scale_of_channel · Σ integer · integer
//
// A weight between two integers becomes either, and the upper one as often as it is near, so that many small weights beside a
// large one have the sum that they should have. What divides outputs in the end sums these integers, too: outputs stay means of
// values. As each row sees all of a block, its channels' scales depend neither on later tokens nor on the size of chunks. Four
// integers are a word, as in simd_quads.h. Weights are stored less kByteBias, and the sums begin with that times a channel's integers.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "attention_rows.h"
#include "simd_math.h"
#include "simd_quads.h"

namespace edgeformer {

// Levels that have both of these: words_of makes words of the integers in four vectors; and store_weights(scores, largest,
// thresholds, to) stores 255 e^(score - largest) - kByteBias of kWeights scores, whose fraction is rounded up where it and the
// threshold, in units of 1 / 256, are more than 1.
template <class V>
concept HasQuads = requires(typename V::Ints integers, std::uint8_t* to) {
  V::words_of(integers, integers, integers, integers);
  V::store_weights(static_cast<const float*>(nullptr), 0.0f, static_cast<const std::uint16_t*>(nullptr), to);
};

// Values of a whole block: words of four values' integers of a channel, [kKeysAtOnce / 4][head_dim]; the channels' scales; and
// what dot4 is to begin with, which adds what was taken from weights.
struct QuadValues {
  std::uint8_t* words;
  float* scales;
  std::int32_t* starts;
};

// Of rows of weights, which are their integers times a factor: that factor, and what is left of all that was summed before.
struct QuadFactors {
  float *now, *before;
};

// The largest weight of a row and block.
inline constexpr float kLargestWeight = 255.0f;

template <class V>
void quad_values(const float* values, int head_dim, const QuadValues& to) {
  static constexpr std::int8_t kOnes[] = {1, 1, 1, 1};
  for (int i = 0; i < head_dim; i += V::kLanes) {
    const auto at = [&](int key) { return V::load(values + static_cast<std::size_t>(key) * head_dim + i); };
    typename V::Floats largest = V::splat(0.0f), nan = largest;
    for (int key = 0; key < kKeysAtOnce; ++key) {
      largest = V::max(largest, V::abs(at(key)));
      nan = V::multiply_add(at(key), V::splat(0.0f), nan);
    }
    alignas(kCacheLine) float inverses[V::kLanes];
    V::store(to.scales + i, V::add(largest, nan));
    for (int channel = 0; channel < V::kLanes; ++channel) {
      const QuadScale scale(to.scales[i + channel]);
      inverses[channel] = scale.inverse;
      to.scales[i + channel] = scale.scale;
    }
    const typename V::Floats inverse = V::load(inverses);
    const auto rounded = [&](int key) { return V::round(V::multiply(at(key), inverse)); };
    typename V::Ints starts = V::splat(0);
    for (int key = 0; key < kKeysAtOnce; key += 4) {
      const typename V::Bytes words = V::words_of(rounded(key), rounded(key + 1), rounded(key + 2), rounded(key + 3));
      V::store_bytes(to.words + static_cast<std::size_t>(key) * head_dim + 4 * i, words);
      starts = V::dot4(starts, V::broadcast4(kOnes), words);
    }
    V::store(to.starts + i, V::multiply(starts, V::splat(V::kByteBias)));
  }
}

// Numbers from 1 to 255 in the order of their reversed bits, twice: of any that are neighbours, a part is below a number which is
// as large as that.
inline constexpr auto kThresholds = [] {
  std::array<std::uint16_t, 2 * kKeysAtOnce> thresholds{};
  for (int i = 0; i < 2 * kKeysAtOnce; ++i) {
    for (int bit = 0; bit < 7; ++bit) thresholds[i] |= (i >> bit & 1) << (7 - bit);
    ++thresholds[i];
  }
  return thresholds;
}();

// The largest score of a row; NaN where all are, or where one is that has a NaN of a bias.
template <class V>
float largest_of_block(const float* scores, bool has_bias) {
  typename V::Floats largest = V::load(scores), sum = largest;
  for (int i = V::kLanes; i < kKeysAtOnce; i += V::kLanes) largest = V::max(largest, V::load(scores + i));
  if (!has_bias) return V::reduce_max(largest);
  for (int i = V::kLanes; i < kKeysAtOnce; i += V::kLanes) sum = V::add(sum, V::load(scores + i));
  const float of_all = V::reduce_add(sum);
  return std::isnan(of_all) ? of_all : V::reduce_max(largest);
}

// Scores of `rows` rows from `row` on, up to kLanes, become integers of weights in the first quarters of their memory. nan: NaN
// where a key has such a score. The largest scores and the weights that were summed before become those of both.
template <class V>
void weigh_quads(const AttentionRows& all, int row, int rows, float nan, float* scores, const AttentionSums& sums_of_all,
                 const QuadFactors& to) {
  static constexpr std::int8_t kOnes[] = {1, 1, 1, 1};
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  alignas(kCacheLine) float here[V::kLanes], results[V::kLanes];
  const auto of_row = [&](int each) { return scores + static_cast<std::size_t>(each) * kKeysAtOnce; };
  std::fill(here, here + V::kLanes, kNone);
  for (int each = 0; each < rows; ++each) here[each] = largest_of_block<V>(of_row(each), all.bias != nullptr) + nan;
  typename V::Ints fours[V::kLanes / 4];
  for (int four = 0; four < V::kLanes / 4; ++four) {
    typename V::Ints sums[4];
    for (int of_four = 0; of_four < 4; ++of_four) {
      const int each = 4 * four + of_four;
      sums[of_four] = V::splat(V::kByteBias * kKeysAtOnce / V::kLanes);
      if (each >= rows) continue;
      // Other keys are rounded up in the next row, of a token or head: an odd number gives 128 rows all shifts.
      const std::uint16_t* thresholds = kThresholds.data() + (all.position * all.heads + row + each) * 37 % kKeysAtOnce;
      auto* integers = reinterpret_cast<std::uint8_t*>(of_row(each));
      const float shift = here[each] == kNone ? 0.0f : here[each];
#pragma clang loop unroll(full)
      for (int i = 0; i < kKeysAtOnce; i += V::kWeights) {
        V::store_weights(of_row(each) + i, shift, thresholds + i, integers + i);
      }
      for (int i = 0; i < kKeysAtOnce; i += V::kBytes) {
        sums[of_four] = V::dot4(sums[of_four], V::load_bytes(integers + i), V::broadcast4(kOnes));
      }
    }
    fours[four] = V::sums_of_four(sums[0], sums[1], sums[2], sums[3]);
  }
  float *largest = sums_of_all.largest + row, *weights = sums_of_all.weights + row;
  // A maximum is its second number where one of both is NaN. Where there is no score at all, a number is subtracted.
  const typename V::Floats then = V::load(largest), now = V::load(here), both = V::max(then, now);
  const typename V::Floats shift = V::max(V::splat(std::numeric_limits<float>::lowest()), both);
  const typename V::Floats before = exponential<V>(V::subtract(then, shift));
  const typename V::Floats factor = V::multiply(exponential<V>(V::subtract(now, shift)), V::splat(1 / kLargestWeight));
  V::store(to.before, before);
  V::store(to.now, factor);
  V::store(results, V::multiply_add(V::to_floats(V::join_sums(fours)), factor, V::multiply(V::load(weights), before)));
  std::copy_n(results, rows, weights);
  V::store(results, both);
  std::copy_n(results, rows, largest);
}

// Adds values to outputs of rows `row` on, of kVectors vectors of channels from `first` on. scores: those of the first row.
template <class V, int kRows, int kVectors>
void add_quad_values(const float* scores, const QuadValues& values, const QuadFactors& factors, int head_dim, int row, int first,
                     float* outputs) {
  typename V::Ints sums[kRows][kVectors];
  begin_sums<V, kRows, kVectors>(values.starts + first, sums);
  add_quads<V, kRows, kVectors>(reinterpret_cast<const std::int8_t*>(scores), kKeysAtOnce * sizeof(float),
                                values.words + std::size_t(4) * first, std::size_t(4) * head_dim, kKeysAtOnce / 4, sums);
#pragma clang loop unroll(full)
  for (int each = 0; each < kRows; ++each) {
    const typename V::Floats now = V::splat(factors.now[row + each]), before = V::splat(factors.before[row + each]);
    for (int i = 0; i < kVectors; ++i) {
      float* output = outputs + static_cast<std::size_t>(each) * head_dim + first + i * V::kLanes;
      const typename V::Floats scale = V::multiply(now, V::load(values.scales + first + i * V::kLanes));
      V::store(output, V::multiply_add(V::to_floats(sums[each][i]), scale, V::multiply(V::load(output), before)));
    }
  }
}

template <class V, int kVectors, int... kRows>
constexpr auto quad_values_of(std::integer_sequence<int, kRows...>) {
  return std::array{&add_quad_values<V, kRows + 1, kVectors>...};
}

template <class V, int kVectors>
inline constexpr auto kQuadValues = quad_values_of<V, kVectors>(std::make_integer_sequence<int, V::kTileRows>());

// Adds the values of a block that rows `row` to `row + rows` see, all of it, to their sums. nan: as above.
template <class V>
void attend_quads(const AttentionRows& all, const QuadValues& values, const QuadFactors& factors, int row, int rows, float nan,
                  float* scores, const AttentionSums& to) {
  const auto of_row = [&](int each) { return scores + static_cast<std::size_t>(each) * kKeysAtOnce; };
  for (int each = 0; each < rows; each += V::kLanes) {
    weigh_quads<V>(all, row + each, std::min(V::kLanes, rows - each), nan, of_row(each), to, {factors.now + each, factors.before + each});
  }
  for (int channel = 0; channel < all.head_dim;) {
    const int vectors = channel + 2 * V::kLanes <= all.head_dim ? 2 : 1;
    for (int each = 0; each < rows; each += V::kTileRows) {
      const int index = std::min(rows - each, V::kTileRows) - 1;
      float* outputs = to.outputs + static_cast<std::size_t>(row + each) * all.head_dim;
      (vectors == 2 ? kQuadValues<V, 2> : kQuadValues<V, 1>)[index](of_row(each), values, factors, all.head_dim, each, channel, outputs);
    }
    channel += vectors * V::kLanes;
  }
}

}  // namespace edgeformer
