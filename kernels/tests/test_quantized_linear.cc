// Every level that runs here against the plain loops, for odd shapes, tails, both widths and both kinds of zero points.
#include "quantized_linear.h"

#include <array>
#include <cstring>
#include <limits>
#include <map>

#include "check.h"
#include "oracle.h"
#include "random_weights.h"
#include "team.h"
#include "tested_levels.h"

using namespace edgeformer;

namespace {

// Scales are halves, with 11 bits; the sum over blocks is a float's. Relative to the sum of magnitudes of blocks.
constexpr double kTolerance = 0x1p-11 + 1e-5;

// The largest error of y, relative to what rounding every block's scale could cost.
double error_of(const Product& expected, const std::vector<float>& y) {
  double worst = 0;
  for (std::size_t at = 0; at < y.size(); ++at) {
    worst = std::max(worst, std::fabs(y[at] - expected.y[at]) / std::max(expected.bound[at], 1e-300));
  }
  return worst;
}

// Weights, activations and what their product is. All levels have the same, so it is drawn and multiplied once.
struct Case {
  RandomWeights weights;
  std::vector<float> x;
  Product expected;

  Case(int outputs, int inputs, int bits, int block, bool points, std::size_t rows)
      : weights(outputs, inputs, bits, block, points, outputs * 31 + inputs),
        x(random_activations(rows * inputs, static_cast<unsigned>(rows))),
        expected(oracle(weights.view, x.data(), rows)) {}

  static const Case& of(int outputs, int inputs, int bits, int block, bool points, std::size_t rows) {
    static std::map<std::array<int, 6>, Case> all;
    const std::array<int, 6> key{outputs, inputs, bits, block, points, static_cast<int>(rows)};
    return all.try_emplace(key, outputs, inputs, bits, block, points, rows).first->second;
  }
};

std::vector<float> multiply(const Level& level, const Weights& weights, const std::vector<float>& x, std::size_t rows,
                            Parallel& parallel) {
  std::vector<float> y(rows * weights.outputs, std::numeric_limits<float>::quiet_NaN());
  QuantizedLinear(weights, level).run(x.data(), rows, y.data(), parallel);
  return y;
}

void check_shape(const Level& level, int outputs, int inputs, int bits, int block, bool points, std::size_t rows) {
  const auto& [weights, x, expected] = Case::of(outputs, inputs, bits, block, points, rows);
  Serial serial;
  static Team team(3);
  const std::vector<float> y = multiply(level, weights.view, x, rows, serial);
  const double error = error_of(expected, y);
  CHECK(error < kTolerance, "%s N=%d K=%d bits=%d block=%d zero_points=%d rows=%zu: error %.2e", level.name, outputs,
        inputs, bits, block, points, rows, error);
  CHECK(multiply(level, weights.view, x, rows, team) == y, "%s: three threads differ from one", level.name);
}

// Each row of a batch is what it is alone, bit for bit: a text must not depend on the requests beside it.
void check_rows_alone(const Level& level, int bits, bool points) {
  const int outputs = 70, inputs = bits == 6 ? 720 : 700;  // more than a tile multiplies without storing results
  const RandomWeights weights(outputs, inputs, bits, 32, points, 9);
  const std::vector<float> x = random_activations(2 * kMostRows * inputs, 10);
  Serial serial;
  for (std::size_t rows : {2, 3, 4, 8, 13, 16, 25, 2 * kMostRows}) {
    const std::vector<float> y = multiply(level, weights.view, x, rows, serial);
    for (std::size_t row = 0; row < rows; row += rows < 32 ? 1 : 41) {
      const std::vector<float> of_row(x.begin() + row * inputs, x.begin() + (row + 1) * inputs);
      const std::vector<float> alone = multiply(level, weights.view, of_row, 1, serial);
      CHECK(!std::memcmp(alone.data(), &y[row * outputs], outputs * sizeof(float)),
            "%s bits=%d zero_points=%d: row %zu of %zu differs from itself alone", level.name, bits, points, row, rows);
    }
  }
}

void check_shapes(const Level& level) {
  for (int bits : {4, 6, 8}) {
    for (bool points : {false, true}) {
      check_rows_alone(level, bits, points);
      for (int block : {16, 32, 64, 128, 256}) {
        for (auto [outputs, inputs] : {std::pair{1, 8}, {33, 100}, {64, 256}, {95, 515}, {95, 528}, {7, 1}}) {
          if (bits == 6 && inputs % 16 != 0) continue;  // kept as 8 bits
          for (std::size_t rows : {1, 2, 5, 13}) check_shape(level, outputs, inputs, bits, block, points, rows);
        }
      }
      check_shape(level, 70, bits == 6 ? 304 : 300, bits, 64, points, 2 * kMostRows + 7);
      for (int block : {16, 32, 128, 256}) check_shape(level, 70, bits == 6 ? 1504 : 1500, bits, block, points, 27);
    }
    check_shape(level, 40, 1000, 8, 1000, bits == 8, 3);  // one scale for each output
  }
}

void check_unusual_activations(const Level& level) {
  const RandomWeights weights(50, 200, 4, 32, true, 1);
  Serial serial;
  std::vector<float> x(3 * 200, 0.0f);
  for (float y : multiply(level, weights.view, x, 3, serial)) CHECK(y == 0, "%s: zeros give %g", level.name, y);
  for (float& each : x) each = 1e-42f;  // too small to be divided by
  for (float y : multiply(level, weights.view, x, 3, serial)) CHECK(std::isfinite(y), "%s: subnormal", level.name);
  x = random_activations(3 * 200, 5);
  const std::vector<float> good = multiply(level, weights.view, x, 3, serial);
  for (int at : {200, 207, 399}) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> with = x;
      with[at] = bad;
      const std::vector<float> y = multiply(level, weights.view, with, 3, serial);
      for (int i = 50; i < 100; ++i) CHECK(std::isnan(y[i]), "%s: %g at %d is lost", level.name, bad, at);
      CHECK(!std::memcmp(y.data(), good.data(), 200) && !std::memcmp(&y[100], &good[100], 200), "other rows changed");
    }
  }
}

