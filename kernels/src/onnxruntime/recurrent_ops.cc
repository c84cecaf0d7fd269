#include "recurrent_ops.h"

#include <algorithm>
#include <array>

#include "each_row.h"
#include "recurrent.h"

namespace edgeformer {
namespace {

// Channels that a thread takes through all tokens: their inputs, taps and past stay in the first-level cache.
constexpr int kChannelsAtOnce = 512;

constexpr std::int64_t kMostTaps = 16;

}  // namespace

void MaskedCausalConv::run(Call& call, Parallel& parallel) const {
  const std::vector<std::int64_t> shape = call.shape(0), of_weight = call.shape(1);
  if (shape.size() != 3) call.refuse("x must have 3 dimensions");
  const std::int64_t rows = shape[0], tokens = shape[1], channels = shape[2];
  if (of_weight.size() != 2 || of_weight[0] != channels || of_weight[1] < 2 || of_weight[1] > kMostTaps) {
    call.refuse("weight must have 2 to " + std::to_string(kMostTaps) + " taps of each channel of x");
  }
  const int taps = static_cast<int>(of_weight[1]), before = taps - 1;
  if (call.has_input(2) && call.shape(2) != std::vector{channels}) call.refuse("bias must have a number for each channel of x");
  if (call.shape(3) != std::vector<std::int64_t>{rows, channels, before}) call.refuse("past must have what weight reads before x");
  if (call.shape(4) != std::vector{rows, tokens}) call.refuse("token_mask must have a value for each token of x");
  const float *x = call.input<float>(0), *weight = call.input<float>(1), *past = call.input<float>(3);
  const float* bias = call.has_input(2) ? call.input<float>(2) : nullptr;
  const bool* mask = call.input<bool>(4);
  float *y = call.output<float>(0, shape), *present = call.output<float>(1, {rows, channels, before});
  const std::int64_t parts = (channels + kChannelsAtOnce - 1) / kChannelsAtOnce;
  run_each_row(rows * parts, tokens * kChannelsAtOnce * taps, parallel, [&](std::size_t chunk) {
    const std::int64_t row = chunk / parts, first = chunk % parts * kChannelsAtOnce;
    const int size = static_cast<int>(std::min<std::int64_t>(kChannelsAtOnce, channels - first));
    float by_tap[kMostTaps * kChannelsAtOnce], earlier[(kMostTaps - 1) * kChannelsAtOnce];
    std::array<const float*, kMostTaps> inputs;
    float* const of_part = present + (row * channels + first) * before;
    for (int tap = 0; tap < taps; ++tap) {
      for (int i = 0; i < size; ++i) by_tap[tap * size + i] = weight[(first + i) * taps + tap];
    }
    for (int tap = 0; tap < before; ++tap) {
      inputs[tap] = earlier + tap * size;
      const float* from = past + (row * channels + first) * before + tap;
      for (int i = 0; i < size; ++i) earlier[tap * size + i] = from[i * before];
    }
    const Convolution convolution{inputs.data(), by_tap, bias == nullptr ? nullptr : bias + first, taps, size, silu_};
    for (std::int64_t token = row * tokens; token < (row + 1) * tokens; ++token) {
      float* const to = y + token * channels + first;
      if (!mask[token]) {
        std::fill_n(to, size, 0.0f);
        continue;
      }
      inputs[before] = x + token * channels + first;
      level_.convolve(convolution, to);
      std::copy_n(inputs.begin() + 1, before, inputs.begin());
    }
    for (int i = 0; i < size; ++i) {
      for (int tap = 0; tap < before; ++tap) of_part[i * before + tap] = inputs[tap][i];
    }
  });
}

void MaskedLinearAttention::run(Call& call, Parallel& parallel) const {
  const std::vector<std::int64_t> of_query = call.shape(0), of_value = call.shape(2), of_past = call.shape(3);
  if (of_query.size() != 3 || of_value.size() != 3 || of_past.size() != 4) {
    call.refuse("query, key and value must have 3 dimensions, and past 4");
  }
  const std::int64_t rows = of_past[0], heads = of_past[1], key_dim = of_past[2], value_dim = of_past[3], tokens = of_query[1];
  if (heads < 1 || key_dim < 1 || value_dim < 1) call.refuse("past must have numbers");
  const std::int64_t shared = of_query[2] / key_dim;
  if (of_query[0] != rows || shared < 1 || of_query[2] != shared * key_dim || heads % shared != 0) {
    call.refuse("query must have heads that those of past share");
  }
  if (call.shape(1) != of_query) call.refuse("key must have the shape of query");
  if (of_value != std::vector{rows, tokens, heads * value_dim}) call.refuse("value must have the heads of past");
  if (call.shape(4) != std::vector{rows, tokens}) call.refuse("token_mask must have a value for each token");
  for (std::size_t each : {5, 6}) {
    if (call.has_input(each) && call.shape(each) != std::vector{rows, tokens, heads}) {
      call.refuse("decay and beta must have a number for each token and head");
    }
  }
  const auto given = [&](std::size_t index) { return call.has_input(index) ? call.input<float>(index) : nullptr; };
  const float *query = given(0), *key = given(1), *value = given(2), *past = given(3), *decay = given(5), *beta = given(6);
  const bool* mask = call.input<bool>(4);
  float *output = call.output<float>(0, of_value), *present = call.output<float>(1, of_past);
  const std::int64_t parts = (value_dim + kStateColumns - 1) / kStateColumns;
  run_each_row(rows * heads * parts, (tokens + 1) * key_dim * kStateColumns, parallel, [&](std::size_t chunk) {
    const std::int64_t head = chunk / parts, of_row = head % heads, first = head / heads * tokens;
    const std::int64_t column = chunk % parts * kStateColumns;
    const std::int64_t read = of_row / (heads / shared) * key_dim, written = of_row * value_dim + column;
    const auto of_head = [&](const float* all) { return all == nullptr ? nullptr : all + first * heads + of_row; };
    static thread_local GrowingArray<float> memory;
    level_.attend_state({
        .query = query + first * of_query[2] + read,
        .key = key + first * of_query[2] + read,
        .value = value + first * of_value[2] + written,
        .decay = of_head(decay),
        .beta = of_head(beta),
        .mask = mask + first,
        .to_query = static_cast<std::size_t>(of_query[2]),
        .to_key = static_cast<std::size_t>(of_query[2]),
        .to_value = static_cast<std::size_t>(of_value[2]),
        .to_decay = static_cast<std::size_t>(heads),
        .tokens = static_cast<int>(tokens),
        .key_dim = static_cast<int>(key_dim),
        .columns = static_cast<int>(std::min<std::int64_t>(kStateColumns, value_dim - column)),
        .past = past + head * key_dim * value_dim + column,
        .present = present + head * key_dim * value_dim + column,
        .stride = static_cast<std::size_t>(value_dim),
        .scale = scale_,
        .output = output + first * of_value[2] + written,
        .memory = memory.at_least(key_dim * kStateColumns),
    });
  });
}

}  // namespace edgeformer
