// Products with activations quantized per token. All inputs but A are constants.
//
//   PerTokenMatMul (A float [..., K], B int8 [K, N], scales float [N] [, bias float [N]]) -> Y float [..., N]
//   PerToken[Gated]FeedForward… (A float [..., K] [, gate int8 [K, F], its scales float [F]], up int8 [K, F], its scales
//     float [F], down int8 [F, N], its scales float [N] [, their biases, in the same order]) -> Y float [..., N]
//
// Attributes K, N, and F of feed-forwards. A function of a graph cannot choose what it computes by its inputs or
// attributes, so names do: …Relu or …Gelu is the activation, and …Bias has a bias behind each of its products.
#pragma once

#include <array>
#include <cstddef>

#include "binding.h"
#include "per_token_linear.h"

namespace edgeformer {

// A, the integers and scales of products, and their biases.
template <int kProducts, bool kBias>
constexpr auto inputs_of_products() {
  std::array<Formal, 1 + (kBias ? 3 : 2) * kProducts> inputs;
  inputs.fill(kFloats);
  for (int product = 0; product < kProducts; ++product) inputs[1 + 2 * product] = kSignedBytes;
  return inputs;
}

// The product, or the feed-forward, of a node.
PerTokenLinear per_token_linear_of(const Node& node, bool bias);
PerTokenFeedForward per_token_feed_forward_of(const Node& node, bool gated, Activation activation, bool bias);

void run_per_token(const PerTokenLinear& linear, Call& call, Parallel& parallel);
void run_per_token(const PerTokenFeedForward& feed_forward, Call& call, Parallel& parallel);

template <bool kBias>
class PerTokenMatMul {
 public:
  static constexpr const char* kName = kBias ? "PerTokenMatMulBias" : "PerTokenMatMul";
  static constexpr auto kInputs = inputs_of_products<1, kBias>();
  static constexpr Formal kOutputs[] = {kFloats};

  explicit PerTokenMatMul(const Node& node) : linear_(per_token_linear_of(node, kBias)) {}
  void run(Call& call, Parallel& parallel) const { run_per_token(linear_, call, parallel); }

 private:
  PerTokenLinear linear_;
};

template <bool kGated, Activation kActivation, bool kBias>
class PerTokenFeedForwardOp {
  // The parts of the name, one after the other.
  static constexpr auto kText = [] {
    std::array<char, 64> name{};
    std::size_t size = 0;
    for (const char* part : {"PerToken", kGated ? "Gated" : "", "FeedForward", name_of(kActivation), kBias ? "Bias" : ""}) {
      while (*part != 0) name.at(size++) = *part++;
    }
    return name;
  }();

 public:
  static constexpr const char* kName = kText.data();
  static constexpr auto kInputs = inputs_of_products<kGated ? 3 : 2, kBias>();
  static constexpr Formal kOutputs[] = {kFloats};

  explicit PerTokenFeedForwardOp(const Node& node)
      : feed_forward_(per_token_feed_forward_of(node, kGated, kActivation, kBias)) {}
  void run(Call& call, Parallel& parallel) const { run_per_token(feed_forward_, call, parallel); }

 private:
  PerTokenFeedForward feed_forward_;
};

}  // namespace edgeformer
