// FloatMatMul, FloatMatMulTransposed (A float [..., K], B float) -> Y float [..., N]
//
// B is a constant, [K, N] as ONNX's MatMul reads it, or [N, K] as com.microsoft::FusedMatMul does with transB. It is read
// where it lies.
#pragma once

#include "binding.h"
#include "float_linear.h"

namespace edgeformer {

template <bool kTransposed>
class FloatMatMul {
 public:
  static constexpr const char* kName = kTransposed ? "FloatMatMulTransposed" : "FloatMatMul";
  static constexpr Formal kInputs[] = {kFloats, kFloats};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit FloatMatMul(const Node& node);
  void run(Call& call, Parallel& parallel) const;

 private:
  FloatLinear linear_;
};

extern template class FloatMatMul<false>;
extern template class FloatMatMul<true>;

}  // namespace edgeformer
