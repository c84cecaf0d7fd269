// Cases of attention over a cache, what a call reads and writes, and the definition in attention.h as plain loops in float64.
#pragma once

#include "attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string_view>
#include <vector>

#include "check.h"
#include "half.h"
#include "random_floats.h"

namespace edgeformer {

// Sums of float32 over keys and head_dim, and exponentials to 2 units in the last place.
inline constexpr double kTolerance = 1e-5;

inline constexpr Stored kAllStored[] = {Stored::kFloat, Stored::kHalf, Stored::kInt8, Stored::kInt8PerToken};

struct Case {
  AttentionShape shape;
  int rows = 1, tokens = 1;
  std::vector<int> valid;  // keys of each row, the new ones included
  bool prompt = false, bias = false, sinks = false, packed = false, in_place = true, own_keys = true;
  Stored stored = Stored::kFloat;
  int capacity = 0;  // of the present; 0: as many as the longest row has
  double tolerance = kTolerance;
};

// Everything that one call reads and writes.
struct Memory {
  std::vector<float> queries, keys, values, cosines, sines, bias, sinks, past_keys, past_values, present_keys,
      present_values, output;
  std::vector<std::int8_t> past_int8s[2], present_int8s[2];  // of keys and of values, where the cache has int8
  std::vector<Half> past_halves[2], present_halves[2];       // or float16
  std::vector<float> scales[2];
  std::vector<std::int32_t> last_positions;
  AttentionInputs inputs{};

  explicit Memory(const Case& of) {
    const auto& [heads, kv_heads, d, rotary, interleaved, causal, window, evicts, scale, softcap, may_round] = of.shape;
    int longest = 1;
    for (int each : of.valid) longest = std::max(longest, each);
    const int capacity = std::max(of.capacity, std::max(longest, of.prompt ? of.tokens : 0));
    const std::size_t tokens = std::size_t(of.rows) * of.tokens;
    queries = random_floats(tokens * (heads + (of.packed ? 2 * kv_heads : 0)) * d, 1);
    keys = random_floats(tokens * kv_heads * d, 2);
    values = random_floats(tokens * kv_heads * d, 3);
    for (int i = 0; i < capacity * rotary / 2; ++i) {
      cosines.push_back(std::cos(0.37f * i));
      sines.push_back(std::sin(0.37f * i));
    }
    const std::size_t cache = std::size_t(of.rows) * kv_heads * capacity * d;
    past_keys = random_floats(cache, 4);
    past_values = random_floats(cache, 5);
    present_keys = of.in_place ? past_keys : std::vector<float>(cache, NAN);
    present_values = of.in_place ? past_values : std::vector<float>(cache, NAN);
    output.assign(tokens * heads * d, NAN);
    for (int each : of.valid) last_positions.push_back(each - 1);
    bias = random_floats(std::size_t(heads) * of.tokens * longest, 6);
    bias[bias.size() / 2] = -std::numeric_limits<float>::infinity();
    sinks = random_floats(heads, 7);
    inputs.rows = of.rows;
    inputs.new_tokens = of.tokens;
    inputs.queries = queries.data();
    inputs.query_stride = queries.size() / tokens;
    inputs.keys = !of.own_keys ? nullptr : of.packed ? queries.data() + heads * d : keys.data();
    inputs.values = !of.own_keys ? nullptr : of.packed ? inputs.keys + kv_heads * d : values.data();
    inputs.kv_stride = of.packed ? inputs.query_stride : kv_heads * d;
    inputs.cosines = cosines.data();
    inputs.sines = sines.data();
    inputs.last_positions = last_positions.data();
    inputs.is_prompt = of.prompt;
    if (of.bias) {
      inputs.bias = bias.data();
      inputs.bias_token_stride = longest;
      inputs.bias_head_stride = std::size_t(of.tokens) * longest;
    }
    inputs.sinks = of.sinks ? sinks.data() : nullptr;
    inputs.keys_cache = {of.in_place ? present_keys.data() : past_keys.data(), std::size_t(capacity), present_keys.data(),
                         std::size_t(capacity)};
    inputs.values_cache = {of.in_place ? present_values.data() : past_values.data(), std::size_t(capacity),
                           present_values.data(), std::size_t(capacity)};
    inputs.output = output.data();
    for (int kind : {0, 1}) {
      Cache& to = kind == 0 ? inputs.keys_cache : inputs.values_cache;
      if (of.stored == Stored::kInt8) use_int8s(of, kind, cache, to);
      if (of.stored == Stored::kInt8PerToken) use_int8s_per_token(of, kind, cache, to);
      if (of.stored == Stored::kHalf) use_halves(of, kind, cache, to);
    }
  }

