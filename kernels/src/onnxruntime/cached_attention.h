// CachedAttention (query [, key, value], past_key, past_value, seqlens_k, total_sequence_length [, cos_cache, sin_cache]
//                  [, attention_bias] [, head_sink]) -> output, present_key, present_value
// SharedCacheAttention (the same inputs) -> output
//
// Inputs, outputs and attributes are those of com.microsoft::GroupQueryAttention of the same names, float32 with int32
// lengths. Where a present is given the memory of its past, the cache is changed in place. Unlike that op, it takes
// several rows with several new tokens behind a past. A shared cache is one that an earlier layer has written: key and
// value have no tokens.
#pragma once

#include "attention_inputs.h"
#include "binding.h"

namespace edgeformer {

template <bool kShared>
class CachedAttentionOp {
 public:
  static constexpr const char* kName = kShared ? "SharedCacheAttention" : "CachedAttention";
  static constexpr Formal kInputs[] = {kFloats,           optional(kFloats), optional(kFloats), kFloats,
                                       kFloats,           kInt32s,           kInt32s,           optional(kFloats),
                                       optional(kFloats), optional(kFloats), optional(kFloats)};
  static constexpr auto kOutputs = floats<kShared ? 1 : 3>();

  explicit CachedAttentionOp(const Node& node) : shape_(attention_shape_of(node)), level_(node.level()) {}
  void run(Call& call, Parallel& parallel) const;

 private:
  AttentionInputs read(Call& call) const;
  void read_caches(const Call& call, const Sizes& past, const Sizes& present, AttentionInputs& to) const;

  AttentionShape shape_;
  const Level& level_;
};

extern template class CachedAttentionOp<false>;
extern template class CachedAttentionOp<true>;

}  // namespace edgeformer
