// Products of floats at every level that runs here against plain loops in float64: types, layouts, odd shapes, tails.
#include "float_linear.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "check.h"
#include "half.h"
#include "random_weights.h"
#include "team.h"
#include "tested_levels.h"

using namespace edgeformer;

namespace {

// Relative to the sum of the magnitudes of products: float32 sums of a few hundred numbers err by less.
constexpr double kTolerance = 2e-6;

Bfloat16 cut_to_bfloat16(float value) { return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)}; }
float value_of(Bfloat16 number) { return std::bit_cast<float>(std::uint32_t{number.bits} << 16); }

// Weights that own their numbers, in one of the types, and their values.
struct RandomFloats {
  FloatWeights view;
  std::vector<float> values;
  std::vector<Bfloat16> bfloats;

  RandomFloats(int outputs, int inputs, bool by_output, Numbers type, unsigned seed)
      : view{outputs, inputs, by_output, type, nullptr}, values(random_activations(std::size_t(outputs) * inputs, seed)) {
    for (float& each : values) {
      bfloats.push_back(cut_to_bfloat16(each));
      if (type == Numbers::kBfloat16) each = value_of(bfloats.back());
    }
    view.numbers = type == Numbers::kFloat ? static_cast<const void*>(values.data())
                                             : bfloats.data();
  }

  double value(int output, int input) const {
    return values[view.by_output ? std::size_t(output) * view.inputs + input : std::size_t(input) * view.outputs + output];
  }
};

// y and, for each number of it, the sum of the magnitudes of products that it was added up from.
struct Product {
  std::vector<double> y, bound;
};

Product oracle(const RandomFloats& weights, const std::vector<float>& x, std::size_t rows) {
  const FloatWeights& sizes = weights.view;
  Product found;
  for (std::size_t row = 0; row < rows; ++row) {
    for (int output = 0; output < sizes.outputs; ++output) {
      double sum = 0, magnitude = 1e-300;
      for (int input = 0; input < sizes.inputs; ++input) {
        const double product = x[row * sizes.inputs + input] * weights.value(output, input);
        sum += product;
        magnitude += std::fabs(product);
      }
      found.y.push_back(sum);
      found.bound.push_back(magnitude);
    }
  }
  return found;
}

double error_of(const Product& expected, const std::vector<float>& y) {
  double worst = 0;
  for (std::size_t at = 0; at < y.size(); ++at) {
    const double error = std::fabs(y[at] - expected.y[at]) / expected.bound[at];
    if (!(error <= worst)) worst = error;  // NaN counts
  }
  return worst;
}

// Weights, activations and what their product is. All levels have the same, so it is drawn and multiplied once.
struct Case {
  RandomFloats weights;
  std::vector<float> x;
  Product expected;

  Case(int outputs, int inputs, bool by_output, Numbers type, std::size_t rows)
      : weights(outputs, inputs, by_output, type, outputs * 31 + inputs),
        x(random_activations(rows * inputs, static_cast<unsigned>(rows))),
        expected(oracle(weights, x, rows)) {}

  static const Case& of(int outputs, int inputs, bool by_output, Numbers type, std::size_t rows) {
    static std::map<std::array<int, 5>, Case> all;
    const std::array<int, 5> key{outputs, inputs, by_output, static_cast<int>(type), static_cast<int>(rows)};
    return all.try_emplace(key, outputs, inputs, by_output, type, rows).first->second;
  }
};

FloatPanels panels_of(const RandomFloats& weights, const Level& level) {
  static Team team(2);
  return FloatPanels(weights.view, level.columns, team);
}

FloatLinear linear_of(const RandomFloats& weights, const Level& level = best_level()) {
  return FloatLinear(panels_of(weights, level), level);
}

std::vector<float> multiply(const FloatLinear& linear, const std::vector<float>& x, std::size_t rows, Parallel& parallel) {
  std::vector<float> y(rows * linear.outputs(), std::numeric_limits<float>::quiet_NaN());
  linear.run(x.data(), rows, y.data(), parallel);
  return y;
}

