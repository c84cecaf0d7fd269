#include "mat_mul_n_bits.h"

#include "panels_of.h"

namespace edgeformer {

MatMulNBits::MatMulNBits(const Node& node)
    : linear_(panels_of(node, 1, {node.positive("N"), node.positive("K"), node.positive("bits"),
                                  node.positive("block_size")}),
              node.level()) {}

void MatMulNBits::run(Call& call, Parallel& parallel) const {
  std::vector<std::int64_t> shape = call.shape(0);
  if (shape.empty() || shape.back() != linear_.inputs()) {
    call.refuse("the last dimension of A must be K, " + std::to_string(linear_.inputs()));
  }
  std::size_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  shape.back() = linear_.outputs();
  linear_.run(call.input<float>(0), rows, call.output<float>(0, shape), parallel);
}

}  // namespace edgeformer
