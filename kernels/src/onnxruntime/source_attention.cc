#include "source_attention.h"

#include <limits>

namespace edgeformer {
namespace {

struct SourceInput {
  enum Name { kQuery, kKey, kValue, kMask };
};

// Which tokens of a source are seen.
struct Seen {
  std::vector<std::int32_t> last_positions;  // of each row: of the last token that is seen
  std::vector<float> bias;                   // [rows][source]: hides tokens before the last one; empty if there are none
};

Seen seen_by(const std::int32_t* mask, std::int64_t rows, std::int64_t source) {
  Seen seen;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int32_t* of_row = mask + row * source;
    std::int64_t last = source - 1;
    while (last >= 0 && of_row[last] == 0) --last;
    seen.last_positions.push_back(static_cast<std::int32_t>(last));
    for (std::int64_t token = 0; token < last; ++token) {
      if (of_row[token] != 0) continue;
      seen.bias.resize(rows * source);
      seen.bias[row * source + token] = -std::numeric_limits<float>::infinity();
    }
  }
  return seen;
}

}  // namespace

void SourceAttention::run(Call& call, Parallel& parallel) const {
  const Sizes query = call.shape(SourceInput::kQuery), key = call.shape(SourceInput::kKey);
  if (query.size() != 3 || key.size() != 4) call.refuse("query must have 3 dimensions, and key 4");
  const std::int64_t rows = query[0], tokens = query[1], source = key[2], head_dim = key[3];
  check_head_dim(call, head_dim);
  want(call, "query", query, {rows, tokens, heads_ * head_dim});
  want(call, "key", key, {rows, heads_, source, head_dim});
  want(call, "value", call.shape(SourceInput::kValue), key);
  want(call, "key_padding_mask", call.shape(SourceInput::kMask), {rows, source});

  const Seen seen = seen_by(call.input<std::int32_t>(SourceInput::kMask), rows, source);
  // Nothing is written, since there are no new keys. As if it were a prompt, since lengths do not count queries.
  const auto cache = [&](SourceInput::Name input) {
    const float* memory = call.input<float>(input);
    return Cache{memory, static_cast<std::size_t>(source), const_cast<float*>(memory), static_cast<std::size_t>(source)};
  };
  AttentionInputs in{};
  in.rows = rows;
  in.new_tokens = static_cast<int>(tokens);
  in.queries = call.input<float>(SourceInput::kQuery);
  in.query_stride = query[2];
  in.last_positions = seen.last_positions.data();
  in.is_prompt = true;
  in.bias = seen.bias.empty() ? nullptr : seen.bias.data();
  in.bias_row_stride = source;
  in.keys_cache = cache(SourceInput::kKey);
  in.values_cache = cache(SourceInput::kValue);
  in.output = call.output<float>(0, query);
  AttentionShape shape{heads_, heads_, static_cast<int>(head_dim)};
  shape.causal = false;
  shape.scale = attention_scale(scale_, head_dim);
  attend(shape, in, level_for(shape.head_dim, level_), parallel);
}

}  // namespace edgeformer
