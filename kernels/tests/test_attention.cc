// Every level that runs here against plain loops in float64: groups, windows, soft-caps, sinks, biases, padding, chunks.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string_view>

#include "attention_cases.h"
#include "attention_work.h"
#include "plain_tiles.h"
#include "simd_math.h"
#include "team.h"
#include "tested_levels.h"

using namespace edgeformer;

namespace {

// What a thread's memory has from calls before must not matter.
void spoil_memory() {
  constexpr std::size_t kNumbers = 1 << 16;
  AttentionMemory& memory = attention_memory_of_thread();
  for (GrowingArray<float>* each : {&memory.work, &memory.sums}) {
    std::fill_n(each->at_least(kNumbers), kNumbers, std::numeric_limits<float>::quiet_NaN());
  }
}

void check(const Level& level, const char* name, const Case& of) {
  const Memory before(of);
  Memory after(of), with_team(of);
  Serial serial;
  spoil_memory();
  static Team team(3);
  const Level& fits = level_for(of.shape.head_dim, level);
  attend(of.shape, after.inputs, fits, serial);
  after.widen(of);
  const double error = error_of(of, before, after);
  CHECK(error < of.tolerance, "%s, %s, heads of %d: error %.2e", level.name, name, of.shape.head_dim, error);
  attend(of.shape, with_team.inputs, fits, team);
  with_team.widen(of);
  CHECK(with_team.output == after.output && with_team.present_keys == after.present_keys,
        "%s, %s: three threads differ from one", level.name, name);
}

// Attention without a cache; returns its error. The oracle reads a cache, which is written here by the definition.
double check_itself(const Level& level, const char* name, Case of) {
  of.prompt = true;
  const Memory before(of);
  Memory after(of), with_team(of);
  Serial serial;
  static Team team(3);
  const Level& fits = level_for_copies(of.shape.head_dim, level);
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
  CHECK(error < of.tolerance, "%s, %s, heads of %d: error %.2e", level.name, name, of.shape.head_dim, error);
  return error;
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

void check_all(const Level& level, Stored stored) {
  const auto check = [&](const Level& at, const char* name, Case of) {
    of.stored = stored;
    const Level& fits = level_for(of.shape.head_dim, at);
    const bool has_words = multiplies_words(fits) && of.shape.head_dim % (2 * fits.lanes()) == 0;
    const bool rounds = stored == Stored::kInt8PerToken && has_words && of.shape.may_round;
    if (rounds && of.tokens == 1) of.tolerance *= 20;  // of which words of queries err by 2^-16 of the largest number
    ::check(at, name, of);
  };
  for (int d : {8, 24, 64, 80, 96}) {
    const bool by_words = stored == Stored::kInt8PerToken && multiplies_words(level);
    if ((stored >= Stored::kInt8 || d > 80) && d > 24 && !by_words) continue;  // integers are read as floats are
    for (auto [query_heads, kv_heads] : {std::pair{2, 2}, {6, 2}, {7, 1}}) {
      AttentionShape shape = heads(query_heads, kv_heads, d);
      shape.rotary_dim = d;
      check(level, "the first token", {.shape = shape, .valid = {1}});
      check(level, "a step", {.shape = shape, .rows = 2, .valid = {150, 3}, .capacity = 200});
      Case exact{.shape = shape, .rows = 2, .valid = {150, 3}, .capacity = 200};
      exact.shape.may_round = false;
      if (by_words) check(level, "a step that keeps float32", exact);
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
    // Whatever is done to scores is done to those of integers that are multiplied by words, and else to those of floats.
    if (stored == Stored::kInt8PerToken && !multiplies_words(level)) continue;
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

// How far a level rounds long prompts. Where all of it is bfloat16, queries, keys, values and weights err by 2^-9 at most, and
// so do sums, and scores of wide heads are large; of bytes, queries, keys and values err by 1/254 of their largest numbers,
// which are 3 here, and weights by 1/255 of the largest of a block. A bias gives few keys most of the weight: what all others
// have together is then as large as their errors. Numbers of narrow heads err by as much in the mean, and some by twice as much.
double rounding_of(const Level& level, int head_dim, bool bias = false) {
  if (multiplies_bytes(level)) return bias ? 0.2 : head_dim < 16 ? 4e-2 : 2e-2;
  return rounds_prompts(level) ? 1.5e-2 : kTolerance;
}

// Long prompts, of which products are of bfloat16 and bytes where the level has them. Elsewhere they are as exact as short
// ones. Integers of a cache are bfloat16 as they are.
void check_long_prompts(const Level& level) {
  for (Stored stored : kAllStored) {
    for (auto [d, query_heads] : {std::pair{8, 14}, {24, 2}, {48, 2}, {64, 6}, {144, 2}}) {  // a block of seven heads sees 41 keys first
      if (d == 144 && stored != Stored::kFloat) continue;  // wide heads take long where a processor is emulated
      Case of{.shape = heads(query_heads, 2, d), .tokens = 70, .valid = {331}, .stored = stored};
      of.shape.rotary_dim = d;
      of.tokens = 33;
      check(level, "drafts behind many keys are exact", of);
      of.tokens = 70;
      const bool rounds = rounds_prompts(level_for(d, level));
      of.tolerance = rounding_of(level_for(d, level), d);
      check(level, "a long prompt", of);
      of.shape.window = 100;
      if (multiplies_bytes(level_for(d, level))) check(level, "a window of a long prompt", of);
      of.bias = of.sinks = true;
      of.tolerance = rounding_of(level_for(d, level), d, true);
      check(level, "a window, sinks and a bias of a long prompt", of);
      of.tolerance = rounding_of(level_for(d, level), d);
      of = {.shape = of.shape, .tokens = 64, .valid = {470}, .stored = stored, .tolerance = of.tolerance};
      of.shape.window = 20;
      if (stored == Stored::kFloat) check(level, "a window that the last block of keys begins with", of);
      of = {.shape = heads(query_heads, 2, d), .rows = 2, .tokens = 300, .valid = {300, 9}, .prompt = true, .stored = stored, .tolerance = of.tolerance};
      check(level, "long and short prompts", of);
      if (!rounds) continue;
      // What would be as exact as a short prompt would not round, and this test would prove nothing.
      const Memory before(of);
      Memory after(of);
      Serial serial;
      attend(of.shape, after.inputs, level_for(d, level), serial);
      after.widen(of);
      CHECK(error_of(of, before, after) > 10 * kTolerance, "%s does not round", level.name);
    }
  }
}

// The same of long texts and pictures: all that are longer than 256 tokens round, in each head that the level's vectors fit.
void check_all_of_long_itself(const Level& level) {
  for (auto [d, query_heads] : {std::pair{8, 2}, {64, 2}, {72, 2}, {80, 4}}) {
    const bool rounds = rounds_prompts(level_for_copies(d, level));
    Case of{.shape = heads(query_heads, 2, d), .tokens = 256, .valid = {256}};
    of.shape.causal = false;
    check_itself(level, "no more keys than short ones have are exact", of);
    of.tokens = 270;
    of.rows = 3;
    of.valid = {270, 9, 0};
    of.packed = true;
    of.tolerance = rounding_of(level_for_copies(d, level), d);
    CHECK(check_itself(level, "long and short texts", of) > 10 * kTolerance == rounds, "%s, heads of %d", level.name, d);
    of.shape.rotary_dim = d;
    of.sinks = true;
    check_itself(level, "a rotation and sinks of long texts", of);
    of.bias = true;
    of.tolerance = rounding_of(level_for_copies(d, level), d, true);
    check_itself(level, "a bias of long texts", of);
    of.shape.causal = true;
    of.shape.window = 100;
    check_itself(level, "causal windows of long texts", of);
    of.tolerance = kTolerance;
    of.shape.may_round = false;
    check_itself(level, "long texts that keep float32", of);
  }
  Case of{.shape = heads(2, 1, 64), .tokens = 700, .valid = {697}};  // several blocks of queries share a copy of keys
  of.shape.causal = false;
  of.tolerance = rounding_of(level_for_copies(64, level), 64);
  check_itself(level, "a picture", of);
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
  for (Stored stored : {Stored::kHalf, Stored::kInt8, Stored::kInt8PerToken}) {
    of.stored = stored;
    const Memory rounded(of);
    for (int kind : {0, 1}) {
      Memory after(of);
      attend(of.shape, after.inputs, best_level(), serial);
      const std::size_t last = stored_width(stored, of.shape.head_dim) * 99 + of.shape.head_dim - 1;
      stored == Stored::kHalf ? ++after.present_halves[kind][last] : ++after.present_int8s[kind][last];
      after.widen(of);
      CHECK(error_of(of, rounded, after) > kTolerance, "the next number is not seen");
    }
  }
}

// What a cache of float16 keeps of numbers that it has no room for.
void check_halves(const Level& level) {
  alignas(64) const float numbers[] = {0, -0.0f, 65519, 65520, -1e30f, INFINITY, 1e-9f, 3e-6f, NAN, 1, 2, 3, 4, 5, 6, 7};
  const Half wanted[] = {0, 0x8000, 0x7bff, 0x7c00, 0xfc00, 0x7c00, 0, to_half(3e-6f)};
  Half found[16];
  level.round_to_half(numbers, 16, found);
  for (int i = 0; i < 8; ++i) CHECK(found[i] == wanted[i], "%s: %g becomes %04x", level.name, numbers[i], found[i]);
  CHECK((found[8] & 0x7fff) > 0x7c00 && std::isnan(from_half(found[8])), "%s: a NaN becomes %04x", level.name, found[8]);
}

// What a cache of int8 with a scale for each token keeps: the largest number is 127 steps, and what is not finite stays that.
void check_int8s_per_token(const Level& level) {
  for (float largest : {127.0f, 1e-30f, 3e38f, 0.0f, INFINITY, NAN}) {
    float numbers[16] = {0, largest / 2, -largest, largest / 400};
    std::int8_t found[16 + sizeof(float)];
    level.round_to_int8_per_token(numbers, 16, found);
    float scale;
    std::memcpy(&scale, found + 16, sizeof scale);
    if (!std::isfinite(largest)) {
      CHECK(std::isnan(scale), "%s: the scale of %g is %g", level.name, largest, scale);
      continue;
    }
    CHECK(std::fabs(scale - largest / 127) <= 1e-6f * scale, "%s: the scale of %g is %g", level.name, largest, scale);
    const int wanted[] = {0, largest > 0 ? 64 : 0, largest > 0 ? -127 : 0, 0};
    for (int i = 0; i < 16; ++i) {
      CHECK(found[i] == (i < 4 ? wanted[i] : 0), "%s: %g of %g becomes %d", level.name, numbers[i], largest, found[i]);
    }
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

// The same where prompts round, of which a block of keys has one number that is none. A token does not see it before, or behind
// its window.
void check_not_a_number_of_long_prompts(const Level& level) {
  constexpr int kTokens = 470, kBad = 140, kWindow = 200, kDim = 64;  // some tokens see the whole block of the key
  for (float worst : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int of_what : {0, 1, 2, 3}) {
      if (std::isinf(worst) && of_what != 1) continue;
      Case of{.shape = heads(2, 1, kDim), .tokens = kTokens, .valid = {kTokens}, .prompt = true, .bias = of_what == 3};
      of.shape.window = kWindow;
      Memory good(of), bad(of);
      std::vector<float>* const all[] = {&bad.queries, &bad.keys, &bad.values, &bad.bias};
      for (int i = 0; of_what == 3 && i < 2 * kTokens; ++i) bad.bias[i * kTokens + kBad] = worst;
      if (of_what < 3) (*all[of_what])[std::size_t(kBad) * (of_what == 0 ? 2 * kDim : kDim)] = worst;
      Serial serial;
      const Level& fits = level_for(kDim, level);
      attend(of.shape, good.inputs, fits, serial);
      attend(of.shape, bad.inputs, fits, serial);
      for (int token = 0; token < kTokens; ++token) {
        const bool sees = of_what == 0 ? token == kBad : token >= kBad && token < kBad + kWindow;
        const float *found = bad.output.data() + token * 2 * kDim, *wanted = good.output.data() + token * 2 * kDim;
        // A value that is none reaches tokens near those that see it, which are multiplied with it and a weight of 0.
        if (of_what == 2 && !sees && std::abs(token - kBad - kWindow / 2) < kWindow / 2 + kKeysAtOnce) continue;
        if (std::isinf(worst) && sees) continue;  // e^-inf is a number
        CHECK(std::isfinite(found[0]) == !sees, "%s: token %d of %d gets %g", level.name, token, of_what, found[0]);
        const double apart = std::fabs(found[1] - wanted[1]);
        CHECK(sees || apart < 2e-2, "%s: token %d of %d", level.name, token, of_what);
      }
    }
  }
}

// Numbers are the same whatever comes behind them: a scale that later tokens shared would change them.
void check_that_later_tokens_change_nothing(const Level& level) {
  for (int window : {0, 150}) {
    for (Stored stored : kAllStored) {
      Case of{.shape = heads(6, 2, 64), .tokens = 290, .valid = {290}, .prompt = true, .stored = stored, .capacity = 400};
      of.shape.window = window;
      const Level& fits = level_for(64, level);
      Serial serial;
      Memory shorter(of);
      attend(of.shape, shorter.inputs, fits, serial);
      of.tokens = of.valid[0] = 400;
      Memory longer(of);
      attend(of.shape, longer.inputs, fits, serial);
      for (std::size_t i = 0; i < shorter.output.size(); ++i) {
        CHECK(shorter.output[i] == longer.output[i], "%s: number %zu changes", level.name, i);
      }
    }
  }
}

// Many small weights beside a large one: each is a quarter of a step of a byte, and together they are an eighth of all.
void check_that_small_weights_count(const Level& level) {
  constexpr int kDim = 64, kPast = 2 * kKeysAtOnce, kTokens = 128;
  Case of{.shape = heads(1, 1, kDim), .tokens = kTokens, .valid = {kPast + kTokens}};
  of.shape.scale = 1;
  Memory memory(of);
  for (auto* each : {&memory.queries, &memory.keys, &memory.values, &memory.present_keys, &memory.present_values}) {
    std::fill(each->begin(), each->end(), 0.0f);
  }
  for (int token = 0; token < kTokens; ++token) {
    memory.queries[token * kDim] = 1;
    memory.keys[token * kDim] = -30;
  }
  const float small = 0.25f / 255;
  for (int key = 0; key < kPast; ++key) {
    memory.present_keys[key * kDim] = key < kKeysAtOnce ? -30.0f : key == kKeysAtOnce ? 0.0f : std::log(small);
    memory.present_values[key * kDim] = key > kKeysAtOnce;
  }
  Serial serial;
  attend(of.shape, memory.inputs, level_for(kDim, level), serial);
  double found = 0;
  for (int token = 0; token < kTokens; ++token) found += memory.output[token * kDim] / kTokens;
  const double all = small * (kKeysAtOnce - 1), expected = all / (1 + all);
  CHECK(std::fabs(found / expected - 1) < 0.02, "%s: small weights are %g of %g", level.name, found, expected);
}

void check_rough_powers() {
  const auto power_of = [](float x) { return rough_power_of_two<PlainTiles>(PlainTiles::splat(x))[0]; };
  for (float x = -140; x <= 127; x += 0.01f) {
    const double exact = std::exp2(double(x)), least = std::numeric_limits<float>::denorm_min();
    CHECK(std::abs(power_of(x) - exact) <= 8e-5 * exact + least, "2^%g is not %g", x, power_of(x));
  }
  CHECK(power_of(-INFINITY) == 0 && power_of(-1e30f) == 0 && std::isnan(power_of(NAN)), "powers at the ends");
}

int times_asked = 0;

// A call of attention asks the processor nothing: in a virtual machine CPUID took as long as the attention.
void check_that_levels_are_known() {
  Level counting = *levels().back();
  counting.runs_here = [] {
    ++times_asked;
    return true;
  };
  for (int head_dim : {8, 64, counting.lanes() + 1}) level_for(head_dim, counting);
  CHECK(times_asked == 0, "choosing levels asked the processor %d times", times_asked);
}

}  // namespace

// The levels that run here, or those that the arguments name.
int main(int argc, char** argv) {
  check_that_faults_are_seen();
  check_that_levels_are_known();
  check_rough_powers();
  for (const Level* level : tested_levels(argc, argv)) {
    if (!level->runs_here()) {
      std::printf("%s does not run here\n", level->name);
      continue;
    }
    for (Stored stored : kAllStored) check_all(*level, stored);
    check_halves(*level);
    check_int8s_per_token(level_for(16, *level));
    check_long_prompts(*level);
    check_all_of_itself(*level);
    check_all_of_long_itself(*level);
    check_not_a_number(*level);
    if (multiplies_bytes(*level)) {
      check_not_a_number_of_long_prompts(*level);
      check_that_later_tokens_change_nothing(*level);
      check_that_small_weights_count(*level);
    }
    std::printf("%s is right\n", level->name);
  }
}
