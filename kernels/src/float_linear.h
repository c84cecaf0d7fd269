// y = x W with weights of floats, for any number of rows; or the gate of two such products.
#pragma once

#include <cstddef>
#include <optional>

#include "float_weights.h"
#include "level.h"
#include "parallel.h"

namespace edgeformer {

class FloatLinear {
 public:
  // Takes panels of the level's columns.
  explicit FloatLinear(FloatPanels panels, const Level& level = best_level()) : level_(level), panels_(std::move(panels)) {}

  // y = activation(x · gate) times x · up. Both have the same sizes, and outputs in whole kGateColumns.
  FloatLinear(FloatPanels gate, FloatPanels up, Activation activation, const Level& level = best_level())
      : level_(level), panels_(std::move(gate)), up_(std::move(up)), activation_(activation) {}

  int inputs() const { return panels_.inputs(); }
  int outputs() const { return panels_.outputs(); }

  // x: [rows][inputs()]. y: [rows][outputs()]. May be called by several threads at once. Results do not depend on the
  // number of threads; nor a row's on the other rows, as long as they are few. More than fit in one tile are left, where
  // weights are bfloat16, to a unit of matrix tiles, if the level has one, which rounds otherwise.
  void run(const float* x, std::size_t rows, float* y, Parallel& parallel) const;

 private:
  // Rows of x, or of what they were split into.
  struct Rows {
    const float* x;
    const SplitRows* split;
    std::size_t first;
    int count;
  };
  void multiply(const Rows& rows, int begin, int end, float* y) const;
  void multiply(const FloatPanels& panels, const Rows& rows, int begin, int end, float* y, std::size_t stride) const;

  const Level& level_;
  FloatPanels panels_;
  std::optional<FloatPanels> up_;
  Activation activation_ = Activation::kNone;
};

}  // namespace edgeformer
