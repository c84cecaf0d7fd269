#include "mat_mul_n_bits.h"

namespace edgeformer {
namespace {

Weights weights_of(const Node& node) {
  Weights weights{node.positive("N"), node.positive("K"), node.positive("bits"), node.positive("block_size"),
                  nullptr, nullptr, nullptr};
  const std::size_t blocks = static_cast<std::size_t>(weights.outputs) * weights.blocks();
  weights.integers = node.constant<std::uint8_t>(1, "B", blocks * weights.block * weights.bits / 8);
  weights.scales = node.constant<float>(2, "scales", blocks);
  if (node.inputs() > 3) {
    const std::size_t row_bytes = (static_cast<std::size_t>(weights.blocks()) * weights.bits + 7) / 8;
    weights.zero_points = node.constant<std::uint8_t>(3, "zero_points", weights.outputs * row_bytes);
  }
  const std::string reason = why_unsupported(weights);
  if (!reason.empty()) node.refuse(reason);
  return weights;
}

}  // namespace

MatMulNBits::MatMulNBits(const Node& node) : linear_(weights_of(node), node.level()) {}

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
