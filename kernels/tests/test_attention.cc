// Every level that runs here against plain loops in float64: groups, windows, soft-caps, sinks, biases, padding, chunks.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "team.h"

using namespace edgeformer;

namespace {

// Sums of float32 over keys and head_dim, and exponentials to 2 units in the last place.
constexpr double kTolerance = 1e-5;

std::vector<float> random_floats(std::size_t count, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> floats(count);
  for (float& each : floats) each = normal(random);
  return floats;
}

struct Case {
  AttentionShape shape;
  int rows = 1, tokens = 1;
  std::vector<int> valid;  // keys of each row, the new ones included
  bool prompt = false, bias = false, sinks = false, packed = false, in_place = true, own_keys = true;
  int capacity = 0;  // of the present; 0: as many as the longest row has
  double tolerance = kTolerance;
};

// Everything that one call reads and writes.
struct Memory {
  std::vector<float> queries, keys, values, cosines, sines, bias, sinks, past_keys, past_values, present_keys,
      present_values, output;
  std::vector<std::int32_t> last_positions;
  AttentionInputs inputs{};

  explicit Memory(const Case& of) {
    const auto& [heads, kv_heads, d, rotary, interleaved, causal, window, scale, softcap] = of.shape;
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
  }
};

std::vector<double> rotated(const Case& of, const Memory& memory, const float* x, int position, double scale) {
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

// The definition in attention.h, over the present that the call has written, which is checked here as well.
double error_of(const Case& of, const Memory& before, const Memory& after) {
  const AttentionShape& shape = of.shape;
  const int d = shape.head_dim;
  double worst = 0;
  for (int row = 0; row < of.rows; ++row) {
    const int valid = of.valid[row], past = of.prompt ? 0 : valid - of.tokens;
    const auto key_at = [&](const std::vector<float>& cache, int kv_head, int key) {
      return cache.data() + ((std::size_t(row) * shape.kv_heads + kv_head) * before.inputs.keys_cache.present_capacity + key) * d;
    };
    for (int token = 0; token < of.tokens; ++token) {
      const std::size_t index = std::size_t(row) * of.tokens + token;
      const int position = past + token;
      for (int kv_head = 0; of.own_keys && kv_head < shape.kv_heads; ++kv_head) {
        const std::size_t at = index * before.inputs.kv_stride + kv_head * d;
        const std::vector<double> key = rotated(of, before, before.inputs.keys + at, position, 1);
        for (int i = 0; i < d; ++i) {
          worst = std::max(worst, std::fabs(key[i] - key_at(after.present_keys, kv_head, position)[i]));
          CHECK(before.inputs.values[at + i] == key_at(after.present_values, kv_head, position)[i], "a value changed");
        }
      }
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
          weight += std::exp(score);
          for (int i = 0; i < d; ++i) {
            sums[i] += std::exp(score) * key_at(after.present_values, kv_head, key)[i];
            magnitudes[i] += std::exp(score) * std::fabs(key_at(after.present_values, kv_head, key)[i]);
          }
        }
        for (int i = 0; i < d; ++i) {
          const double expected = weight > 0 ? sums[i] / weight : 0, found = after.output[(index * shape.query_heads + head) * d + i];
          const double error = std::fabs(expected - found) / (weight > 0 ? magnitudes[i] / weight + 1e-3 : 1);
          CHECK(!std::isnan(found), "row %d token %d head %d is not a number", row, token, head);
          worst = std::max(worst, error);
        }
      }
    }
  }
  return worst;
}

void check(const Level& level, const char* name, const Case& of) {
  const Memory before(of);
  Memory after(of), with_team(of);
  Serial serial;
  static Team team(3);
  const Level& fits = level_for(of.shape.head_dim, level);
  attend(of.shape, after.inputs, fits, serial);
  const double error = error_of(of, before, after);
  CHECK(error < of.tolerance, "%s, %s: error %.2e", level.name, name, error);
  attend(of.shape, with_team.inputs, fits, team);
  CHECK(with_team.output == after.output && with_team.present_keys == after.present_keys,
        "%s, %s: three threads differ from one", level.name, name);
}

