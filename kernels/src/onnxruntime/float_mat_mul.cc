#include "float_mat_mul.h"

namespace edgeformer {
namespace {

FloatMatrix matrix_of(const Node& node, bool transposed) {
  constexpr std::int64_t kMost = 1 << 28;
  const std::vector<std::int64_t> shape = node.constant_shape(1);
  if (shape.size() != 2) node.refuse("B must have two dimensions");
  for (const std::int64_t size : shape) {
    if (size < 1 || size > kMost) node.refuse("B has " + std::to_string(size) + " rows or columns");
  }
  const int inputs = static_cast<int>(shape[transposed]), outputs = static_cast<int>(shape[!transposed]);
  return {node.constant<float>(1, "B", static_cast<std::size_t>(inputs) * outputs), inputs, outputs, transposed};
}

}  // namespace

template <bool kTransposed>
FloatMatMul<kTransposed>::FloatMatMul(const Node& node) : linear_(matrix_of(node, kTransposed), node.level()) {}

template <bool kTransposed>
void FloatMatMul<kTransposed>::run(Call& call, Parallel& parallel) const {
  std::vector<std::int64_t> shape = call.shape(0);
  if (shape.empty() || shape.back() != linear_.inputs()) {
    call.refuse("the last dimension of A must be " + std::to_string(linear_.inputs()) + ", as B's");
  }
  std::size_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  shape.back() = linear_.outputs();
  linear_.run(call.input<float>(0), rows, call.output<float>(0, shape), parallel);
}

template class FloatMatMul<false>;
template class FloatMatMul<true>;

}  // namespace edgeformer
