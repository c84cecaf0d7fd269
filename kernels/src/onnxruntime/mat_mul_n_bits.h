// MatMulNBits (A float [..., K], B uint8, scales float [, zero_points uint8]) -> Y float [..., N]
//
// Attributes K, N, bits, block_size; inputs and weights as in com.microsoft::MatMulNBits; all but A are constants.
// In stored form (panels_of.h), B has panels, and scales and zero points are missing.
//
// MatMulNBitsSwiGLU and MatMulNBitsGeGLU are gated: of the N outputs, the first half g gates the second half u, and
// Y = activation(g) · u has N / 2. The attribute `approximate` of the latter is that of ONNX's Gelu.
//
// MatMulNBitsBias and MatMulNBitsBiasGelu have a fifth input, bias float [N]: Y = A · W + bias, and its Gelu.
//
// MatMulNBitsFeedForward is the second of these and the first behind it, of K inputs, F between and N outputs: behind A, the
// inputs of the one, and then of the other. Its attributes down_bits and down_block_size are of the other's weights.
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
  explicit MatMulNBits(QuantizedLinear linear) : linear_(std::move(linear)) {}

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

struct MatMulNBitsBias : MatMulNBits {
  static constexpr char kName[] = "MatMulNBitsBias";
  static constexpr Formal kInputs[] = {kFloats, kBytes, optional(kFloats), optional(kBytes), kFloats};
  explicit MatMulNBitsBias(const Node& node) : MatMulNBitsBias(node, Activation::kNone) {}

 protected:
  MatMulNBitsBias(const Node& node, Activation activation);
};

struct MatMulNBitsBiasGelu : MatMulNBitsBias {
  static constexpr char kName[] = "MatMulNBitsBiasGelu";
  explicit MatMulNBitsBiasGelu(const Node& node);
};

class MatMulNBitsFeedForward {
 public:
  static constexpr char kName[] = "MatMulNBitsFeedForward";
  static constexpr Formal kInputs[] = {kFloats, kBytes, optional(kFloats), optional(kBytes), kFloats,
                                       kBytes,  optional(kFloats), optional(kBytes), kFloats};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit MatMulNBitsFeedForward(const Node& node);
  void run(Call& call, Parallel& parallel) const;

 private:
  QuantizedFeedForward feed_forward_;
};

}  // namespace edgeformer
