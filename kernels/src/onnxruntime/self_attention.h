// SelfAttention, CausalSelfAttention
//   (query [, key, value], seqlens_k, total_sequence_length [, cos_cache, sin_cache] [, attention_bias] [, head_sink])
//   -> output
//
// Attention of all tokens of a row to each other, without a cache. Inputs and attributes are those of
// com.microsoft::GroupQueryAttention of the same names, float32 with int32 lengths.
#pragma once

#include "attention_inputs.h"
#include "binding.h"

namespace edgeformer {

template <bool kCausal>
class SelfAttentionOp {
 public:
  static constexpr const char* kName = kCausal ? "CausalSelfAttention" : "SelfAttention";
  static constexpr Formal kInputs[] = {kFloats,           optional(kFloats), optional(kFloats), kInt32s,          kInt32s,
                                       optional(kFloats), optional(kFloats), optional(kFloats), optional(kFloats)};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit SelfAttentionOp(const Node& node) : shape_(attention_shape_of(node)), level_(node.level()) {
    shape_.causal = kCausal;
  }
  void run(Call& call, Parallel& parallel) const;

 private:
  AttentionShape shape_;
  const Level& level_;
};

extern template class SelfAttentionOp<false>;
extern template class SelfAttentionOp<true>;

}  // namespace edgeformer
