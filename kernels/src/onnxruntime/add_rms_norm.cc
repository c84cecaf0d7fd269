#include "add_rms_norm.h"

#include <algorithm>

namespace edgeformer {
namespace {

// Numbers that are worth a thread's start.
constexpr std::size_t kNumbersOfAStart = 16 << 10;

}  // namespace

void AddRMSNorm::run(Call& call, Parallel& parallel) const {
  const std::vector<std::int64_t> shape = call.shape(0);
  if (shape.empty() || call.shape(1) != shape) call.refuse("input and skip must have the same shape");
  const std::int64_t size = shape.back();
  if (call.shape(2) != std::vector{size}) call.refuse("gamma must have as many numbers as a row of input");
  std::size_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  const float *input = call.input<float>(0), *skip = call.input<float>(1), *gamma = call.input<float>(2);
  float *output = call.output<float>(0, shape), *sums = call.output<float>(1, shape);
  const std::size_t worth = rows * size / kNumbersOfAStart;
  const std::size_t chunks = std::min({rows, std::max<std::size_t>(1, worth), kChunksPerThread * parallel.threads()});
  const auto norm = [&](std::size_t chunk) {
    for (std::size_t row = chunk * rows / chunks; row < (chunk + 1) * rows / chunks; ++row) {
      const std::size_t at = row * size;
      level_.add_and_norm(input + at, skip + at, gamma, static_cast<int>(size), epsilon_, sums + at, output + at);
    }
  };
  if (rows > 0) parallel.run(chunks, Task(norm));
}

}  // namespace edgeformer
