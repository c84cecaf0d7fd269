// Activations, gated products and norms of every level that runs here against float64.
#include "gate.h"

#include <cmath>
#include <limits>

#include "activated.h"
#include "check.h"
#include "quantized_linear.h"
#include "random_weights.h"
#include "team.h"
#include "tested_levels.h"

using namespace edgeformer;

namespace {

// A few units in the last place of what is added up: x / 2 and its product with the tangent.
constexpr double kTolerance = 1e-6;

void check_activations(const Level& level) {
  constexpr int kCount = 4096;
  std::vector<float> x(kCount), up(kCount), y(kCount);
  for (int i = 0; i < kCount; ++i) {
    x[i] = (i - kCount / 2) * (i % 3 ? 0.005f : i % 2 ? 1e-5f : 0.1f);
    up[i] = 1.0f + i % 7;
  }
  for (Activation activation : kActivations) {
    level.gate(activation, x.data(), up.data(), kCount, y.data());
    for (int i = 0; i < kCount; ++i) {
      const double expected = activated(activation, x[i]) * up[i];
      CHECK(std::fabs(y[i] - expected) <= kTolerance * std::fabs(x[i] * up[i]), "%s: activation %d of %g is %g, not %g",
            level.name, static_cast<int>(activation), x[i], y[i], expected);
    }
    x[5] = NAN;
    level.gate(activation, x.data(), up.data(), kCount, y.data());
    CHECK(std::isnan(y[5]) && !std::isnan(y[4]), "%s: a NaN is lost", level.name);
    x[5] = 0.3f;
  }
}

// A gated product is the gate of an ungated one.
void check_products(const Level& level) {
  Serial serial;
  Team team(3);
  for (int half : {32, 96, 32 * 19}) {
    const RandomWeights weights(2 * half, 70, 4, 32, half == 96, half);
    const auto panels = [&] { return Panels(weights.view, level.columns, level.byte_bias, serial); };
    const QuantizedLinear plain(panels(), level), gated(panels(), level, Activation::kSilu);
    CHECK(gated.outputs() == half, "%d", gated.outputs());
    for (std::size_t rows : {1, 3, 200}) {
      const std::vector<float> x = random_activations(rows * 70, 1);
      std::vector<float> both(rows * 2 * half), y(rows * half, NAN), of_team(rows * half);
      plain.run(x.data(), rows, both.data(), serial);
      gated.run(x.data(), rows, y.data(), serial);
      gated.run(x.data(), rows, of_team.data(), team);
      CHECK(y == of_team, "%s: three threads differ from one", level.name);
      for (std::size_t row = 0; row < rows; ++row) {
        std::vector<float> expected(half);
        const float* gate = both.data() + row * 2 * half;
        level.gate(Activation::kSilu, gate, gate + half, half, expected.data());
        for (int i = 0; i < half; ++i) {
          CHECK(y[row * half + i] == expected[i], "%s: row %zu of %zu, output %d", level.name, row, rows, i);
        }
      }
    }
  }
}

// A product with a bias and an activation is these of a product without.
void check_biases(const Level& level) {
  constexpr float kUntouched = 17;
  Serial serial;
  Team team(3);
  for (int outputs : {7, 32, 70, 32 * 19}) {
    const RandomWeights weights(outputs, 70, 4, 32, outputs == 70, outputs);
    const auto panels = [&] { return Panels(weights.view, level.columns, level.byte_bias, serial); };
    const std::vector<float> bias = random_activations(outputs, 3);
    const QuantizedLinear plain(panels(), level);
    for (Activation activation : kActivations) {
      const QuantizedLinear biased(panels(), level, bias.data(), activation);
      for (std::size_t rows : {1, 3, 200}) {
        const std::vector<float> x = random_activations(rows * 70, 1);
        std::vector<float> products(rows * outputs), y(rows * outputs + 1, kUntouched), of_team = y;
        plain.run(x.data(), rows, products.data(), serial);
        biased.run(x.data(), rows, y.data(), serial);
        biased.run(x.data(), rows, of_team.data(), team);
        CHECK(y == of_team, "%s: three threads differ from one", level.name);
        CHECK(y.back() == kUntouched, "%s: it writes behind its outputs", level.name);
        for (std::size_t at = 0; at < products.size(); ++at) {
          const float sum = products[at] + bias[at % outputs];
          const double expected = activated(activation, sum);
          CHECK(std::fabs(y[at] - expected) <= kTolerance * std::fabs(sum), "%s: activation %d of %g is %g, not %g", level.name,
                static_cast<int>(activation), sum, y[at], expected);
        }
      }
    }
  }
}

void check_norms(const Level& level) {
  for (int size : {1, 7, 64, 515}) {
    const std::vector<float> x = random_activations(size, 1), skip = random_activations(size, 2), w = random_activations(size, 3);
    std::vector<float> sum(size), y(size);
    level.add_and_norm(x.data(), skip.data(), w.data(), size, 1e-5f, sum.data(), y.data());
    double squares = 0;
    for (int i = 0; i < size; ++i) squares += (double(x[i]) + skip[i]) * (double(x[i]) + skip[i]);
    for (int i = 0; i < size; ++i) {
      const double expected = (double(x[i]) + skip[i]) / std::sqrt(squares / size + 1e-5) * w[i];
      CHECK(sum[i] == x[i] + skip[i], "%s: a sum is wrong", level.name);
      CHECK(std::fabs(y[i] - expected) < 1e-6 * (1 + std::fabs(expected)), "%s: %g is not %g", level.name, y[i], expected);
    }
    std::vector<float> alone(size);
    level.norm(sum.data(), w.data(), size, 1e-5f, alone.data());
    CHECK(alone == y, "%s: a norm of a sum is not that of both", level.name);
  }
}

void check_layer_norms(const Level& level) {
  for (int size : {1, 7, 64, 515}) {
    const std::vector<float> x = random_activations(size, 1), skip = random_activations(size, 2), w = random_activations(size, 3);
    const std::vector<float> bias = random_activations(size, 4);
    std::vector<float> far(x);
    for (float& each : far) each += 3;  // so that the mean is far from 0
    double mean = 0, variance = 0;
    for (int i = 0; i < size; ++i) mean += (double(far[i]) + skip[i]) / size;
    for (int i = 0; i < size; ++i) variance += std::pow(double(far[i]) + skip[i] - mean, 2) / size;
    for (bool keeps_sum : {false, true}) {
      for (const float* shift : {bias.data(), static_cast<const float*>(nullptr)}) {
        std::vector<float> sum(size), y(size);
        level.add_and_layer_norm(far.data(), skip.data(), w.data(), shift, size, 1e-5f, keeps_sum ? sum.data() : nullptr, y.data());
        for (int i = 0; i < size; ++i) {
          const double normed = (double(far[i]) + skip[i] - mean) / std::sqrt(variance + 1e-5);
          const double expected = normed * w[i] + (shift == nullptr ? 0 : shift[i]);
          CHECK(!keeps_sum || sum[i] == far[i] + skip[i], "%s: a sum is wrong", level.name);
          CHECK(std::fabs(y[i] - expected) < 4e-6 * (1 + std::fabs(expected)), "%s: %g is not %g", level.name, y[i], expected);
        }
      }
    }
  }
}

}  // namespace

// The levels that run here, or those that the arguments name.
int main(int argc, char** argv) {
  for (const Level* level : tested_levels(argc, argv)) {
    if (!level->runs_here()) continue;
    check_activations(*level);
    check_products(*level);
    check_biases(*level);
    check_norms(*level);
    check_layer_norms(*level);
    std::printf("%s is right\n", level->name);
  }
}