  void use_int8s(const Case& of, int kind, std::size_t size, Cache& to) {
    for (float each : random_floats(std::size_t(of.shape.kv_heads) * of.shape.head_dim, 8 + kind)) {
      scales[kind].push_back(0.008f + 0.008f * std::fabs(each));  // the largest numbers are clipped in some channels
    }
    for (float each : random_floats(size, 10 + kind, 40)) past_int8s[kind].push_back(std::int8_t(std::clamp(each, -128.0f, 127.0f)));
    keep_int8s(of, kind, to);
    to.scales = scales[kind].data();
  }

  void use_int8s_per_token(const Case& of, int kind, std::size_t size, Cache& to) {
    const int d = of.shape.head_dim;
    const std::vector<float> numbers = random_floats(size, 10 + kind);
    past_int8s[kind].resize(size / d * stored_width(of.stored, d));
    for (std::size_t i = 0; i < size / d; ++i) {
      level_for(d).round_to_int8_per_token(numbers.data() + i * d, d, past_int8s[kind].data() + i * stored_width(of.stored, d));
    }
    keep_int8s(of, kind, to);
  }

  void keep_int8s(const Case& of, int kind, Cache& to) {
    present_int8s[kind] = of.in_place ? past_int8s[kind] : std::vector<std::int8_t>(past_int8s[kind].size(), 99);
    to.past = of.in_place ? present_int8s[kind].data() : past_int8s[kind].data();
    to.present = present_int8s[kind].data();
    to.stored = of.stored;
  }

  void use_halves(const Case& of, int kind, std::size_t size, Cache& to) {
    for (float each : random_floats(size, 10 + kind)) past_halves[kind].push_back(to_half(each));
    present_halves[kind] = of.in_place ? past_halves[kind] : std::vector<Half>(size, 0x7e00);
    to.past = of.in_place ? present_halves[kind].data() : past_halves[kind].data();
    to.present = present_halves[kind].data();
    to.stored = of.stored;
  }

  float scale(const Case& of, int kind, int kv_head, int channel) const {
    return scales[kind][std::size_t(kv_head) * of.shape.head_dim + channel];
  }

  // What int8 or float16 of the cache stand for, where the definition reads floats.
  void widen(const Case& of) {
    for (int kind = 0; of.stored == Stored::kHalf && kind < 2; ++kind) {
      std::transform(present_halves[kind].begin(), present_halves[kind].end(),
                     (kind == 0 ? present_keys : present_values).begin(), from_half);
    }
    for (int kind = 0; of.stored == Stored::kInt8 && kind < 2; ++kind) {
      std::vector<float>& to = kind == 0 ? present_keys : present_values;
      const std::size_t d = of.shape.head_dim, of_head = inputs.keys_cache.present_capacity * d;
      for (std::size_t i = 0; i < to.size(); ++i) {
        to[i] = present_int8s[kind][i] * scale(of, kind, int(i / of_head % of.shape.kv_heads), int(i % d));
      }
    }
    for (int kind = 0; of.stored == Stored::kInt8PerToken && kind < 2; ++kind) {
      std::vector<float>& to = kind == 0 ? present_keys : present_values;
      const std::size_t d = of.shape.head_dim, width = d + sizeof(float);
      for (std::size_t i = 0; i < to.size(); ++i) {
        const std::int8_t* integers = present_int8s[kind].data() + i / d * width;
        float scale;
        std::memcpy(&scale, integers + d, sizeof scale);
        to[i] = integers[i % d] * scale;
      }
    }
  }
};

// How far a number of the cache is from what belongs there. Of int8, beyond what rounding moves it. largest: magnitude of the
// numbers of that key or value.
inline double cache_error(const Case& of, const Memory& memory, int kind, int kv_head, int channel, double expected, double largest,
                          double found) {
  if (of.stored == Stored::kFloat) return std::fabs(expected - found);
  if (of.stored == Stored::kHalf) {
    const double half_a_step = std::ldexp(1.0, std::max(std::ilogb(expected == 0 ? 1e-9 : expected), -14) - 11);
    return std::max(0.0, std::fabs(expected - found) - half_a_step);
  }
  const double scale = of.stored == Stored::kInt8 ? memory.scale(of, kind, kv_head, channel) : largest / 127;
  return std::max(0.0, std::fabs(std::clamp(expected / scale, -128.0, 127.0) - found / scale) - 0.5);
}

template <class T>
double largest_magnitude_of(const T* numbers, int count) {
  double largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(double(numbers[i])));
  return largest;
}

