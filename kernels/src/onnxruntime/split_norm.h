// SplitRMSNorm (A float [B, S, ...], query_gamma [D], key_gamma [D], split int64 [3], heads int64 [4]) -> query, key, value
//
// Splits what one product computes for attention: as many numbers of queries, keys and values as `split` says, which is a
// constant. Heads of queries and keys, of D numbers each, are normed by their root mean square. Attribute epsilon. `heads` is
// for the function that the kernel stands for.
#pragma once

#include "binding.h"

namespace edgeformer {

class SplitRMSNorm {
 public:
  static constexpr char kName[] = "SplitRMSNorm";
  static constexpr Formal kInputs[] = {kFloats, kFloats, kFloats, kInt64s, kInt64s};
  static constexpr Formal kOutputs[] = {kFloats, kFloats, kFloats};

  explicit SplitRMSNorm(const Node& node);
  void run(Call& call, Parallel& parallel) const;

 private:
  std::int64_t queries_, keys_, values_;  // numbers of a token
  float epsilon_;
  const Level& level_;
};

}  // namespace edgeformer
