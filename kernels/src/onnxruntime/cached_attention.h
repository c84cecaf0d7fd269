// CachedAttention (query [, key, value], past_key, past_value, seqlens_k, total_sequence_length [, cos_cache, sin_cache]
//                  [, attention_bias] [, head_sink]) -> output, present_key, present_value
//
// Inputs, outputs and attributes are those of com.microsoft::GroupQueryAttention of the same names, float32 with int32
// lengths. Where a present is given the memory of its past, the cache is changed in place. Unlike that op, it takes
// several rows with several new tokens behind a past.
#pragma once

#include "attention.h"
#include "binding.h"

namespace edgeformer {

class CachedAttention {
 public:
  static constexpr char kName[] = "CachedAttention";
  static constexpr Formal kInputs[] = {kFloats,           optional(kFloats), optional(kFloats), kFloats,
                                       kFloats,           kInt32s,           kInt32s,           optional(kFloats),
                                       optional(kFloats), optional(kFloats), optional(kFloats)};
  static constexpr Formal kOutputs[] = {kFloats, kFloats, kFloats};

  explicit CachedAttention(const Node& node);
  void run(Call& call, Parallel& parallel) const;

 private:
  AttentionInputs read(Call& call) const;

  AttentionShape shape_;
  const Level& level_;
};

}  // namespace edgeformer
