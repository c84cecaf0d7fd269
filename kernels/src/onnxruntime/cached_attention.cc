#include "cached_attention.h"

#include <algorithm>

namespace edgeformer {
namespace {

enum Input {
  kQuery, kKey, kValue, kPastKey, kPastValue, kLastPositions, kTotal, kCosines, kSines, kBias, kSinks,
  kKeyScales, kValueScales
};

}  // namespace

template <class CacheKind>
CachedAttentionOp<CacheKind>::CachedAttentionOp(const Node& node) : shape_(attention_shape_of(node)), level_(node.level()) {
  shape_.evicts = kEvicts;
  if (kEvicts && shape_.window == 0) node.refuse("local_window_size must be positive");
}

template <class CacheKind>
AttentionInputs CachedAttentionOp<CacheKind>::read(Call& call) const {
  const Sizes query = call.shape(kQuery), past = call.shape(kPastKey);
  if (query.size() != 3 || past.size() != 4) call.refuse("query must have 3 dimensions, and past_key 4");
  const std::int64_t rows = query[0], tokens = query[1], head_dim = head_dim_of(past), kv_heads = shape_.kv_heads;
  check_head_dim(call, head_dim);
  want(call, "past_key", past, {rows, kv_heads, past[2], past[3]});
  want(call, "past_value", call.shape(kPastValue), past);
  want(call, "seqlens_k", call.shape(kLastPositions), {rows});

  AttentionInputs in{};
  read_queries(call, shape_, rows, tokens, kShared ? 0 : tokens, head_dim, in);
  in.last_positions = call.input<std::int32_t>(kLastPositions);
  const std::int64_t total = read_total(call, kTotal);
  in.is_prompt = total == tokens;
  const Sizes present = {rows, kv_heads, kShared || kEvicts ? past[2] : std::max(past[2], total), past[3]};
  if (kEvicts && past[2] < shape_.window) call.refuse("past_key has less room than a window");
  const std::int64_t positions = read_angles(call, kCosines, head_dim, kEvicts ? total : present[2], in);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t valid = std::int64_t{in.last_positions[row]} + 1;
    const std::int64_t end = in.is_prompt ? std::max(valid, tokens) : valid;
    if (valid < (in.is_prompt ? 0 : tokens) || end > std::min(positions, total)) {
      call.refuse("row " + std::to_string(row) + " has " + std::to_string(valid) + " tokens, " + std::to_string(tokens) +
                  " of them new, where there is room for " + std::to_string(std::min(positions, total)));
    }
    if (!kEvicts && !in.is_prompt && valid - tokens > past[2]) call.refuse("past_key is shorter than the tokens before the new ones");
  }
  read_bias_and_sinks(call, kBias, shape_, tokens, total, in);
  in.output = call.output<float>(0, {rows, tokens, shape_.query_heads * head_dim});
  read_caches(call, past, present, in);
  return in;
}

template <class CacheKind>
void CachedAttentionOp<CacheKind>::read_caches(const Call& call, const Sizes& past, const Sizes& present,
                                               AttentionInputs& to) const {
  const Number *keys = call.input<Number>(kPastKey), *values = call.input<Number>(kPastValue);
  const std::size_t before = past[2], after = present[2];
  if constexpr (kShared) {
    // Without new keys, nothing is written.
    to.keys = to.values = nullptr;
    to.keys_cache = {keys, before, const_cast<Number*>(keys), after, CacheKind::kStored};
    to.values_cache = {values, before, const_cast<Number*>(values), after, CacheKind::kStored};
  } else {
    to.keys_cache = {keys, before, call.output<Number>(1, present), after, CacheKind::kStored};
    to.values_cache = {values, before, call.output<Number>(2, present), after, CacheKind::kStored};
  }
  if constexpr (kHasChannelScales) {
    to.keys_cache.scales = read_scales(call, kKeyScales, "k_scale", past[3]);
    to.values_cache.scales = read_scales(call, kValueScales, "v_scale", past[3]);
  }
}

template <class CacheKind>
const float* CachedAttentionOp<CacheKind>::read_scales(const Call& call, std::size_t index, const char* name,
                                                       std::int64_t head_dim) const {
  if (!call.has_input(index)) call.refuse(std::string(name) + " is missing");
  want(call, name, call.shape(index), {1, shape_.kv_heads, 1, head_dim});
  return call.input<float>(index);
}

template <class CacheKind>
void CachedAttentionOp<CacheKind>::run(Call& call, Parallel& parallel) const {
  const AttentionInputs inputs = read(call);
  const AttentionShape shape = complete(shape_, call, head_dim_of(call.shape(kPastKey)), kCosines);
  attend(shape, inputs, level_for(shape.head_dim, level_), parallel);
}

template class CachedAttentionOp<FloatCache>;
template class CachedAttentionOp<Int8Cache>;
template class CachedAttentionOp<Fp16Cache>;
template class CachedAttentionOp<SharedCache>;
template class CachedAttentionOp<WindowedCache>;
template class CachedAttentionOp<Int8WindowedCache>;
template class CachedAttentionOp<Fp16WindowedCache>;
template class CachedAttentionOp<Int8PerTokenCache>;
template class CachedAttentionOp<Int8PerTokenWindowedCache>;
template class CachedAttentionOp<Int8PerTokenSharedCache>;

}  // namespace edgeformer