// Attention without a cache. The oracle reads a cache, which is written here by the definition.
void check_itself(const Level& level, const char* name, Case of) {
  of.prompt = true;
  const Memory before(of);
  Memory after(of), with_team(of);
  Serial serial;
  static Team team(3);
  const Level& fits = level_for(of.shape.head_dim, level);
  for (Memory* each : {&after, &with_team}) {
    each->inputs.keys_cache = each->inputs.values_cache = {};
    attend_to_itself(of.shape, each->inputs, fits, each == &after ? static_cast<Parallel&>(serial) : team);
  }
  CHECK(with_team.output == after.output, "%s, %s: three threads differ from one", level.name, name);
  const std::size_t d = of.shape.head_dim, capacity = before.inputs.keys_cache.present_capacity;
  for (int token = 0; token < of.rows * of.tokens; ++token) {
    const std::size_t row = token / of.tokens, position = token % of.tokens;
    for (int head = 0; head < of.shape.kv_heads; ++head) {
      const std::size_t from = token * before.inputs.kv_stride + head * d;
      const std::size_t to = ((row * of.shape.kv_heads + head) * capacity + position) * d;
      const std::vector<double> key = rotated(of, before, before.inputs.keys + from, static_cast<int>(position), 1);
      std::copy(key.begin(), key.end(), after.present_keys.begin() + to);
      std::copy_n(before.inputs.values + from, d, after.present_values.begin() + to);
    }
    const bool is_padding = int(position) >= of.valid[row];
    const std::size_t size = of.shape.query_heads * d;
    for (std::size_t i = 0; is_padding && i < size; ++i) {
      CHECK(after.output[token * size + i] == 0, "%s, %s: padding is not 0", level.name, name);
    }
  }
  const double error = error_of(of, before, after);
  CHECK(error < of.tolerance, "%s, %s: error %.2e", level.name, name, error);
}

AttentionShape heads(int query_heads, int kv_heads, int head_dim) {
  AttentionShape shape{query_heads, kv_heads, head_dim};
  shape.scale = 1 / std::sqrt(float(head_dim));
  return shape;
}

// Encoders' attention: several blocks of queries, padding, and everything that changes scores.
void check_all_of_itself(const Level& level) {
  for (int d : {8, 32, 80}) {
    for (auto [query_heads, kv_heads] : {std::pair{2, 2}, {6, 2}}) {
      AttentionShape shape = heads(query_heads, kv_heads, d);
      const int tokens = d == 32 ? 131 : 40;  // of two or four blocks of queries, and of one
      for (bool causal : {false, true}) {
        shape.causal = causal;
        check_itself(level, "one token", {.shape = shape, .valid = {1}});
        check_itself(level, "rows", {.shape = shape, .rows = 3, .tokens = tokens, .valid = {tokens, tokens - 9, 0}, .packed = true});
        shape.rotary_dim = d;
        check_itself(level, "a rotation", {.shape = shape, .rows = 2, .tokens = 30, .valid = {30, 9}});
      }
    }
  }
  Case of{.shape = heads(4, 2, 16), .rows = 2, .tokens = 90, .valid = {90, 71}};
  of.shape.causal = false;
  of.bias = of.sinks = true;
  check_itself(level, "sinks and a bias", of);
  of.shape.softcap = 0.5f;
  of.shape.window = 20;
  of.shape.interleaved = true;
  of.shape.rotary_dim = 8;
  check_itself(level, "a soft-cap, a window and neighbours rotated", of);
}

