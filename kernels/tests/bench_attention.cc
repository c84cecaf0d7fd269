// Rates of attention on this machine: steps and prompts of four geometries, and towers' attention of all patches to each other.
//
//     bench_attention [threads [keys]]
//
// Steps read the caches of as many layers in turn as no processor's cache holds. `read` is what plain reading of the same
// bytes reaches.
#include "attention.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "half.h"
#include "median_seconds.h"
#include "team.h"

using namespace edgeformer;

namespace {

constexpr std::size_t kBytesOfSteps = 512 << 20;
constexpr std::size_t kSizes[] = {sizeof(float), sizeof(Half), 1, 1};
constexpr const char* kNames[] = {"float32", "float16", "int8, a scale per channel", "int8, a scale per token"};

// Reads memory with all threads, as fast as the machine can: GB/s.
double read_rate(const std::vector<char>& memory, Parallel& parallel) {
  const std::size_t chunks = 64 * parallel.threads(), of_chunk = memory.size() / chunks / 64 * 64;
  std::vector<std::uint64_t> sums(chunks);
  const auto read = [&](std::size_t chunk) {
    const char* from = memory.data() + chunk * of_chunk;
    std::uint64_t sum[8] = {};
    for (std::size_t i = 0; i < of_chunk; i += 64) {
      __builtin_prefetch(from + i + 8192);
      std::uint64_t line[8];
      std::memcpy(line, from + i, 64);
      for (int j = 0; j < 8; ++j) sum[j] ^= line[j];
    }
    for (std::uint64_t each : sum) sums[chunk] ^= each;
  };
  const double seconds = median_seconds(5, [&] { parallel.run(chunks, Task(read)); });
  return of_chunk * chunks / seconds * 1e-9;
}

void measure(int heads, int kv_heads, int head_dim, int tokens, int keys, Stored stored, Parallel& parallel) {
  AttentionShape shape{heads, kv_heads, head_dim, head_dim};
  shape.scale = 0.125f;
  const std::size_t cache = std::size_t(kv_heads) * keys * stored_width(stored, head_dim), bytes = cache * kSizes[int(stored)];
  const std::size_t layers = tokens > 1 ? 1 : std::max<std::size_t>(1, kBytesOfSteps / (2 * bytes));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::vector<float>& to) { for (float& each : to) each = normal(random); };
  std::vector<float> queries(std::size_t(tokens) * (heads + 2 * kv_heads) * head_dim), angles(keys * head_dim, 0.5f);
  std::vector<float> output(std::size_t(tokens) * heads * head_dim), scales(kv_heads * head_dim, 0.03f), some(4096);
  fill(queries);
  fill(some);
  std::vector<char> caches(2 * layers * bytes);
  for (std::size_t i = 0; i < caches.size(); ++i) {
    if (stored >= Stored::kInt8) caches[i] = char(33 * some[i * 7 % 4096]);
  }
  for (std::size_t i = head_dim; stored == Stored::kInt8PerToken && i < caches.size(); i += stored_width(stored, head_dim)) {
    std::memcpy(caches.data() + i, scales.data(), sizeof(float));
  }
  for (std::size_t i = 0; stored < Stored::kInt8 && i < caches.size() / kSizes[int(stored)]; ++i) {
    const float number = some[(i * 7 + i / 4096) % 4096];
    const Half half = to_half(number);
    std::memcpy(caches.data() + i * kSizes[int(stored)], stored == Stored::kHalf ? (const void*)&half : &number, kSizes[int(stored)]);
  }
  const std::int32_t last = keys - 1;
  AttentionInputs in{};
  in.rows = 1;
  in.new_tokens = tokens;
  in.queries = queries.data();
  in.keys = in.queries + heads * head_dim;
  in.values = in.keys + kv_heads * head_dim;
  in.query_stride = in.kv_stride = (heads + 2 * kv_heads) * head_dim;
  in.cosines = in.sines = angles.data();
  in.last_positions = &last;
  in.output = output.data();
  const auto attend_all = [&] {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      char *of_keys = caches.data() + 2 * layer * bytes, *of_values = of_keys + bytes;
      in.keys_cache = {of_keys, std::size_t(keys), of_keys, std::size_t(keys), stored, scales.data()};
      in.values_cache = {of_values, std::size_t(keys), of_values, std::size_t(keys), stored, scales.data()};
      attend(shape, in, level_for(head_dim), parallel);
    }
  };
  const double seconds = median_seconds(tokens > 1000 ? 3 : 9, attend_all) / layers;
  double seen = 0;
  for (int token = 0; token < tokens; ++token) seen += keys - tokens + token + 1;
  std::printf("%2d heads of %d x %3d, %s, %4d tokens over %5d keys: %9.1f us, %5.1f GB/s of cache", heads, kv_heads, head_dim,
              kNames[int(stored)], tokens, keys, seconds * 1e6, 2 * bytes / seconds * 1e-9);
  if (tokens == 1) std::printf(", %4.2f of reading\n", 2 * bytes / seconds * 1e-9 / read_rate(caches, parallel));
  if (tokens > 1) std::printf(", %5.1f 10^9 op/s\n", 4.0 * heads * head_dim * seen / seconds * 1e-9);
}

