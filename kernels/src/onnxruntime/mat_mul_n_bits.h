// MatMulNBits (A float [..., K], B uint8, scales float [, zero_points uint8]) -> Y float [..., N]
//
// Attributes K, N, bits, block_size; inputs and weights as in com.microsoft::MatMulNBits; all but A are constants.
// In stored form (panels_of.h), B has panels, and scales and zero points are missing.
#pragma once

#include "binding.h"
#include "quantized_linear.h"

namespace edgeformer {

class MatMulNBits {
 public:
  static constexpr char kName[] = "MatMulNBits";
  static constexpr Formal kInputs[] = {kFloats, kBytes, optional(kFloats), optional(kBytes)};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit MatMulNBits(const Node& node);
  void run(Call& call, Parallel& parallel) const;

 private:
  QuantizedLinear linear_;
};

}  // namespace edgeformer
