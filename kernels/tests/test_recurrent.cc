// Convolutions, linear attention, and functions of single numbers, of every level that runs here against float64.
#include "recurrent.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "check.h"
#include "random_floats.h"
#include "tested_levels.h"

using namespace edgeformer;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void check_convolutions(const Level& level) {
  for (int channels : {1, 7, 16, 61}) {
    for (int taps : {2, 4}) {
      const std::vector<float> x = random_floats(channels * taps, 0), w = random_floats(channels * taps, 1), bias = random_floats(channels, 2);
      std::vector<const float*> inputs;
      for (int tap = 0; tap < taps; ++tap) inputs.push_back(x.data() + tap * channels);
      for (bool silu : {false, true}) {
        for (const float* of_bias : {bias.data(), static_cast<const float*>(nullptr)}) {
          std::vector<float> y(channels);
          level.convolve({inputs.data(), w.data(), of_bias, taps, channels, silu}, y.data());
          for (int i = 0; i < channels; ++i) {
            double expected = of_bias == nullptr ? 0 : of_bias[i];
            for (int tap = 0; tap < taps; ++tap) expected += double(w[tap * channels + i]) * x[tap * channels + i];
            if (silu) expected *= sigmoid(expected);
            CHECK(std::fabs(y[i] - expected) < 4e-6, "%s: %g is not %g", level.name, y[i], expected);
          }
        }
      }
    }
  }
}

struct Case {
  int tokens, key_dim, columns;
  bool decays, corrects, in_place;
  float decay;
};

void check_state(const Level& level, const Case& of) {
  const int tokens = of.tokens, stride = of.columns + 3;
  const std::vector<float> query = random_floats(tokens * of.key_dim, 0), value = random_floats(tokens * stride, 1);
  const std::vector<float> past = random_floats(of.key_dim * stride, 2);
  std::vector<float> key = random_floats(tokens * of.key_dim, 3, 1 / std::sqrt(static_cast<float>(of.key_dim)));
  std::vector<float> decay(tokens), beta(tokens), output(tokens * stride, NAN), present = past;
  const auto mask = std::make_unique<bool[]>(tokens);
  for (int token = 0; token < tokens; ++token) {
    decay[token] = token % 3 == 1 ? of.decay : -0.1f;
    beta[token] = 0.2f + 0.1f * (token % 7);
    mask[token] = token % 4 != 2;
    if (!mask[token]) key[token * of.key_dim] = NAN;  // padding may hold anything
  }
  std::vector<float> memory(of.key_dim * kStateColumns);
  std::vector<float> apart(of.key_dim * stride, NAN);
  float* const to = of.in_place ? present.data() : apart.data();
  level.attend_state({
      .query = query.data(),
      .key = key.data(),
      .value = value.data(),
      .decay = of.decays ? decay.data() : nullptr,
      .beta = of.corrects ? beta.data() : nullptr,
      .mask = mask.get(),
      .to_query = static_cast<std::size_t>(of.key_dim),
      .to_key = static_cast<std::size_t>(of.key_dim),
      .to_value = static_cast<std::size_t>(stride),
      .to_decay = 1,
      .tokens = tokens,
      .key_dim = of.key_dim,
      .columns = of.columns,
      .past = present.data(),
      .present = to,
      .stride = static_cast<std::size_t>(stride),
      .scale = 0.5f,
      .output = output.data(),
      .memory = memory.data(),
  });
  std::vector<double> state(past.begin(), past.end());
  for (int token = 0; token < tokens; ++token) {
    for (int column = 0; column < of.columns; ++column) {
      double expected = 0;
      if (mask[token]) {
        double known = 0;
        for (int i = 0; i < of.key_dim; ++i) {
          double& at = state[i * stride + column];
          if (of.decays) at *= std::exp(double(decay[token]));
          known += key[token * of.key_dim + i] * at;
        }
        double change = value[token * stride + column];
        if (of.corrects) change = beta[token] * (change - known);
        for (int i = 0; i < of.key_dim; ++i) {
          state[i * stride + column] += key[token * of.key_dim + i] * change;
          expected += 0.5 * state[i * stride + column] * query[token * of.key_dim + i];
        }
      }
      const double found = output[token * stride + column];
      CHECK(std::fabs(found - expected) < 2e-5, "%s: token %d: %g is not %g", level.name, token, found, expected);
    }
    for (int column = of.columns; column < stride; ++column) {
      CHECK(std::isnan(output[token * stride + column]), "%s: a column of others is written", level.name);
    }
  }
  for (int i = 0; i < of.key_dim; ++i) {
    for (int column = 0; column < of.columns; ++column) {
      const double found = to[i * stride + column], expected = state[i * stride + column];
      CHECK(std::fabs(found - expected) < 2e-5, "%s: the state has %g instead of %g", level.name, found, expected);
    }
    for (int column = of.columns; column < stride; ++column) {
      const float found = to[i * stride + column];
      CHECK(of.in_place ? found == past[i * stride + column] : std::isnan(found), "%s: a number of others changed", level.name);
    }
  }
}

void check_states(const Level& level) {
  for (int columns : {1, 13, 16, 29, 32}) {
    for (bool corrects : {false, true}) {
      for (int tokens : {1, 3, 50}) check_state(level, {tokens, 24, columns, true, corrects, columns % 2 == 0, -1.0f});
    }
  }
  for (float decay : {0.0f, -40.0f, -500.0f, -std::numeric_limits<float>::infinity()}) {
    check_state(level, {40, 9, 32, true, true, true, decay});
  }
  check_state(level, {40, 9, 32, false, true, false, 0.0f});
  check_state(level, {40, 9, 32, false, false, true, 0.0f});
}

void check_maps(const Level& level) {
  std::vector<float> x = {0.0f, -0.0f, 1e-30f, -1e-30f, 17.0f, 30.0f, 90.0f, 1e30f, -17.0f, -60.0f, -1e30f, INFINITY, -INFINITY};
  for (int i = -400; i <= 400; ++i) x.push_back(i * 0.05f);
  for (int count : {1, 5, 16, static_cast<int>(x.size())}) {
    for (Map map : {Map::kSigmoid, Map::kSoftplus}) {
      std::vector<float> y(count + 1, 5.0f);
      level.map(map, x.data(), count, y.data());
      CHECK(y[count] == 5.0f, "%s: a number behind the last is written", level.name);
      for (int i = 0; i < count; ++i) {
        const double z = x[i], log = std::max(z, 0.0) + std::log1p(std::exp(-std::fabs(z)));
        const double expected = map == Map::kSigmoid ? sigmoid(z) : log;
        const bool is_right = y[i] == static_cast<float>(expected) || std::fabs(y[i] - expected) <= 1e-36 + 4e-7 * std::fabs(expected);
        CHECK(is_right, "%s: map %d of %g is %g, not %g", level.name, static_cast<int>(map), z, y[i], expected);
      }
      const float nan = NAN;
      level.map(map, &nan, 1, y.data());
      CHECK(std::isnan(y[0]), "%s: a NaN is lost", level.name);
    }
  }
}

}  // namespace

// The levels that run here, or those that the arguments name.
int main(int argc, char** argv) {
  for (const Level* level : tested_levels(argc, argv)) {
    if (!level->runs_here()) continue;
    check_convolutions(*level);
    check_states(*level);
    check_maps(*level);
    std::printf("%s is right\n", level->name);
  }
}
