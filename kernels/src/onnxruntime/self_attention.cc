#include "self_attention.h"

namespace edgeformer {
namespace {

struct SelfInput {
  enum Name { kQuery, kKey, kValue, kLastPositions, kTotal, kCosines, kSines, kBias, kSinks };
};

}  // namespace

template <bool kCausal>
void SelfAttentionOp<kCausal>::run(Call& call, Parallel& parallel) const {
  const Sizes query = call.shape(SelfInput::kQuery);
  if (query.size() != 3) call.refuse("query must have 3 dimensions");
  const std::int64_t rows = query[0], tokens = query[1];
  const std::int64_t of_caches = call.has_input(SelfInput::kKey) ? 0 : 2 * shape_.kv_heads;
  const std::int64_t head_dim = query[2] / (shape_.query_heads + of_caches);
  check_head_dim(call, head_dim);
  AttentionInputs in{};
  read_queries(call, shape_, rows, tokens, tokens, head_dim, in);
  want(call, "seqlens_k", call.shape(SelfInput::kLastPositions), {rows});
  in.last_positions = call.input<std::int32_t>(SelfInput::kLastPositions);
  const std::int64_t total = read_total(call, SelfInput::kTotal);
  if (total != tokens) call.refuse("total_sequence_length must be the tokens of query, as there is no cache");
  const std::int64_t room = read_angles(call, SelfInput::kCosines, head_dim, tokens, in);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t valid = std::int64_t{in.last_positions[row]} + 1;
    if (valid < 0 || valid > room) {
      call.refuse("row " + std::to_string(row) + " has " + std::to_string(valid) + " tokens, where there is room for " +
                  std::to_string(room));
    }
  }
  read_bias_and_sinks(call, SelfInput::kBias, shape_, tokens, total, in);
  in.output = call.output<float>(0, {rows, tokens, shape_.query_heads * head_dim});
  const AttentionShape shape = complete(shape_, call, head_dim, SelfInput::kCosines);
  attend_to_itself(shape, in, level_for_copies(shape.head_dim, level_), parallel);
}

template class SelfAttentionOp<false>;
template class SelfAttentionOp<true>;

}  // namespace edgeformer
