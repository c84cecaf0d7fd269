// Rates of products of floats on this machine: GB/s of few rows, 10^9 operations/s of many.
//
//     bench_float_linear [threads [outputs [inputs]]]
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "float_linear.h"
#include "median_seconds.h"
#include "random_weights.h"
#include "team.h"

using namespace edgeformer;

namespace {

constexpr int kRepeats = 10;

// Together beyond all caches, of which two cores of a large server may have 260 MB.
constexpr std::size_t kBytes = 640 << 20;

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 2, outputs = count > 2 ? std::atoi(arguments[2]) : 5632;
  const int inputs = count > 3 ? std::atoi(arguments[3]) : 2048;
  Team team(threads);
  std::vector<float> numbers = random_activations(kBytes / sizeof(float), 0);
  // Both halves of a float are numbers of bfloat16 that are neither tiny nor infinite.
  for (float& each : numbers) {
    const std::uint32_t upper = std::bit_cast<std::uint32_t>(each) >> 16;
    each = std::bit_cast<float>(upper << 16 | upper);
  }
  for (const Level* level : levels()) {
    if (!level->runs_here() || level == levels().back()) continue;
    for (Numbers type : {Numbers::kFloat, Numbers::kBfloat16}) {
      const FloatWeights sizes{outputs, inputs, false, type, nullptr};
      std::vector<FloatLinear> products;
      for (std::size_t i = 0; i < kBytes / sizes.bytes(); ++i) {
        const void* from = reinterpret_cast<const std::byte*>(numbers.data()) + i * sizes.bytes();
        products.emplace_back(FloatPanels({outputs, inputs, false, type, from}, level->columns, team), *level);
      }
      for (std::size_t rows : {1, 2, 4, 12, 128, 512}) {
        const std::vector<float> x = random_activations(rows * inputs, 0);
        std::vector<float> y(rows * outputs);
        const std::size_t few = rows <= 16 ? products.size() : 2;
        const double seconds = median_seconds(kRepeats, [&] {
          for (std::size_t i = 0; i < few; ++i) products[i].run(x.data(), rows, y.data(), team);
        });
        std::printf("%-12s %s %4zu rows %6.1f GB/s %7.1f 10^9 op/s\n", level->name, type == Numbers::kFloat ? "float32 " : "bfloat16",
                    rows, sizes.bytes() * few / seconds * 1e-9, 2.0 * rows * inputs * outputs * few / seconds * 1e-9);
      }
    }
  }
}