void check_shape(const Level& level, int outputs, int inputs, bool by_output, Numbers type, std::size_t rows) {
  const auto& [weights, x, expected] = Case::of(outputs, inputs, by_output, type, rows);
  const FloatLinear linear = linear_of(weights, level);
  Serial serial;
  static Team team(3);
  const std::vector<float> y = multiply(linear, x, rows, serial);
  const double error = error_of(expected, y);
  CHECK(error < kTolerance, "%s N=%d K=%d by_output=%d type=%d rows=%zu: error %.2e", level.name, outputs, inputs,
        by_output, static_cast<int>(type), rows, error);
  CHECK(multiply(linear, x, rows, team) == y, "%s: three threads differ from one", level.name);
  const bool by_unit = type == Numbers::kBfloat16 && level.unit_rows > 0 && rows > static_cast<std::size_t>(level.tile_rows);
  for (std::size_t row = 0; row < rows && rows > 1 && !by_unit; row += rows < 32 ? 1 : 41) {
    const std::vector<float> alone = multiply(linear, {x.begin() + row * inputs, x.begin() + (row + 1) * inputs}, 1, serial);
    CHECK(!std::memcmp(alone.data(), &y[row * outputs], outputs * sizeof(float)),
          "%s by_output=%d: row %zu of %zu differs from itself alone", level.name, by_output, row, rows);
  }
}

void check_shapes(const Level& level) {
  for (bool by_output : {false, true}) {
    for (Numbers type : {Numbers::kFloat, Numbers::kBfloat16}) {
      for (auto [outputs, inputs] : {std::pair{1, 8}, {33, 100}, {64, 256}, {95, 515}, {7, 1}, {300, 131}}) {
        for (std::size_t rows : {1, 2, 5, 13}) check_shape(level, outputs, inputs, by_output, type, rows);
      }
      check_shape(level, 270, 140, by_output, type, 2 * kMostRows + 7);
    }
  }
}

void check_gate(const Level& level) {
  const int outputs = 5 * kGateColumns, inputs = 200;
  const RandomFloats gate(outputs, inputs, false, Numbers::kFloat, 1), up(outputs, inputs, false, Numbers::kFloat, 2);
  Serial serial;
  Team team(3);
  for (std::size_t rows : {1, 3, kMostRows + 5}) {
    const std::vector<float> x = random_activations(rows * inputs, 3);
    const std::vector<float> gates = multiply(linear_of(gate, level), x, rows, serial), ups = multiply(linear_of(up, level), x, rows, serial);
    const FloatLinear both(panels_of(gate, level), panels_of(up, level), Activation::kSilu, level);
    const std::vector<float> y = multiply(both, x, rows, serial);
    for (std::size_t at = 0; at < y.size(); ++at) {
      const double expected = gates[at] / (1 + std::exp(-double{gates[at]})) * ups[at];
      CHECK(std::fabs(y[at] - expected) <= 1e-5 * std::fabs(expected) + 1e-30, "%s: gate %zu of %zu rows", level.name, at, rows);
    }
    CHECK(multiply(both, x, rows, team) == y, "%s: gates of three threads differ from one", level.name);
  }
}

// What is not finite stays so, and in its row alone.
void check_unusual_activations(const Level& level) {
  for (bool by_output : {false, true}) {
    const RandomFloats weights(50, 200, by_output, Numbers::kFloat, 1);
    const FloatLinear linear = linear_of(weights, level);
    Serial serial;
    std::vector<float> x = random_activations(3 * 200, 5);
    const std::vector<float> good = multiply(linear, x, 3, serial);
    x[207] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> y = multiply(linear, x, 3, serial);
    for (int i = 50; i < 100; ++i) CHECK(std::isnan(y[i]), "%s: NaN is lost", level.name);
    CHECK(!std::memcmp(y.data(), good.data(), 200) && !std::memcmp(&y[100], &good[100], 200), "other rows changed");
  }
}

// A test that could not fail would prove nothing: wrong products must be seen.
void check_that_faults_are_seen() {
  for (bool by_output : {false, true}) {
    RandomFloats weights(40, 300, by_output, Numbers::kFloat, 3);
    const std::vector<float> x = random_activations(300, 4);
    Serial serial;
    const std::vector<float> y = multiply(linear_of(weights), x, 1, serial);
    CHECK(error_of(oracle(weights, x, 1), y) < kTolerance, "before");
    weights.values[7] *= 1.01f;
    CHECK(error_of(oracle(weights, x, 1), y) > kTolerance, "a hundredth of one weight is not seen");
  }
}

}  // namespace

// The levels that run here, or those that the arguments name.
int main(int argc, char** argv) {
  check_that_faults_are_seen();
  for (const Level* level : tested_levels(argc, argv)) {
    if (!level->runs_here()) {
      std::printf("%s does not run here\n", level->name);
      continue;
    }
    check_shapes(*level);
    check_gate(*level);
    check_unusual_activations(*level);
    std::printf("%s is right\n", level->name);
  }
}
