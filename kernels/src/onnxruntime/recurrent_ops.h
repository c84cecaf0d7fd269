// Layers whose state has a fixed size. They take the mask of tokens that onnxruntime's ops of these layers lack: padding, which
// may stand anywhere, enters neither outputs of tokens nor states. Its own outputs are 0.
//
// MaskedCausalConv (x float [B, S, C], weight [C, K], bias [C] or absent, past [B, C, K - 1], token_mask bool [B, S])
//     -> y [B, S, C], present [B, C, K - 1]
//
// y[t] = bias + Σ weight[k] · x[t - K + 1 + k], where past has the inputs before x, and silu of that with attribute silu.
//
// MaskedLinearAttention (query float [B, S, G · Dk], key, value [B, S, H · Dv], past [B, H, Dk, Dv], token_mask bool [B, S],
//                        decay [B, S, H] or absent, beta [B, S, H] or absent) -> output [B, S, H · Dv], present
//
// recurrent.h says what a token does; heads share queries and keys where G is less than H. Attribute scale.
#pragma once

#include "binding.h"

namespace edgeformer {

class MaskedCausalConv {
 public:
  static constexpr char kName[] = "MaskedCausalConv";
  static constexpr Formal kInputs[] = {kFloats, kFloats, optional(kFloats), kFloats, kBools};
  static constexpr Formal kOutputs[] = {kFloats, kFloats};

  explicit MaskedCausalConv(const Node& node) : silu_(node.has_flag("silu")), level_(node.level()) {}
  void run(Call& call, Parallel& parallel) const;

 private:
  bool silu_;
  const Level& level_;
};

class MaskedLinearAttention {
 public:
  static constexpr char kName[] = "MaskedLinearAttention";
  static constexpr Formal kInputs[] = {kFloats, kFloats, kFloats, kFloats, kBools, optional(kFloats), optional(kFloats)};
  static constexpr Formal kOutputs[] = {kFloats, kFloats};

  explicit MaskedLinearAttention(const Node& node) : scale_(node.number("scale")), level_(node.level()) {}
  void run(Call& call, Parallel& parallel) const;

 private:
  float scale_;
  const Level& level_;
};

}  // namespace edgeformer
