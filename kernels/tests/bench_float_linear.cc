// Products with weights of float32: GB/s of one row and of few, 10^9 operations a second of many, with as many threads as
// the first argument says. Weights are larger than all caches.
#include "float_linear.h"

#include <cstdio>
#include <cstdlib>

#include "median_seconds.h"
#include "random_weights.h"
#include "team.h"

using namespace edgeformer;

int main(int arguments, char** values) {
  constexpr int kInputs = 2048, kOutputs = 5632, kCopies = 8, kRepeats = 5;
  Team team(arguments > 1 ? std::atoi(values[1]) : 1);
  const std::vector<float> numbers = random_activations(std::size_t(kCopies) * kInputs * kOutputs, 0);
  for (const Level* level : levels()) {
    if (!level->runs_here()) continue;
    for (bool by_outputs : {false, true}) {
      for (std::size_t rows : {1, 2, 4, 8, 16, 128, 512}) {
        if (rows > 1 && level == levels().back()) break;
        const std::vector<float> x = random_activations(rows * kInputs, 1);
        std::vector<float> y(rows * kOutputs);
        const int copies = rows <= 16 ? kCopies : 1;
        const double seconds = median_seconds(kRepeats, [&] {
          for (int copy = 0; copy < copies; ++copy) {
            const FloatMatrix w{numbers.data() + std::size_t(copy) * kInputs * kOutputs, kInputs, kOutputs, by_outputs};
            FloatLinear(w, *level).run(x.data(), rows, y.data(), team);
          }
        });
        const double weights = double(copies) * kInputs * kOutputs;
        std::printf("%-12s %s %4zu rows %6.1f GB/s %7.1f 10^9 op/s\n", level->name, by_outputs ? "by outputs" : "by inputs ",
                    rows, weights * 4 / seconds * 1e-9, 2 * weights * rows / seconds * 1e-9);
      }
    }
  }
}
