#include "per_token_linear.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace edgeformer {
namespace {

// Rows that one chunk takes through all of its steps: they and what they become stay in the second-level cache.
constexpr std::size_t kRowsOfAChunk = 48;

// From so many rows for each thread on, threads share out rows. Of fewer rows they share out panels, so that each
// weight is read once.
constexpr std::size_t kRowsForAThread = 24;

// Rows that one chunk of rounding takes.
constexpr std::size_t kRoundedAtOnce = 8;

// The most inputs: sums of them, 255 * 127 * inputs, stay below 2^31.
constexpr int kMostInputs = 65536;

// Runs task(first, rows) for parts of the rows, as many and as large for each thread.
template <class F>
void share_rows(std::size_t rows, Parallel& parallel, F task) {
  const std::size_t chunks = round_up((rows + kRowsOfAChunk - 1) / kRowsOfAChunk, parallel.threads());
  parallel.run(chunks, Task([&](std::size_t chunk) {
                 const std::size_t first = chunk * rows / chunks;
                 task(first, (chunk + 1) * rows / chunks - first);
               }));
}

bool has_rows_for(const Parallel& parallel, std::size_t rows) { return rows >= kRowsForAThread * parallel.threads(); }

}  // namespace

std::string why_unsupported(const PerChannelWeights& weights) {
  if (weights.outputs < 1 || weights.inputs < 1) return "N and K must be positive";
  if (weights.inputs > kMostInputs) {
    return "K must be at most " + std::to_string(kMostInputs) + ", not " + std::to_string(weights.inputs);
  }
  for (int output = 0; output < weights.outputs; ++output) {
    if (!std::isfinite(weights.scales[output])) return "a scale is not finite";
  }
  return "";
}

PerTokenLinear::PerTokenLinear(const PerChannelWeights& weights, const Level& level, Parallel& packing)
    : level_(level), panels_(weights, level.columns, level.byte_bias, packing) {
  if (weights.bias == nullptr) return;
  bias_ = make_aligned<float>(static_cast<std::size_t>(panels_.count()) * panels_.columns());
  std::copy_n(weights.bias, outputs(), bias_.get());
}

void PerTokenLinear::run(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  if (rows == 0) return;
  const auto run_rows = [&](std::size_t first, std::size_t count, Parallel& threads) {
    static thread_local ActivationBuffer buffer;
    const Activations activations = rounded(x + first * inputs(), count, buffer, threads);
    multiply_all(activations, count, {}, y + first * outputs(), threads);
  };
  if (!has_rows_for(parallel, rows)) return run_rows(0, rows, parallel);
  share_rows(rows, parallel, [&](std::size_t first, std::size_t count) {
    Serial serial;
    run_rows(first, count, serial);
  });
}

Activations PerTokenLinear::rounded(const float* x, std::size_t rows, ActivationBuffer& buffer,
                                    Parallel& parallel) const {
  const Activations activations = buffer.make(rows, level_.tiles(rows), panels_);
  Serial serial;
  Parallel& few = rows <= kRoundedAtOnce ? serial : parallel;
  few.run((rows + kRoundedAtOnce - 1) / kRoundedAtOnce, Task([&](std::size_t chunk) {
            const std::size_t end = std::min(rows, (chunk + 1) * kRoundedAtOnce);
            for (std::size_t row = chunk * kRoundedAtOnce; row < end; ++row) {
              level_.round_per_token(x + row * inputs(), inputs(), activations, row);
            }
          }));
  return activations;
}

void PerTokenLinear::multiply(const Activations& x, std::size_t rows, int begin, int end, Finish finish,
                              float* y) const {
  finish.bias = bias_.get();
  level_.multiply_per_token(panels_, x, begin, end, static_cast<int>(rows), finish, y);
}

void PerTokenLinear::multiply_all(const Activations& x, std::size_t rows, Finish finish, float* y,
                                  Parallel& parallel) const {
  const std::size_t panels = panels_.count();
  const std::size_t chunks =
      parallel.threads() == 1 ? 1 : std::min<std::size_t>(panels, kChunksPerThread * parallel.threads());
  parallel.run(chunks, Task([&](std::size_t chunk) {
                 const int begin = chunk * panels / chunks, end = (chunk + 1) * panels / chunks;
                 multiply(x, rows, begin, end, finish, y);
               }));
}

PerTokenFeedForward::PerTokenFeedForward(std::optional<PerTokenLinear> gate, PerTokenLinear up, Activation activation,
                                         PerTokenLinear down)
    : gate_(std::move(gate)), up_(std::move(up)), activation_(activation), down_(std::move(down)) {}

void PerTokenFeedForward::run(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  if (rows == 0) return;
  if (!has_rows_for(parallel, rows)) return run_rows(x, rows, y, parallel);
  share_rows(rows, parallel, [&](std::size_t first, std::size_t count) {
    Serial serial;
    run_rows(x + first * inputs(), count, y + first * outputs(), serial);
  });
}

void PerTokenFeedForward::run_rows(const float* x, std::size_t rows, float* y, Parallel& parallel) const {
  static thread_local ActivationBuffer buffer, hidden_buffer;
  static thread_local GrowingArray<float> hidden_floats;
  float* hidden = hidden_floats.at_least(rows * up_.outputs());
  const Activations activations = up_.rounded(x, rows, buffer, parallel);
  if (gate_) {
    gate_->multiply_all(activations, rows, {}, hidden, parallel);
    up_.multiply_all(activations, rows, {activation_, true}, hidden, parallel);
  } else {
    up_.multiply_all(activations, rows, {activation_, false}, hidden, parallel);
  }
  const Activations rounded = down_.rounded(hidden, rows, hidden_buffer, parallel);
  down_.multiply_all(rounded, rows, {}, y, parallel);
}

}  // namespace edgeformer
