// MatMulNBits (A float [..., K], B uint8, scales float [, zero_points uint8]) -> Y float [..., N]
//
// Attributes K, N, bits, block_size; inputs and weights as in com.microsoft::MatMulNBits; all but A are constants.
// In stored form (panels_of.h), B has panels, and scales and zero points are missing.
//
// MatMulNBitsSwiGLU and MatMulNBitsGeGLU are gated: of the N outputs, the first half g gates the second half u, and
// Y = activation(g) · u has N / 2. The attribute `approximate` of the latter is that of ONNX's Gelu.
#pragma once

#include "binding.h"
#include "quantized_linear.h"

namespace edgeformer {

class MatMulNBits {
 public:
  static constexpr char kName[] = "MatMulNBits";
  static constexpr Formal kInputs[] = {kFloats, kBytes, optional(kFloats), optional(kBytes)};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit MatMulNBits(const Node& node) : MatMulNBits(node, {}) {}
  void run(Call& call, Parallel& parallel) const;

 protected:
  MatMulNBits(const Node& node, std::optional<Activation> gate);

 private:
  QuantizedLinear linear_;
};

struct MatMulNBitsSwiGLU : MatMulNBits {
  static constexpr char kName[] = "MatMulNBitsSwiGLU";
  explicit MatMulNBitsSwiGLU(const Node& node) : MatMulNBits(node, Activation::kSilu) {}
};

struct MatMulNBitsGeGLU : MatMulNBits {
  static constexpr char kName[] = "MatMulNBitsGeGLU";
  explicit MatMulNBitsGeGLU(const Node& node);
};

}  // namespace edgeformer
