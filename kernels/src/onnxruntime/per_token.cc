#include "per_token.h"

#include "panels_of.h"
#include "run_rows.h"

namespace edgeformer {
namespace {

// The product of this index of a node that has so many.
PerTokenLinear linear_of(const Node& node, int inputs, int outputs, int index, int products, bool has_bias) {
  const std::size_t first = 1 + 2 * index, of_bias = 1 + 2 * products + index;
  const std::size_t size = static_cast<std::size_t>(inputs) * outputs;
  PerChannelWeights weights{outputs, inputs, nullptr, nullptr};
  weights.integers = node.constant<std::int8_t>(first, node.name_of(first).c_str(), size);
  weights.scales = node.constant<float>(first + 1, node.name_of(first + 1).c_str(), outputs);
  if (has_bias) weights.bias = node.constant<float>(of_bias, node.name_of(of_bias).c_str(), outputs);
  const std::string reason = why_unsupported(weights);
  if (!reason.empty()) node.refuse(reason);
  PackingThreads threads(node);
  PerTokenLinear linear(weights, node.level(), threads.get());
  release(weights.integers, size);
  return linear;
}

}  // namespace

PerTokenLinear per_token_linear_of(const Node& node, bool bias) {
  return linear_of(node, node.positive("K"), node.positive("N"), 0, 1, bias);
}

PerTokenFeedForward per_token_feed_forward_of(const Node& node, bool gated, Activation activation, bool bias) {
  const int inputs = node.positive("K"), hidden = node.positive("F"), outputs = node.positive("N");
  const int products = gated ? 3 : 2;
  std::optional<PerTokenLinear> gate;
  if (gated) gate.emplace(linear_of(node, inputs, hidden, 0, products, bias));
  return PerTokenFeedForward(std::move(gate), linear_of(node, inputs, hidden, products - 2, products, bias), activation,
                             linear_of(node, hidden, outputs, products - 1, products, bias));
}

void run_per_token(const PerTokenLinear& linear, Call& call, Parallel& parallel) { run_rows(linear, call, parallel); }

void run_per_token(const PerTokenFeedForward& feed_forward, Call& call, Parallel& parallel) {
  run_rows(feed_forward, call, parallel);
}

}  // namespace edgeformer