// A feed-forward is what its products are one after the other, bit for bit, however its rows are shared out.
void check_feed_forward(const Level& level) {
  const int inputs = 40, hidden = 70, outputs = 33;
  const RandomWeights up(hidden, inputs, 8, 16, false, 11), down(outputs, hidden, 4, 32, true, 12);
  const std::vector<float> bias = random_activations(hidden, 13);
  Serial serial;
  Team team(3);
  const auto product = [&](const RandomWeights& weights, Activation activation) {
    return QuantizedLinear(Panels(weights.view, level.columns, level.byte_bias, serial), level, bias.data(), activation);
  };
  const QuantizedLinear first = product(up, Activation::kGelu), second = product(down, Activation::kNone);
  const QuantizedFeedForward both(product(up, Activation::kGelu), product(down, Activation::kNone));
  CHECK(both.inputs() == inputs && both.outputs() == outputs, "%s: sizes of a feed-forward", level.name);
  for (std::size_t rows : {0, 1, 47, 71, 72, 200}) {
    const std::vector<float> x = random_activations(rows * inputs, 14);
    std::vector<float> between(rows * hidden), expected(rows * outputs);
    first.run(x.data(), rows, between.data(), serial);
    second.run(between.data(), rows, expected.data(), serial);
    for (Parallel* parallel : {static_cast<Parallel*>(&serial), static_cast<Parallel*>(&team)}) {
      std::vector<float> y(rows * outputs, std::numeric_limits<float>::quiet_NaN());
      both.run(x.data(), rows, y.data(), *parallel);
      CHECK(y == expected, "%s: a feed-forward of %zu rows by %d threads", level.name, rows, parallel->threads());
    }
  }
}

// A test that could not fail would prove nothing: wrong products must be seen.
void check_that_faults_are_seen() {
  RandomWeights weights(40, 300, 4, 64, true, 3);
  const std::vector<float> x = random_activations(300, 4);
  Serial serial;
  const std::vector<float> y = multiply(best_level(), weights.view, x, 1, serial);
  CHECK(error_of(oracle(weights.view, x.data(), 1), y) < kTolerance, "before");
  weights.integers[7] ^= 0x10;
  CHECK(error_of(oracle(weights.view, x.data(), 1), y) > kTolerance, "one step of one weight is not seen");
  weights.integers[7] ^= 0x10;
  weights.zero_points[0] ^= 1;
  CHECK(error_of(oracle(weights.view, x.data(), 1), y) > kTolerance, "one step of one zero point is not seen");
}

void check_refusals() {
  RandomWeights weights(8, 64, 4, 32, false, 0);
  CHECK(why_unsupported(weights.view).empty(), "good weights");
  weights.view.block = 512;
  CHECK(why_unsupported(weights.view) == "block_size must be a multiple of 8 from 16 to 256, not 512", "block");
  weights.view.block = 32;
  weights.view.bits = 2;
  CHECK(why_unsupported(weights.view) == "bits must be 4 or 8, not 2", "bits");
  weights.view.bits = 4;
  weights.scales[3] = std::numeric_limits<float>::infinity();
  CHECK(why_unsupported(weights.view) == "a scale is not finite", "scale");
}

}  // namespace

// The levels that run here, or those that the arguments name.
int main(int argc, char** argv) {
  check_refusals();
  check_that_faults_are_seen();
  for (const Level* level : tested_levels(argc, argv)) {
    if (!level->runs_here()) {
      std::printf("%s does not run here\n", level->name);
      continue;
    }
    check_shapes(*level);
    check_unusual_activations(*level);
    check_feed_forward(*level);
    std::printf("%s is right\n", level->name);
  }
}
