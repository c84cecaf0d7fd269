// Rates of attention on this machine: steps and prompts of two geometries.
//
//     bench_attention [threads]
#include "attention.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "median_seconds.h"
#include "team.h"

using namespace edgeformer;

namespace {

constexpr int kRepeats = 50;

void measure(int heads, int kv_heads, int head_dim, int tokens, int keys, Parallel& parallel) {
  AttentionShape shape{heads, kv_heads, head_dim, head_dim};
  const std::size_t cache = std::size_t(kv_heads) * keys * head_dim;
  std::vector<float> queries(std::size_t(tokens) * (heads + 2 * kv_heads) * head_dim, 0.1f), angles(keys * head_dim, 0.5f);
  std::vector<float> present_keys(cache, 0.1f), present_values(cache, 0.1f), output(std::size_t(tokens) * heads * head_dim);
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
  in.keys_cache = {present_keys.data(), std::size_t(keys), present_keys.data(), std::size_t(keys)};
  in.values_cache = {present_values.data(), std::size_t(keys), present_values.data(), std::size_t(keys)};
  in.output = output.data();
  const double seconds = median_seconds(kRepeats, [&] { attend(shape, in, level_for(head_dim), parallel); });
  double seen = 0;
  for (int token = 0; token < tokens; ++token) seen += keys - tokens + token + 1;
  std::printf("%2d heads of %d x %3d, %3d tokens over %4d keys: %8.1f us, %6.1f GB/s of cache, %6.1f 10^9 op/s\n", heads,
              kv_heads, head_dim, tokens, keys, seconds * 1e6, 8.0 * cache / seconds * 1e-9,
              4.0 * heads * head_dim * seen / seconds * 1e-9);
}

}  // namespace

int main(int count, char** words) {
  Team& team = Team::shared(count > 1 ? std::atoi(words[1]) : 2);
  std::printf("%s, %d threads\n", best_level().name, team.threads());
  for (auto [heads, kv_heads] : {std::pair{9, 3}, {32, 4}}) {
    for (int keys : {128, 512, 2048}) measure(heads, kv_heads, 64, 1, keys, team);
    for (int tokens : {128, 512}) measure(heads, kv_heads, 64, tokens, tokens, team);
  }
}
