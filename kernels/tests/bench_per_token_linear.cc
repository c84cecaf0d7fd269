// Rates of products with activations rounded per token on this machine: 10^9 operations/s, with everything around them.
//
//     bench_per_token_linear [threads]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "per_token_linear.h"
#include "median_seconds.h"
#include "random_weights.h"
#include "team.h"

using namespace edgeformer;

namespace {

constexpr int kRepeats = 15, kLayers = 12;

struct Sizes {
  const char* model;
  int hidden, intermediate;
};

}  // namespace

int main(int count, char** arguments) {
  Team team(count > 1 ? std::atoi(arguments[1]) : 2);
  for (const auto& [model, hidden, intermediate] : {Sizes{"MiniLM", 384, 1536}, {"T5-small", 512, 2048}, {"135M", 576, 1536}}) {
    const std::vector<std::int8_t> integers(static_cast<std::size_t>(hidden) * intermediate, 77);
    const std::vector<float> scales(std::max(hidden, intermediate), 1e-4f);
    const auto linear = [&](int inputs, int outputs) {
      return PerTokenLinear({outputs, inputs, integers.data(), scales.data(), scales.data()}, best_level(), team);
    };
    std::vector<PerTokenLinear> square;
    std::vector<PerTokenFeedForward> gelu, gated;
    for (int layer = 0; layer < kLayers; ++layer) {
      square.push_back(linear(hidden, hidden));
      gelu.push_back({std::nullopt, linear(hidden, intermediate), Activation::kGelu, linear(intermediate, hidden)});
      gated.push_back({linear(hidden, intermediate), linear(hidden, intermediate), Activation::kGelu,
                       linear(intermediate, hidden)});
    }
    for (std::size_t rows : {1, 16, 128, 4096}) {
      const std::vector<float> x = random_activations(rows * hidden, 0);
      std::vector<float> y(rows * hidden);
      // Layers take turns, so that their weights are not in the second-level cache.
      const auto report = [&](const char* what, double products, const auto& layers) {
        const std::size_t runs = rows < 1000 ? layers.size() : 1;
        const double seconds = median_seconds(kRepeats, [&] {
          for (std::size_t i = 0; i < runs; ++i) layers[i].run(x.data(), rows, y.data(), team);
        }) / runs;
        std::printf("%-9s %4zu rows  %-18s %8.1f us %7.0f 10^9 op/s\n", model, rows, what, seconds * 1e6,
                    2e-9 * products * rows / seconds);
      };
      report("square", 1.0 * hidden * hidden, square);
      report("gelu feed-forward", 2.0 * hidden * intermediate, gelu);
      report("gated feed-forward", 3.0 * hidden * intermediate, gated);
    }
  }
}
