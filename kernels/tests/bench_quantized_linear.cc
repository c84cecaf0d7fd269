// Rates of the product on this machine: GB/s of one row, beside a loop that only reads; 10^9 operations/s of many rows.
//
//     bench_quantized_linear [threads [bits [block]]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "quantized_linear.h"
#include "median_seconds.h"
#include "random_weights.h"
#include "team.h"

using namespace edgeformer;

namespace {

constexpr int kInputs = 2048, kOutputs = 5632, kRepeats = 10;

// Together beyond all caches, of which two cores of a large server may have 260 MB.
constexpr std::size_t kBytes = 640 << 20;

// Reads bytes front to back with the same prefetches, and does no work on them.
std::uint64_t read_all(const std::uint64_t* from, std::size_t count) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i < count; i += 8) {
    __builtin_prefetch(from + i + 1024);
    for (int j = 0; j < 8; ++j) sums[j] += from[i + j];
  }
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 2, bits = count > 2 ? std::atoi(arguments[2]) : 4;
  const int block = count > 3 ? std::atoi(arguments[3]) : 128;
  Team team(threads);
  const RandomWeights weights(kOutputs, kInputs, bits, block, false, 0);
  Serial serial;
  const std::size_t bytes = Panels(weights.view, best_level().columns, 0, serial).bytes().size();
  {
    const std::size_t words = kBytes / 8, share = words / 8 / 16 * 8;
    const auto memory = make_aligned<std::uint64_t>(words);
    std::atomic<std::uint64_t> sink = 0;
    const double seconds = median_seconds(kRepeats,
        [&] { team.run(16, Task([&](std::size_t chunk) { sink += read_all(memory.get() + chunk * share, share); })); });
    std::printf("reading     %6.1f GB/s\n", share * 16 * 8 / seconds * 1e-9);
  }
  for (const Level* level : levels()) {
    if (!level->runs_here()) continue;
    std::vector<std::unique_ptr<QuantizedLinear>> products;
    const std::size_t copies = kBytes / bytes;
    for (std::size_t i = 0; i < copies; ++i) products.push_back(std::make_unique<QuantizedLinear>(weights.view, *level));
    for (std::size_t rows : {1, 2, 4, 8, 16, 128, 256}) {
      if (rows > 1 && level == levels().back()) break;
      const std::vector<float> x = random_activations(rows * kInputs, 0);
      std::vector<float> y(rows * kOutputs);
      const std::size_t few = rows <= 16 ? copies : 2;
      const double seconds = median_seconds(kRepeats, [&] {
        for (std::size_t i = 0; i < few; ++i) products[i]->run(x.data(), rows, y.data(), team);
      });
      std::printf("%-12s %4zu rows %6.1f GB/s %7.1f 10^9 op/s\n", level->name, rows, bytes * few / seconds * 1e-9,
                  2.0 * rows * kInputs * kOutputs * few / seconds * 1e-9);
    }
  }
}