void check_all(const Level& level) {
  for (int d : {8, 24, 64, 80}) {
    for (auto [query_heads, kv_heads] : {std::pair{2, 2}, {6, 2}, {7, 1}}) {
      AttentionShape shape = heads(query_heads, kv_heads, d);
      shape.rotary_dim = d;
      check(level, "the first token", {.shape = shape, .valid = {1}});
      check(level, "a step", {.shape = shape, .rows = 2, .valid = {150, 3}, .capacity = 200});
      check(level, "a prompt", {.shape = shape, .rows = 2, .tokens = 70, .valid = {70, 9}, .prompt = true, .packed = true});
      check(level, "a chunk", {.shape = shape, .tokens = 33, .valid = {140}, .in_place = false});
    }
  }
  for (int tokens : {1, 40}) {
    Case of{.shape = heads(8, 2, 32), .rows = 2, .tokens = tokens, .valid = {171, 90}};
    check(level, "no rotation", of);
    Case changed = of;
    changed.shape.interleaved = true;
    changed.shape.rotary_dim = 16;
    check(level, "neighbours of a part are rotated", changed);
    for (int window : {1, 5, 64, 100, 1000}) {
      changed = of;
      changed.shape.window = window;
      check(level, "a window", changed);
    }
    changed = of;
    changed.shape.softcap = 0.5f;
    changed.shape.scale = 1;
    check(level, "a soft-cap", changed);
    changed = of;
    changed.sinks = true;
    changed.bias = true;
    check(level, "sinks and a bias", changed);
    changed = of;
    changed.shape.causal = false;
    check(level, "both directions", changed);
    changed = of;
    changed.own_keys = false;
    check(level, "keys of an earlier layer", changed);
    changed = of;
    changed.shape.scale = 60;
    changed.tolerance = 1e-3;  // scores of hundreds have errors of 1e-5 and more, and so have their exponentials
    check(level, "large scores", changed);
  }
  check(level, "no keys to see", {.shape = heads(2, 1, 16), .rows = 2, .tokens = 3, .valid = {3, 0}, .prompt = true});
}

// A test that could not fail would prove nothing: a wrong window, scale or key must be seen.
void check_that_faults_are_seen() {
  Case of{.shape = heads(4, 2, 32), .valid = {100}};
  of.shape.window = 50;
  const Memory before(of);
  Serial serial;
  for (int fault = 0; fault < 3; ++fault) {
    Case wrong = of;
    if (fault == 0) wrong.shape.window = 49;
    if (fault == 1) wrong.shape.scale *= 1.001f;
    Memory after(wrong);
    if (fault == 2) after.present_keys[of.shape.head_dim * 99 - 1] += 0.01f;
    attend(wrong.shape, after.inputs, best_level(), serial);
    if (fault == 2) after.present_keys[of.shape.head_dim * 99 - 1] -= 0.01f;
    CHECK(error_of(of, before, after) > kTolerance, "fault %d is not seen", fault);
  }
}

// NaN stays NaN, and does not reach other rows.
void check_not_a_number(const Level& level) {
  for (int tokens : {1, 5}) {
    const Case of{.shape = heads(4, 2, 32), .rows = 2, .tokens = tokens, .valid = {90, 90}};
    Memory good(of), bad(of);
    bad.queries[3] = NAN;
    Serial serial;
    const Level& fits = level_for(32, level);
    attend(of.shape, good.inputs, fits, serial);
    attend(of.shape, bad.inputs, fits, serial);
    for (int i = 0; i < 32; ++i) CHECK(std::isnan(bad.output[i]), "%s: a NaN is lost", level.name);
    for (std::size_t i = 32; i < good.output.size(); ++i) CHECK(good.output[i] == bad.output[i], "%s", level.name);
  }
}

}  // namespace

int main() {
  check_that_faults_are_seen();
  for (const Level* level : levels()) {
    if (!level->runs_here()) {
      std::printf("%s does not run here\n", level->name);
      continue;
    }
    check_all(*level);
    check_all_of_itself(*level);
    check_not_a_number(*level);
    std::printf("%s is right\n", level->name);
  }
}
