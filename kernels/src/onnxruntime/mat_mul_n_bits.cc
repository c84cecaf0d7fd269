#include "mat_mul_n_bits.h"

#include "panels_of.h"
#include "run_rows.h"

namespace edgeformer {
namespace {

Activation gelu_of(const Node& node) {
  return node.text("approximate") == "tanh" ? Activation::kGeluTanh : Activation::kGelu;
}

Panels panels_of(const Node& node, bool gated) {
  const WeightSizes sizes{node.positive("N"), node.positive("K"), node.positive("bits"), node.positive("block_size")};
  if (gated && sizes.outputs % (2 * kGateColumns) != 0) {
    node.refuse("N must be a multiple of " + std::to_string(2 * kGateColumns));
  }
  return panels_of(node, 1, sizes);
}

}  // namespace

MatMulNBits::MatMulNBits(const Node& node, std::optional<Activation> gate)
    : linear_(panels_of(node, gate.has_value()), node.level(), gate) {}

void MatMulNBits::run(Call& call, Parallel& parallel) const { run_rows(linear_, call, parallel); }

MatMulNBitsGeGLU::MatMulNBitsGeGLU(const Node& node)
    : MatMulNBits(node, gelu_of(node)) {}

MatMulNBitsBias::MatMulNBitsBias(const Node& node, Activation activation)
    : MatMulNBits(QuantizedLinear(panels_of(node, false), node.level(),
                                  node.constant<float>(4, "bias", node.positive("N")), activation)) {}

MatMulNBitsBiasGelu::MatMulNBitsBiasGelu(const Node& node) : MatMulNBitsBias(node, gelu_of(node)) {}

}  // namespace edgeformer
