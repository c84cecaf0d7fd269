#include "mat_mul_n_bits.h"

#include "panels_of.h"
#include "run_rows.h"

namespace edgeformer {
namespace {

Activation gelu_of(const Node& node) {
  return node.text("approximate") == "tanh" ? Activation::kGeluTanh : Activation::kGelu;
}

// outputs, inputs: their attributes. prefix: of the others' names.
WeightSizes sizes_of(const Node& node, const char* outputs = "N", const char* inputs = "K", const std::string& prefix = "") {
  return {node.positive(outputs), node.positive(inputs), node.positive((prefix + "bits").c_str()),
          node.positive((prefix + "block_size").c_str())};
}

Panels panels_of(const Node& node, bool gated) {
  const WeightSizes sizes = sizes_of(node);
  if (gated && sizes.outputs % (2 * kGateColumns) != 0) {
    node.refuse("N must be a multiple of " + std::to_string(2 * kGateColumns));
  }
  return panels_of(node, 1, sizes);
}

// The product of the weights that inputs from `first` on have, and of the bias behind these.
QuantizedLinear linear_with_bias(const Node& node, std::size_t first, const WeightSizes& sizes, Activation activation) {
  const std::size_t bias = first + 3;
  return {panels_of(node, first, sizes), node.level(),
          node.constant<float>(bias, node.name_of(bias).c_str(), static_cast<std::size_t>(sizes.outputs)), activation};
}

}  // namespace

MatMulNBits::MatMulNBits(const Node& node, std::optional<Activation> gate)
    : linear_(panels_of(node, gate.has_value()), node.level(), gate) {}

void MatMulNBits::run(Call& call, Parallel& parallel) const { run_rows(linear_, call, parallel); }

MatMulNBitsGeGLU::MatMulNBitsGeGLU(const Node& node)
    : MatMulNBits(node, gelu_of(node)) {}

MatMulNBitsBias::MatMulNBitsBias(const Node& node, Activation activation)
    : MatMulNBits(linear_with_bias(node, 1, sizes_of(node), activation)) {}

MatMulNBitsBiasGelu::MatMulNBitsBiasGelu(const Node& node) : MatMulNBitsBias(node, gelu_of(node)) {}

MatMulNBitsFeedForward::MatMulNBitsFeedForward(const Node& node)
    : feed_forward_(linear_with_bias(node, 1, sizes_of(node, "F", "K"), gelu_of(node)),
                    linear_with_bias(node, 5, sizes_of(node, "N", "F", "down_"), Activation::kNone)) {}

void MatMulNBitsFeedForward::run(Call& call, Parallel& parallel) const { run_rows(feed_forward_, call, parallel); }

}  // namespace edgeformer
