// Products with activations rounded per token, and feed-forwards of them, at every level against plain loops in float64.
#include "per_token_linear.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "activated.h"
#include "check.h"
#include "random_weights.h"
#include "team.h"
#include "tested_levels.h"

using namespace edgeformer;

namespace {

// Results are one product of floats, and a sum with the bias. Relative to the sum of their magnitudes.
constexpr double kTolerance = 4e-7;

struct RandomPerChannel {
  PerChannelWeights view;
  std::vector<std::int8_t> integers;
  std::vector<float> scales, bias;

  RandomPerChannel(int outputs, int inputs, bool with_bias, unsigned seed) {
    std::mt19937 random(seed);
    integers.resize(static_cast<std::size_t>(inputs) * outputs);
    for (auto& each : integers) each = static_cast<std::int8_t>(random());
    // Scales of ten orders of magnitude between outputs would hide a bias; two are enough to tell columns apart.
    for (int i = 0; i < outputs; ++i) scales.push_back(std::pow(10.0f, -4.0f - i % 3) * (i % 5 ? 1.0f : -1.0f));
    bias = random_activations(outputs, seed + 1);
    view = {outputs, inputs, integers.data(), scales.data(), with_bias ? bias.data() : nullptr};
  }
};

// y and, for each number of it, the sum of magnitudes that it was added up from.
struct Product {
  std::vector<double> y, bound;
};

Product oracle(const PerChannelWeights& weights, const std::vector<float>& x, std::size_t rows) {
  Product product;
  for (std::size_t row = 0; row < rows; ++row) {
    const float* from = x.data() + row * weights.inputs;
    float largest = 1e-30f;
    for (int input = 0; input < weights.inputs; ++input) largest = std::max(largest, std::fabs(from[input]));
    const float step = largest * (1.0f / 127.0f);
    std::vector<double> rounded;
    for (int input = 0; input < weights.inputs; ++input) rounded.push_back(std::nearbyint(from[input] / step));
    for (int output = 0; output < weights.outputs; ++output) {
      double sum = 0;
      for (int input = 0; input < weights.inputs; ++input) {
        sum += rounded[input] * weights.integers[static_cast<std::size_t>(input) * weights.outputs + output];
      }
      const double value = sum * weights.scales[output] * step;
      const double bias = weights.bias ? weights.bias[output] : 0.0;
      product.y.push_back(value + bias);
      product.bound.push_back(std::fabs(value) + std::fabs(bias));
    }
  }
  return product;
}

double error_of(const Product& expected, const std::vector<float>& y) {
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double error = std::fabs(y[i] - expected.y[i]) / std::max(expected.bound[i], 1e-300);
    worst = error <= worst ? worst : error;  // NaN is the worst
  }
  return worst;
}

// Weights, activations and what their product is. All levels have the same, so it is drawn and multiplied once.
struct Case {
  RandomPerChannel weights;
  std::vector<float> x;
  Product expected;

  Case(int outputs, int inputs, bool bias, std::size_t rows)
      : weights(outputs, inputs, bias, outputs * 31 + inputs),
        x(random_activations(rows * inputs, static_cast<unsigned>(rows))),
        expected(oracle(weights.view, x, rows)) {}

  static const Case& of(int outputs, int inputs, bool bias, std::size_t rows) {
    static std::map<std::array<int, 4>, Case> all;
    const std::array<int, 4> key{outputs, inputs, bias, static_cast<int>(rows)};
    return all.try_emplace(key, outputs, inputs, bias, rows).first->second;
  }
};

PerTokenLinear packed(const PerChannelWeights& weights, const Level& level) {
  Serial serial;
  return PerTokenLinear(weights, level, serial);
}

std::vector<float> multiply(const Level& level, const PerChannelWeights& weights, const std::vector<float>& x,
                            std::size_t rows, Parallel& parallel) {
  std::vector<float> y(rows * weights.outputs, std::numeric_limits<float>::quiet_NaN());
  packed(weights, level).run(x.data(), rows, y.data(), parallel);
  return y;
}