inline std::vector<double> rotated(const Case& of, const Memory& memory, const float* x, int position, double scale) {
  const int rotary = of.shape.rotary_dim, half = rotary / 2;
  std::vector<double> y(x, x + of.shape.head_dim);
  for (int i = 0; i < half; ++i) {
    const int a = of.shape.interleaved ? 2 * i : i, b = of.shape.interleaved ? 2 * i + 1 : i + half;
    const double c = memory.cosines[position * half + i], s = memory.sines[position * half + i];
    y[a] = x[a] * c - x[b] * s;
    y[b] = x[b] * c + x[a] * s;
  }
  for (double& each : y) each *= scale;
  return y;
}

// Where a present of a row has a key, or a value: by the present, the head and the number of the key.
inline auto keys_of(const Case& of, const Memory& before, int row) {
  const std::size_t heads = of.shape.kv_heads, capacity = before.inputs.keys_cache.present_capacity, width = of.shape.head_dim;
  return [=](const std::vector<float>& present, int kv_head, int key) {
    return present.data() + ((row * heads + kv_head) * capacity + key) * width;
  };
}

// What attention is by the definition, and the sum of magnitudes that each number was added up from, which is 1 where a token
// sees no keys: [rows][tokens][heads][head_dim]. That of padding is not a number.
struct Expected {
  std::vector<double> output, magnitude;
};

// The definition in attention.h, over the present that the call has written.
inline Expected definition(const Case& of, const Memory& before, const Memory& after) {
  const AttentionShape& shape = of.shape;
  const int d = shape.head_dim;
  const std::size_t count = before.output.size();
  Expected expected{std::vector<double>(count, NAN), std::vector<double>(count, 1.0)};
  for (int row = 0; row < of.rows; ++row) {
    const int valid = of.valid[row], past = of.prompt ? 0 : valid - of.tokens;
    const auto key_at = keys_of(of, before, row);
    for (int token = 0; token < of.tokens; ++token) {
      const std::size_t index = std::size_t(row) * of.tokens + token;
      const int position = past + token;
      if (position >= valid) continue;  // padding
      for (int head = 0; head < shape.query_heads; ++head) {
        const int kv_head = head / shape.heads_per_group();
        const std::vector<double> query =
            rotated(of, before, before.inputs.queries + index * before.inputs.query_stride + head * d, position, shape.scale);
        std::vector<double> sums(d, 0.0), magnitudes(d, 0.0);
        double weight = of.sinks ? std::exp(double(before.sinks[head])) : 0;
        for (int key = 0; key < valid; ++key) {
          if (shape.causal && key > position) continue;
          if (shape.window > 0 && key + shape.window <= position) continue;
          double score = 0;
          for (int i = 0; i < d; ++i) score += query[i] * key_at(after.present_keys, kv_head, key)[i];
          if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
          if (of.bias) {
            score += before.bias[head * before.inputs.bias_head_stride + token * before.inputs.bias_token_stride + key];
          }
          const double of_key = std::exp(score);
          const float* value = key_at(after.present_values, kv_head, key);
          weight += of_key;
          for (int i = 0; i < d; ++i) {
            sums[i] += of_key * value[i];
            magnitudes[i] += of_key * std::fabs(value[i]);
          }
        }
        for (int i = 0; i < d; ++i) {
          const std::size_t at = (index * shape.query_heads + head) * d + i;
          expected.output[at] = weight > 0 ? sums[i] / weight : 0;
          expected.magnitude[at] = weight > 0 ? magnitudes[i] / weight + 1e-3 : 1;
        }
      }
    }
  }
  return expected;
}