void measure_itself(int heads, int head_dim, int tokens, bool may_round, Parallel& parallel) {
  AttentionShape shape{heads, heads, head_dim, head_dim};
  shape.causal = false;
  shape.scale = 0.125f;
  shape.may_round = may_round;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const std::size_t width = std::size_t(heads) * head_dim;
  std::vector<float> packed(3 * width * tokens), angles(std::size_t(tokens) * head_dim, 0.5f), output(width * tokens);
  for (float& each : packed) each = normal(random);
  const std::int32_t last = tokens - 1;
  AttentionInputs in{};
  in.rows = 1;
  in.new_tokens = tokens;
  in.queries = packed.data();
  in.keys = in.queries + width;
  in.values = in.keys + width;
  in.query_stride = in.kv_stride = 3 * width;
  in.cosines = in.sines = angles.data();
  in.last_positions = &last;
  in.output = output.data();
  const double seconds = median_seconds(5, [&] { attend_to_itself(shape, in, level_for_copies(head_dim), parallel); });
  std::printf("%2d heads of %d, %s, %4d tokens to each other: %9.1f us, %5.1f 10^9 op/s\n", heads, head_dim,
              may_round ? "rounded" : "float32", tokens, seconds * 1e6, 4.0 * width * tokens * tokens / seconds * 1e-9);
}

}  // namespace

int main(int count, char** words) {
  Team& team = Team::shared(count > 1 ? std::atoi(words[1]) : 2);
  const int only = count > 2 ? std::atoi(words[2]) : 0;
  std::printf("%s, %d threads\n", best_level().name, team.threads());
  for (int tokens : {512, 1024, 4096}) {
    for (bool may_round : {false, true}) {
      for (int head_dim : {64, 72}) {
        if (only == 0 || only == tokens) measure_itself(16, head_dim, tokens, may_round, team);
      }
    }
  }
  for (auto [heads, kv_heads, head_dim] : {std::array{9, 3, 64}, {32, 4, 64}, {8, 2, 256}, {8, 4, 256}}) {
    for (Stored stored : {Stored::kFloat, Stored::kHalf, Stored::kInt8, Stored::kInt8PerToken}) {
      for (int keys : {128, 512, 4096, 16384}) {
        if (only == 0 || only == keys) measure(heads, kv_heads, head_dim, 1, keys, stored, team);
      }
      for (int tokens : {128, 512, 4096}) {
        if (only == 0 || only == tokens) measure(heads, kv_heads, head_dim, tokens, tokens, stored, team);
      }
    }
  }
}
