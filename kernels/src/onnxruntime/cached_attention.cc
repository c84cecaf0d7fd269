#include "cached_attention.h"

#include <algorithm>
#include <cmath>

namespace edgeformer {
namespace {

using Sizes = std::vector<std::int64_t>;

enum Input {
  kQuery, kKey, kValue, kPastKey, kPastValue, kLastPositions, kTotal, kCosines, kSines, kBias, kSinks
};

std::string text_of(const Sizes& sizes) {
  std::string text = "[";
  for (std::int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

void want(const Call& call, const char* name, const Sizes& found, const Sizes& wanted) {
  if (found != wanted) call.refuse(std::string(name) + " has the shape " + text_of(found) + ", not " + text_of(wanted));
}

}  // namespace

CachedAttention::CachedAttention(const Node& node) : level_(node.level()) {
  shape_.query_heads = node.positive("num_heads");
  shape_.kv_heads = node.positive("kv_num_heads");
  if (shape_.query_heads % shape_.kv_heads != 0) node.refuse("num_heads must be a multiple of kv_num_heads");
  shape_.interleaved = node.integer("rotary_interleaved") != 0;
  const std::int64_t window = node.integer("local_window_size");
  shape_.window = window > 0 ? static_cast<int>(std::min<std::int64_t>(window, 1 << 30)) : 0;
  shape_.scale = node.number("scale");
  shape_.softcap = node.number("softcap");
}

AttentionInputs CachedAttention::read(Call& call) const {
  const Sizes query = call.shape(kQuery), past = call.shape(kPastKey);
  if (query.size() != 3 || past.size() != 4) call.refuse("query must have 3 dimensions, and past_key 4");
  const std::int64_t rows = query[0], tokens = query[1], head_dim = past[3], kv_heads = shape_.kv_heads;
  const bool packed = !call.has_input(kKey);
  want(call, "query", query, {rows, tokens, head_dim * (shape_.query_heads + (packed ? 2 * kv_heads : 0))});
  want(call, "past_key", past, {rows, kv_heads, past[2], head_dim});
  want(call, "past_value", call.shape(kPastValue), past);
  if (head_dim < 8 || head_dim % 8 != 0 || head_dim > 1 << 16) call.refuse("head_dim must be a multiple of 8");
  if (!packed) {
    want(call, "key", call.shape(kKey), {rows, tokens, kv_heads * head_dim});
    want(call, "value", call.shape(kValue), {rows, tokens, kv_heads * head_dim});
  }
  want(call, "seqlens_k", call.shape(kLastPositions), {rows});

  AttentionInputs in{};
  in.rows = rows;
  in.new_tokens = static_cast<int>(tokens);
  in.query_stride = query[2];
  in.queries = call.input<float>(kQuery);
  in.kv_stride = packed ? query[2] : kv_heads * head_dim;
  in.keys = packed ? in.queries + shape_.query_heads * head_dim : call.input<float>(kKey);
  in.values = packed ? in.keys + kv_heads * head_dim : call.input<float>(kValue);
  in.last_positions = call.input<std::int32_t>(kLastPositions);

  for (const std::int64_t size : call.shape(kTotal)) {
    if (size != 1) call.refuse("total_sequence_length must be one number");
  }
  const std::int64_t total = call.input<std::int32_t>(kTotal)[0];
  in.is_prompt = total == tokens;
  const Sizes present = {rows, kv_heads, std::max(past[2], total), head_dim};
  std::int64_t positions = present[2];
  if (call.has_input(kCosines)) {
    const Sizes angles = call.shape(kCosines);
    if (angles.size() != 2 || angles[1] * 2 > head_dim) call.refuse("cos_cache must be [positions, up to head_dim / 2]");
    want(call, "sin_cache", call.shape(kSines), angles);
    positions = std::min(positions, angles[0]);
    in.cosines = call.input<float>(kCosines);
    in.sines = call.input<float>(kSines);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t valid = std::int64_t{in.last_positions[row]} + 1;
    const std::int64_t end = in.is_prompt ? std::max(valid, tokens) : valid;
    if (valid < (in.is_prompt ? 0 : tokens) || end > std::min(positions, total)) {
      call.refuse("row " + std::to_string(row) + " has " + std::to_string(valid) + " tokens, " + std::to_string(tokens) +
                  " of them new, where there is room for " + std::to_string(std::min(positions, total)));
    }
    if (!in.is_prompt && valid - tokens > past[2]) call.refuse("past_key is shorter than the tokens before the new ones");
  }
  if (call.has_input(kBias)) {
    const Sizes bias = call.shape(kBias);
    if (bias.size() != 4) call.refuse("attention_bias must have 4 dimensions");
    want(call, "attention_bias", bias, {bias[0] == 1 ? 1 : rows, bias[1] == 1 ? 1 : shape_.query_heads, tokens, total});
    in.bias = call.input<float>(kBias);
    in.bias_token_stride = total;
    in.bias_head_stride = bias[1] == 1 ? 0 : tokens * total;
    in.bias_row_stride = bias[0] == 1 ? 0 : bias[1] * tokens * total;
  }
  if (call.has_input(kSinks)) {
    want(call, "head_sink", call.shape(kSinks), {shape_.query_heads});
    in.sinks = call.input<float>(kSinks);
  }
  in.output = call.output<float>(0, {rows, tokens, shape_.query_heads * head_dim});
  in.keys_cache = {call.input<float>(kPastKey), std::size_t(past[2]), call.output<float>(1, present), std::size_t(present[2])};
  in.values_cache = {call.input<float>(kPastValue), std::size_t(past[2]), call.output<float>(2, present),
                     std::size_t(present[2])};
  return in;
}

void CachedAttention::run(Call& call, Parallel& parallel) const {
  const AttentionInputs inputs = read(call);
  AttentionShape shape = shape_;
  shape.head_dim = static_cast<int>(call.shape(kPastKey)[3]);
  shape.rotary_dim = inputs.cosines != nullptr ? static_cast<int>(2 * call.shape(kCosines)[1]) : 0;
  if (shape.scale == 0) shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  attend(shape, inputs, level_for(shape.head_dim, level_), parallel);
}

}  // namespace edgeformer
