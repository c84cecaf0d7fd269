// A product of activations and quantized weights: y = x W^T, for one row of x to many.
//
// Activations are rounded to signed bytes block by block, as onnxruntime's MatMulNBits does with accuracy_level 4.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "aligned.h"
#include "level.h"
#include "panels.h"
#include "parallel.h"
#include "weights.h"

namespace edgeformer {

// Says why weights of this form cannot be multiplied; empty if they can.
std::string why_unsupported(const Weights& weights);
std::string why_unsupported(const WeightSizes& sizes);

class QuantizedLinear {
 public:
  // Packs the weights in this thread; they may be freed afterwards. They must be supported.
  explicit QuantizedLinear(const Weights& weights, const Level& level = best_level());

  // Takes panels of the level's format. With a gate, the first half of the weights' outputs are the gate of the second, and
  // y has as many outputs as one half: a multiple of kGateColumns.
  explicit QuantizedLinear(Panels panels, const Level& level = best_level(), std::optional<Activation> gate = {});

  // y = activation(x W^T + bias). bias: of as many numbers as y has outputs.
  QuantizedLinear(Panels panels, const Level& level, const float* bias, Activation activation);

  int inputs() const { return panels_.inputs(); }
  int outputs() const { return gate_ ? panels_.outputs() / 2 : panels_.outputs(); }

  // x: [rows][inputs()]. y: [rows][outputs()]. May be called by several threads at once. Results do not depend on the
  // number of threads. A row with a number that is not finite becomes NaN in every column.
  void run(const float* x, std::size_t rows, float* y, Parallel& parallel) const;

 private:
  void run_row(const Activations& activations, float* y, Parallel& parallel) const;
  void run_rows(const Activations& activations, std::size_t rows, float* y, Parallel& parallel) const;

  // Panels of y, and the work of chunks of these.
  int count() const { return gate_ ? panels_.count() / 2 : panels_.count(); }
  void multiply_row(const Activations& activations, int begin, int end, float* y) const;
  void multiply_rows(const Activations& activations, int begin, int end, int row, int rows, float* y) const;

  // Adds the bias to results of panels `begin` to `end`, and applies the activation.
  void add_bias(int begin, int end, int rows, float* y) const;

  const Level& level_;
  Panels panels_;
  std::optional<Activation> gate_;
  AlignedArray<float> bias_;  // of whole panels; null without a bias
  Activation activation_ = Activation::kNone;  // of what has a bias
};

// y = down(up(x)). Of many rows, a thread takes a few through both products, so that what lies between stays in its
// second-level cache: apart, they write and read all of it in memory, and take 1.12 times as long (1,024 rows, 1,024
// inputs, 4,096 between, blocks of 64; AMD Zen 4).
class QuantizedFeedForward {
 public:
  QuantizedFeedForward(QuantizedLinear up, QuantizedLinear down);

  int inputs() const { return up_.inputs(); }
  int outputs() const { return down_.outputs(); }

  // As QuantizedLinear::run, and bit for bit what the two give one after the other.
  void run(const float* x, std::size_t rows, float* y, Parallel& parallel) const;

 private:
  void run_rows(const float* x, std::size_t rows, float* y, Parallel& parallel) const;

  QuantizedLinear up_, down_;
};

}  // namespace edgeformer
