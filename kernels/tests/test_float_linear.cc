// Every level that runs here against float64, for odd shapes and tails, both orders of weights, one row and many.
#include "float_linear.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"
#include "random_weights.h"
#include "team.h"

using namespace edgeformer;

namespace {

// Units in the last place of the sum of magnitudes: the error of a sum grows with the root of what is added up.
constexpr double kTolerance = 4 * 0x1p-24;

std::vector<float> multiply(const Level& level, const FloatMatrix& w, const std::vector<float>& x, Parallel& parallel) {
  const std::size_t rows = x.size() / w.inputs;
  std::vector<float> y(rows * w.outputs, std::numeric_limits<float>::quiet_NaN());
  FloatLinear(w, level).run(x.data(), rows, y.data(), parallel);
  return y;
}

double error_of(const FloatMatrix& w, const std::vector<float>& x, const std::vector<float>& y) {
  double worst = 0;
  for (std::size_t row = 0; row < x.size() / w.inputs; ++row) {
    for (int output = 0; output < w.outputs; ++output) {
      double sum = 0, bound = 1e-30;
      for (int input = 0; input < w.inputs; ++input) {
        const std::size_t at = w.by_outputs ? std::size_t(output) * w.inputs + input : std::size_t(input) * w.outputs + output;
        const double product = double(x[row * w.inputs + input]) * w.numbers[at];
        sum += product;
        bound += std::fabs(product);
      }
      const double error = std::fabs(y[row * w.outputs + output] - sum) / bound;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

void check_shape(const Level& level, int inputs, int outputs, bool by_outputs) {
  const std::vector<float> numbers = random_activations(std::size_t(inputs) * outputs, inputs);
  const FloatMatrix w{numbers.data(), inputs, outputs, by_outputs};
  Serial serial;
  Team team(3);
  const std::vector<float> all = random_activations(std::size_t(300) * inputs, 1), of_all = multiply(level, w, all, serial);
  for (std::size_t rows : {1, 2, 3, 4, 5, 8, 9, 13, 25, 300}) {
    const std::vector<float> x(all.begin(), all.begin() + rows * inputs);
    const std::vector<float> y = multiply(level, w, x, serial);
    if (rows < 300) {
      const double error = error_of(w, x, y);
      CHECK(error < kTolerance, "%s K=%d N=%d by_outputs=%d rows=%zu: error %.2e", level.name, inputs, outputs, by_outputs, rows, error);
    }
    CHECK(multiply(level, w, x, team) == y, "%s: three threads differ from one", level.name);
    // A text must not depend on the requests beside it.
    CHECK(!std::memcmp(y.data(), of_all.data(), y.size() * sizeof(float)), "%s: K=%d N=%d by_outputs=%d: %zu rows differ from 300",
          level.name, inputs, outputs, by_outputs, rows);
  }
}

void check_unusual_numbers(const Level& level) {
  std::vector<float> numbers = random_activations(70 * 90, 3);
  for (bool by_outputs : {false, true}) {
    const FloatMatrix w{numbers.data(), 70, 90, by_outputs};
    Serial serial;
    for (std::size_t rows : {3, 20}) {
      std::vector<float> x = random_activations(rows * 70, 4);
      const std::vector<float> good = multiply(level, w, x, serial);
      x[70 + 69] = NAN;
      const std::vector<float> y = multiply(level, w, x, serial);
      for (int i = 90; i < 180; ++i) CHECK(std::isnan(y[i]), "%s: a NaN is lost", level.name);
      CHECK(!std::memcmp(y.data(), good.data(), 360) && !std::memcmp(&y[180], &good[180], 360), "%s: other rows changed", level.name);
    }
  }
}

// A test that could not fail would prove nothing.
void check_that_faults_are_seen() {
  std::vector<float> numbers = random_activations(300 * 40, 5);
  const FloatMatrix w{numbers.data(), 300, 40, false};
  const std::vector<float> x = random_activations(300, 6);
  Serial serial;
  const std::vector<float> y = multiply(best_level(), w, x, serial);
  numbers[7] *= 1.01f;
  CHECK(error_of(w, x, y) > kTolerance, "a hundredth of one weight is not seen");
}

}  // namespace

int main() {
  for (const Level* level : levels()) {
    if (!level->runs_here()) continue;
    for (bool by_outputs : {false, true}) {
      for (auto [inputs, outputs] : {std::pair{1, 1}, {3, 70}, {64, 64}, {100, 33}, {515, 95}, {300, 257}}) {
        check_shape(*level, inputs, outputs, by_outputs);
      }
    }
    check_unusual_numbers(*level);
    std::printf("%s is right\n", level->name);
  }
  check_that_faults_are_seen();
}
