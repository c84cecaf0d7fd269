// AddRMSNorm (input float [..., D], skip, gamma float [D]) -> output, input_skip_bias_sum
//
// Inputs, outputs and the attribute epsilon are those of com.microsoft::SkipSimplifiedLayerNormalization of the same names.
#pragma once

#include "binding.h"

namespace edgeformer {

class AddRMSNorm {
 public:
  static constexpr char kName[] = "AddRMSNorm";
  static constexpr Formal kInputs[] = {kFloats, kFloats, kFloats};
  static constexpr Formal kOutputs[] = {kFloats, kFloats};

  explicit AddRMSNorm(const Node& node) : epsilon_(node.number("epsilon")), level_(node.level()) {}
  void run(Call& call, Parallel& parallel) const;

 private:
  float epsilon_;
  const Level& level_;
};

}  // namespace edgeformer
