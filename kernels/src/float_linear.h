// A product of rows and weights of float32: y = x W. Weights are read where the graph has them, which is a file that is
// mapped: nothing is packed or copied.
#pragma once

#include <cstddef>

#include "float_matrix.h"
#include "level.h"
#include "parallel.h"

namespace edgeformer {

class FloatLinear {
 public:
  explicit FloatLinear(const FloatMatrix& weights, const Level& level = best_level()) : level_(level), weights_(weights) {}

  int inputs() const { return weights_.inputs; }
  int outputs() const { return weights_.outputs; }

  // x: [rows][inputs()]. y: [rows][outputs()]. May be called by several threads at once. Results depend neither on the
  // number of threads nor on the rows beside a row.
  void run(const float* x, std::size_t rows, float* y, Parallel& parallel) const;

 private:
  void run_few(const float* x, int rows, float* y, Parallel& parallel) const;
  void run_many(const float* x, std::size_t rows, float* y, Parallel& parallel) const;

  const Level& level_;
  FloatMatrix weights_;
};

}  // namespace edgeformer
