// SourceAttention (query [rows, tokens, num_heads · D], key [rows, num_heads, source, D], value, key_padding_mask int32
//                  [rows, source]) -> output [rows, tokens, num_heads · D]
//
// Attention of a decoder's tokens to all tokens of a source: inputs and the attributes num_heads and scale are those of
// com.microsoft::MultiHeadAttention of the same names. Keys are seen where the mask is not 0; a row without any gets 0.
#pragma once

#include "attention_inputs.h"
#include "binding.h"

namespace edgeformer {

class SourceAttention {
 public:
  static constexpr char kName[] = "SourceAttention";
  static constexpr Formal kInputs[] = {kFloats, kFloats, kFloats, kInt32s};
  static constexpr Formal kOutputs[] = {kFloats};

  explicit SourceAttention(const Node& node)
      : heads_(node.positive("num_heads")), scale_(node.number("scale")), level_(node.level()) {}
  void run(Call& call, Parallel& parallel) const;

 private:
  int heads_;
  float scale_;
  const Level& level_;
};

}  // namespace edgeformer
