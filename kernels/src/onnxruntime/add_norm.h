// Sums of two rows, and their norms, of inputs [..., D]:
//
//   AddRMSNorm    (input float, skip, gamma [D])          -> output, input_skip_bias_sum
//   AddLayerNorm  (input float, skip, gamma [D] [, beta]) -> output, input_skip_bias_sum
//   PostLayerNorm (input float, skip, gamma [D] [, beta]) -> output
//
// Inputs, outputs and the attribute epsilon are those of com.microsoft::SkipSimplifiedLayerNormalization, and of
// SkipLayerNormalization, of the same names.
#pragma once

#include "binding.h"

namespace edgeformer {

// What the norms have in common.
class AddNorm {
 public:
  explicit AddNorm(const Node& node) : epsilon_(node.number("epsilon")), level_(node.level()) {}

 protected:
  // Calls norm(row), with offsets of rows in inputs and outputs, for each of them.
  template <class Function>
  void for_each_row(const Call& call, Parallel& parallel, const Function& norm) const;

  float epsilon_;
  const Level& level_;
};

class AddRMSNorm : AddNorm {
 public:
  static constexpr char kName[] = "AddRMSNorm";
  static constexpr Formal kInputs[] = {kFloats, kFloats, kFloats};
  static constexpr Formal kOutputs[] = {kFloats, kFloats};

  using AddNorm::AddNorm;
  void run(Call& call, Parallel& parallel) const;
};

template <bool kKeepsSum>
class AddLayerNormOp : AddNorm {
 public:
  static constexpr const char* kName = kKeepsSum ? "AddLayerNorm" : "PostLayerNorm";
  static constexpr Formal kInputs[] = {kFloats, kFloats, kFloats, optional(kFloats)};
  static constexpr auto kOutputs = floats<kKeepsSum ? 2 : 1>();

  using AddNorm::AddNorm;
  void run(Call& call, Parallel& parallel) const;
};

extern template class AddLayerNormOp<false>;
extern template class AddLayerNormOp<true>;

}  // namespace edgeformer