void check_shape(const Level& level, int outputs, int inputs, bool bias, std::size_t rows) {
  const auto& [weights, x, expected] = Case::of(outputs, inputs, bias, rows);
  Serial serial;
  static Team team(3);
  const std::vector<float> y = multiply(level, weights.view, x, rows, serial);
  const double error = error_of(expected, y);
  CHECK(error < kTolerance, "%s N=%d K=%d bias=%d rows=%zu: error %.2e", level.name, outputs, inputs, bias, rows, error);
  CHECK(multiply(level, weights.view, x, rows, team) == y, "%s: three threads differ from one", level.name);
}

void check_shapes(const Level& level) {
  for (bool bias : {false, true}) {
    for (auto [outputs, inputs] : {std::pair{1, 8}, {33, 100}, {64, 256}, {95, 515}, {7, 1}}) {
      for (std::size_t rows : {1, 2, 5, 13, 100}) check_shape(level, outputs, inputs, bias, rows);
    }
    check_shape(level, 40, 60, bias, 331);
  }
}

// Halves of steps are in the middle between two integers, where a product with an inverse often rounds the other way.
void check_halves(const Level& level) {
  constexpr int kInputs = 255;
  const RandomPerChannel weights(40, kInputs, false, 9);
  Serial serial;
  for (float step : {0.1f, 0.37f, 1.7e-3f, 3.3f}) {
    std::vector<float> x;
    for (int i = 0; i < kInputs; ++i) x.push_back((i - 127) * step / 2);
    x[0] = 127 * step;
    const double error = error_of(oracle(weights.view, x, 1), multiply(level, weights.view, x, 1, serial));
    CHECK(error < kTolerance, "%s: halves of steps of %g: error %.2e", level.name, step, error);
  }
}

// Exact for any x: one product by 1, whose result is what was rounded.
void check_activations(const Level& level) {
  const float one_scale = 1.0f / 127;
  const std::int8_t one = 127;
  for (Activation activation : kActivations) {
    std::vector<float> x;
    for (int i = -20000; i <= 20000; ++i) x.push_back(i * 5e-4f);
    for (float each : {1e-20f, -1e-8f, 1e8f, -1e8f, 80.0f, -80.0f}) x.push_back(each);
    const PerChannelWeights identity{1, 1, &one, &one_scale, nullptr};
    std::vector<float> same(x.size()), y(x.size());
    Serial serial;
    packed(identity, level).run(x.data(), x.size(), same.data(), serial);
    // The second product rounds a row of one number to itself.
    PerTokenFeedForward(std::nullopt, packed(identity, level), activation, packed(identity, level))
        .run(x.data(), x.size(), y.data(), serial);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = activated(activation, same[i]);
      CHECK(std::fabs(y[i] - expected) <= 1e-6 * std::fabs(same[i]), "%s: activation %d of %g is %g, not %g", level.name,
            static_cast<int>(activation), same[i], y[i], expected);
    }
  }
}

