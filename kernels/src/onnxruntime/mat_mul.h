// MatMul (A float [..., K], B float [K, N]) -> Y float [..., N]
// TransposedMatMul (A, B float [N, K]) -> Y
// MatMulSwiGLU, MatMulGeGLU (A, gate float [K, N], up float [K, N]) -> Y = activation(A · gate) · (A · up)
//
// Weights are constants. `approximate` of GeGLU is that of ONNX's Gelu. Bf16MatMul and so on have weights of bfloat16, and the
// same inputs and outputs otherwise. Sums are of float32 in all.
#pragma once

#include <optional>

#include "binding.h"
#include "float_linear.h"

namespace edgeformer {

template <Numbers kType>
inline constexpr Formal kWeights = kType == Numbers::kFloat ? kFloats : kBfloats;

class FloatProduct {
 public:
  static constexpr Formal kOutputs[] = {kFloats};
  void run(Call& call, Parallel& parallel) const;

 protected:
  explicit FloatProduct(FloatLinear linear) : linear_(std::move(linear)) {}

  // Packs a constant. Pages of the file that it came from leave the process.
  static FloatPanels panels_of(const Node& node, std::size_t input, Numbers type, bool by_output);

 private:
  FloatLinear linear_;
};

template <Numbers kType, bool kByOutput>
class MatMulOp : public FloatProduct {
  static constexpr const char* kNames[2][2] = {{"MatMul", "TransposedMatMul"}, {"Bf16MatMul", "Bf16TransposedMatMul"}};

 public:
  static constexpr const char* kName = kNames[kType == Numbers::kBfloat16][kByOutput];
  static constexpr Formal kInputs[] = {kFloats, kWeights<kType>};

  explicit MatMulOp(const Node& node) : FloatProduct(FloatLinear(panels_of(node, 1, kType, kByOutput), node.level())) {}
};

template <Numbers kType, bool kIsGelu>
class GatedMatMulOp : public FloatProduct {
  static constexpr const char* kNames[2][2] = {{"MatMulSwiGLU", "MatMulGeGLU"}, {"Bf16MatMulSwiGLU", "Bf16MatMulGeGLU"}};

 public:
  static constexpr const char* kName = kNames[kType == Numbers::kBfloat16][kIsGelu];
  static constexpr Formal kInputs[] = {kFloats, kWeights<kType>, kWeights<kType>};

  explicit GatedMatMulOp(const Node& node) : FloatProduct(gated(node)) {}

 private:
  static FloatLinear gated(const Node& node) {
    FloatPanels gate = panels_of(node, 1, kType, false), up = panels_of(node, 2, kType, false);
    if (gate.outputs() != up.outputs() || gate.inputs() != up.inputs()) node.refuse("gate and up differ in their sizes");
    if (gate.outputs() % kGateColumns != 0) node.refuse("N must be a multiple of " + std::to_string(kGateColumns));
    const bool by_tanh = kIsGelu && node.text("approximate") == "tanh";
    const Activation activation = !kIsGelu ? Activation::kSilu : by_tanh ? Activation::kGeluTanh : Activation::kGelu;
    return FloatLinear(std::move(gate), std::move(up), activation, node.level());
  }
};

}  // namespace edgeformer
