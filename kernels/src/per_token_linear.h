// Products of activations and int8 weights with one scale for each output, y = x W + bias, and feed-forwards of them.
//
// Activations are rounded to signed bytes row by row, to 127 steps of the row's largest magnitude: dynamic quantization
// per token. A row with a number that is not finite becomes NaN in every column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "level.h"
#include "panels.h"
#include "parallel.h"
#include "per_channel_weights.h"

namespace edgeformer {

// Says why weights cannot be multiplied; empty if they can.
std::string why_unsupported(const PerChannelWeights& weights);

class PerTokenLinear {
 public:
  // Packs the weights, which may be freed afterwards. They must be supported.
  PerTokenLinear(const PerChannelWeights& weights, const Level& level, Parallel& packing);

  int inputs() const { return panels_.inputs(); }
  int outputs() const { return panels_.outputs(); }

  // x: [rows][inputs()]. y: [rows][outputs()]. May be called by several threads at once. Results do not depend on the
  // number of threads.
  void run(const float* x, std::size_t rows, float* y, Parallel& parallel) const;

 private:
  friend class PerTokenFeedForward;

  // Rounds rows, in memory of the buffer.
  Activations rounded(const float* x, std::size_t rows, ActivationBuffer& buffer, Parallel& parallel) const;
  // All outputs of rounded rows, or the outputs from panel `begin` to `end`.
  void multiply(const Activations& x, std::size_t rows, int begin, int end, Finish finish, float* y) const;
  void multiply_all(const Activations& x, std::size_t rows, Finish finish, float* y, Parallel& parallel) const;

  const Level& level_;
  Panels panels_;
  AlignedArray<float> bias_;  // of whole panels; null without a bias
};

// y = down(h), with h = activation(up(x)), or, with a gate, activation(gate(x)) * up(x).
class PerTokenFeedForward {
 public:
  PerTokenFeedForward(std::optional<PerTokenLinear> gate, PerTokenLinear up, Activation activation, PerTokenLinear down);

  int inputs() const { return up_.inputs(); }
  int outputs() const { return down_.outputs(); }

  // As PerTokenLinear::run.
  void run(const float* x, std::size_t rows, float* y, Parallel& parallel) const;

 private:
  void run_rows(const float* x, std::size_t rows, float* y, Parallel& parallel) const;

  std::optional<PerTokenLinear> gate_;
  PerTokenLinear up_;
  Activation activation_;
  PerTokenLinear down_;
};

}  // namespace edgeformer