// The feed-forward against its parts, which were compared with the oracle.
void check_feed_forward(const Level& level, int hidden, bool gated, bool bias, std::size_t rows) {
  constexpr int kInputs = 100, kOutputs = 70;
  const RandomPerChannel gate(hidden, kInputs, bias, 1), up(hidden, kInputs, bias, 2), down(kOutputs, hidden, bias, 3);
  const std::vector<float> x = random_activations(rows * kInputs, 4);
  for (Activation activation : kActivations) {
    Serial serial;
    static Team team(3);
    std::vector<float> h = multiply(level, up.view, x, rows, serial);
    const std::vector<float> g = multiply(level, gate.view, x, rows, serial);
    for (std::size_t i = 0; i < h.size(); ++i) {
      const double factor = gated ? h[i] : 1.0;
      h[i] = static_cast<float>(factor * activated(activation, gated ? g[i] : h[i]));
    }
    const std::vector<float> expected = multiply(level, down.view, h, rows, serial);
    for (Parallel* parallel : {static_cast<Parallel*>(&serial), static_cast<Parallel*>(&team)}) {
      std::vector<float> y(rows * kOutputs, std::numeric_limits<float>::quiet_NaN());
      std::optional<PerTokenLinear> of_gate;
      if (gated) of_gate.emplace(packed(gate.view, level));
      PerTokenFeedForward(std::move(of_gate), packed(up.view, level), activation, packed(down.view, level))
          .run(x.data(), rows, y.data(), *parallel);
      // h in floats differs by a few units in the last place, which may round a number of it the other way.
      for (std::size_t row = 0; row < rows; ++row) {
        double error = 0, size = 0;
        for (int output = 0; output < kOutputs; ++output) {
          const std::size_t at = row * kOutputs + output;
          error = std::max(error, std::fabs(double{y[at]} - expected[at]));
          size = std::max(size, std::fabs(double{expected[at]}));
        }
        CHECK(error < 0.01 * size, "%s hidden=%d gated=%d bias=%d rows=%zu activation=%d: error %.2e of %.2e in row %zu",
              level.name, hidden, gated, bias, rows, static_cast<int>(activation), error, size, row);
      }
    }
  }
}

void check_unusual_activations(const Level& level) {
  const RandomPerChannel weights(50, 200, false, 1);
  Serial serial;
  std::vector<float> x(3 * 200, 0.0f);
  for (float y : multiply(level, weights.view, x, 3, serial)) CHECK(y == 0, "%s: zeros give %g", level.name, y);
  x = random_activations(3 * 200, 5);
  const std::vector<float> good = multiply(level, weights.view, x, 3, serial);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> with = x;
    with[207] = bad;
    const std::vector<float> y = multiply(level, weights.view, with, 3, serial);
    for (int i = 50; i < 100; ++i) CHECK(std::isnan(y[i]), "%s: %g is lost", level.name, bad);
    CHECK(!std::memcmp(y.data(), good.data(), 200) && !std::memcmp(&y[100], &good[100], 200), "other rows changed");
    const RandomPerChannel down(50, 50, false, 2);
    for (Activation activation : kActivations) {
      std::vector<float> z(150);
      PerTokenFeedForward(std::nullopt, packed(weights.view, level), activation, packed(down.view, level))
          .run(with.data(), 3, z.data(), serial);
      for (int i = 0; i < 150; ++i) CHECK(std::isnan(z[i]) == (i / 50 == 1), "%s: row %d", level.name, i / 50);
    }
  }
}

// A test that could not fail would prove nothing: wrong products must be seen.
void check_that_faults_are_seen() {
  RandomPerChannel weights(40, 300, true, 3);
  const std::vector<float> x = random_activations(300, 4);
  Serial serial;
  const std::vector<float> y = multiply(best_level(), weights.view, x, 1, serial);
  CHECK(error_of(oracle(weights.view, x, 1), y) < kTolerance, "before");
  weights.integers[7] ^= 1;
  CHECK(error_of(oracle(weights.view, x, 1), y) > kTolerance, "one step of one weight is not seen");
  weights.integers[7] ^= 1;
  weights.bias[39] *= 1.00001f;
  CHECK(error_of(oracle(weights.view, x, 1), y) > kTolerance, "another bias is not seen");
}

void check_refusals() {
  RandomPerChannel weights(8, 64, false, 0);
  CHECK(why_unsupported(weights.view).empty(), "good weights");
  weights.view.inputs = 70000;
  CHECK(why_unsupported(weights.view) == "K must be at most 65536, not 70000", "inputs");
  weights.view.inputs = 64;
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
    check_halves(*level);
    check_activations(*level);
    for (bool gated : {false, true}) {
      for (int hidden : {40, 301}) {
        for (std::size_t rows : {1, 11, 150}) check_feed_forward(*level, hidden, gated, hidden == 40, rows);
      }
    }
    check_unusual_activations(*level);
    std::printf("%s is right\n", level->name);
  }
}
