#include "attention_inputs.h"

#include <algorithm>
#include <cmath>

namespace edgeformer {
namespace {

std::string text_of(const Sizes& sizes) {
  std::string text = "[";
  for (std::int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace

void want(const Call& call, const char* name, const Sizes& found, const Sizes& wanted) {
  if (found != wanted) call.refuse(std::string(name) + " has the shape " + text_of(found) + ", not " + text_of(wanted));
}

AttentionShape attention_shape_of(const Node& node) {
  AttentionShape shape{};
  shape.query_heads = node.positive("num_heads");
  shape.kv_heads = node.positive("kv_num_heads");
  if (shape.query_heads % shape.kv_heads != 0) node.refuse("num_heads must be a multiple of kv_num_heads");
  shape.interleaved = node.integer("rotary_interleaved") != 0;
  const std::int64_t window = node.integer("local_window_size");
  shape.window = window > 0 ? static_cast<int>(std::min<std::int64_t>(window, 1 << 30)) : 0;
  shape.scale = node.number("scale");
  shape.softcap = node.number("softcap");
  shape.may_round = !node.has_flag("keeps_float32");
  return shape;
}

void check_head_dim(const Call& call, std::int64_t head_dim) {
  if (head_dim < 8 || head_dim % 8 != 0 || head_dim > 1 << 16) call.refuse("head_dim must be a multiple of 8");
}

void read_queries(const Call& call, const AttentionShape& shape, std::int64_t rows, std::int64_t tokens,
                  std::int64_t keys, std::int64_t head_dim, AttentionInputs& to) {
  const std::int64_t kv_heads = shape.kv_heads;
  const Sizes query = call.shape(0);
  const bool packed = !call.has_input(1);
  want(call, "query", query, {rows, tokens, head_dim * (shape.query_heads + (packed ? 2 * kv_heads : 0))});
  if (!packed) {
    want(call, "key", call.shape(1), {rows, keys, kv_heads * head_dim});
    want(call, "value", call.shape(2), {rows, keys, kv_heads * head_dim});
  }
  to.rows = rows;
  to.new_tokens = static_cast<int>(tokens);
  to.query_stride = query[2];
  to.queries = call.input<float>(0);
  to.kv_stride = packed ? query[2] : kv_heads * head_dim;
  to.keys = packed ? to.queries + shape.query_heads * head_dim : call.input<float>(1);
  to.values = packed ? to.keys + kv_heads * head_dim : call.input<float>(2);
}

std::int64_t read_total(const Call& call, std::size_t index) {
  for (const std::int64_t size : call.shape(index)) {
    if (size != 1) call.refuse("total_sequence_length must be one number");
  }
  return call.input<std::int32_t>(index)[0];
}

std::int64_t read_angles(const Call& call, std::size_t first, std::int64_t head_dim, std::int64_t most, AttentionInputs& to) {
  if (!call.has_input(first)) return most;
  const Sizes angles = call.shape(first);
  if (angles.size() != 2 || angles[1] * 2 > head_dim) call.refuse("cos_cache must be [positions, up to head_dim / 2]");
  want(call, "sin_cache", call.shape(first + 1), angles);
  to.cosines = call.input<float>(first);
  to.sines = call.input<float>(first + 1);
  return std::min(most, angles[0]);
}

void read_bias_and_sinks(const Call& call, std::size_t first, const AttentionShape& shape, std::int64_t tokens,
                         std::int64_t total, AttentionInputs& to) {
  if (call.has_input(first)) {
    const Sizes bias = call.shape(first);
    if (bias.size() != 4) call.refuse("attention_bias must have 4 dimensions");
    const std::int64_t rows = static_cast<std::int64_t>(to.rows);
    want(call, "attention_bias", bias, {bias[0] == 1 ? 1 : rows, bias[1] == 1 ? 1 : shape.query_heads, tokens, total});
    to.bias = call.input<float>(first);
    to.bias_token_stride = total;
    to.bias_head_stride = bias[1] == 1 ? 0 : tokens * total;
    to.bias_row_stride = bias[0] == 1 ? 0 : bias[1] * tokens * total;
  }
  if (call.has_input(first + 1)) {
    want(call, "head_sink", call.shape(first + 1), {shape.query_heads});
    to.sinks = call.input<float>(first + 1);
  }
}

float attention_scale(float scale, std::int64_t head_dim) {
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<float>(head_dim));
}

AttentionShape complete(AttentionShape shape, const Call& call, std::int64_t head_dim, std::size_t cosines) {
  shape.head_dim = static_cast<int>(head_dim);
  shape.rotary_dim = call.has_input(cosines) ? static_cast<int>(2 * call.shape(cosines)[1]) : 0;
  shape.scale = attention_scale(shape.scale, head_dim);
  return shape;
}

}  // namespace edgeformer