// The same, computed once for all levels that read and wrote the same numbers: these loops took most of the time.
inline const Expected& expected_of(const Case& of, const Memory& before, const Memory& after) {
  // What a level may round and how it evicts does not change the definition; everything else that it reads is told.
  const auto& [heads, kv_heads, d, rotary, interleaved, causal, window, evicts, scale, softcap, may_round] = of.shape;
  std::vector<std::size_t> key(of.valid.begin(), of.valid.end());
  for (int each : {heads, kv_heads, d, rotary, int(interleaved), int(causal), window, of.rows, of.tokens, int(of.prompt),
                   int(of.bias), int(of.sinks), std::bit_cast<int>(scale), std::bit_cast<int>(softcap)}) {
    key.push_back(each);
  }
  for (const std::vector<float>* numbers : {&before.queries, &before.cosines, &before.sines, &before.bias, &before.sinks,
                                            &after.present_keys, &after.present_values}) {
    const std::string_view bytes(reinterpret_cast<const char*>(numbers->data()), numbers->size() * sizeof(float));
    key.push_back(bytes.size());
    key.push_back(std::hash<std::string_view>{}(bytes));
  }
  static std::map<std::vector<std::size_t>, Expected> known;
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(std::move(key), definition(of, before, after)).first->second;
}

// The largest error of the output, and of what was written to the present.
inline double error_of(const Case& of, const Memory& before, const Memory& after) {
  const AttentionShape& shape = of.shape;
  const int d = shape.head_dim;
  const Expected& expected = expected_of(of, before, after);
  double worst = 0;
  for (int row = 0; row < of.rows; ++row) {
    const int valid = of.valid[row], past = of.prompt ? 0 : valid - of.tokens;
    const auto key_at = keys_of(of, before, row);
    for (int token = 0; token < of.tokens; ++token) {
      const std::size_t index = std::size_t(row) * of.tokens + token;
      const int position = past + token;
      for (int kv_head = 0; of.own_keys && kv_head < shape.kv_heads; ++kv_head) {
        const std::size_t at = index * before.inputs.kv_stride + kv_head * d;
        const std::vector<double> key = rotated(of, before, before.inputs.keys + at, position, 1);
        const double of_key = largest_magnitude_of(key.data(), d), of_value = largest_magnitude_of(before.inputs.values + at, d);
        for (int i = 0; i < d; ++i) {
          const double value = before.inputs.values[at + i], found = key_at(after.present_values, kv_head, position)[i];
          worst = std::max(worst, cache_error(of, before, 0, kv_head, i, key[i], of_key, key_at(after.present_keys, kv_head, position)[i]));
          CHECK(of.stored != Stored::kFloat || value == found, "a value changed");
          worst = std::max(worst, cache_error(of, before, 1, kv_head, i, value, of_value, found));
        }
      }
      if (position >= valid) continue;  // padding
      const std::size_t size = std::size_t(shape.query_heads) * d;
      for (std::size_t at = index * size; at < (index + 1) * size; ++at) {
        const double found = after.output[at];
        CHECK(!std::isnan(found), "row %d token %d head %zu is not a number", row, token, (at - index * size) / d);
        worst = std::max(worst, std::fabs(expected.output[at] - found) / expected.magnitude[at]);
      }
    }
  }
  return worst;
}

}  // namespace edgeformer
