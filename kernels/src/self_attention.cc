#include <algorithm>

#include "attention.h"
#include "attention_work.h"

namespace edgeformer {
namespace {

// Tokens ahead of the one that is copied whose numbers are prefetched. A head's numbers of neighbouring tokens lie a row of
// all heads apart, mostly on another page, where the hardware prefetches nothing.
constexpr std::size_t kTokensAhead = 16;

// Returns `from`, and prefetches what lies kTokensAhead tokens behind it. stride: floats from token to token.
const float* prefetched(const float* from, std::size_t stride, std::size_t count) {
  constexpr std::size_t kFloatsOfLine = kCacheLine / sizeof(float);
  for (std::size_t i = 0; i < count; i += kFloatsOfLine) __builtin_prefetch(from + kTokensAhead * stride + i);
  return from;
}

// One call of attend_to_itself. A chunk is some blocks of queries that share a head of keys and values. It copies those
// which it needs, rotated, into memory of its thread, where tiles find them side by side: that is a hundredth of the work for
// 128 queries in float32, and less than to write all of them for all threads, and to wait.
class SelfAttention {
 public:
  SelfAttention(const AttentionShape& shape, const AttentionInputs& inputs, const Level& level)
      : shape_(shape), in_(inputs), level_(level), width_(whole_lanes(shape.head_dim, level)) {}

  void run(Parallel& parallel) const {
    const std::size_t heads = in_.rows * shape_.kv_heads, threads = parallel.threads();
    const int at_once = tokens_at_once(in_.new_tokens, heads, group(), threads);
    const std::size_t blocks = (in_.new_tokens + at_once - 1) / at_once;
    const std::size_t parts = std::clamp<std::size_t>(2 * kChunksPerThread * threads / heads, 1, blocks);
    parallel.run(heads * parts, Task([&](std::size_t chunk) {
                   const std::size_t part = chunk % parts, head = chunk / parts;
                   const int first = static_cast<int>(part * blocks / parts) * at_once;
                   const int end = std::min(static_cast<int>((part + 1) * blocks / parts) * at_once, in_.new_tokens);
                   attend_part(head / shape_.kv_heads, static_cast<int>(head % shape_.kv_heads), first, end, at_once);
                 }));
  }

 private:
  int group() const { return shape_.heads_per_group(); }
  std::size_t token(std::size_t row, int index) const { return row * in_.new_tokens + index; }
  std::size_t output_stride() const { return static_cast<std::size_t>(shape_.query_heads) * shape_.head_dim; }

  void attend_part(std::size_t row, int kv_head, int first, int end, int at_once) const {
    const int valid = in_.last_positions[row] + 1, d = shape_.head_dim, width = static_cast<int>(width_);
    const int last = std::clamp(valid, first, end);
    const std::size_t stride = output_stride(), of_group = static_cast<std::size_t>(kv_head) * group() * d;
    float* output = in_.output + of_group;
    for (int padding = last; padding < end; ++padding) std::fill_n(output + token(row, padding) * stride, group() * d, 0.0f);
    if (first == last) return;
    const int seen = shape_.causal ? last : valid;
    AttentionMemory& memory = attention_memory_of_thread();
    const float *keys = copy_keys(row, kv_head, seen, memory), *values = copy_values(row, kv_head, seen, memory);
    for (; first < last; first += at_once) {
      const int count = std::min(at_once, last - first);
      const float* bias = in_.bias;
      if (bias != nullptr) {
        bias += row * in_.bias_row_stride + kv_head * group() * in_.bias_head_stride + first * in_.bias_token_stride;
      }
      const AttentionRows rows{copy_queries(row, kv_head, first, count, memory), count * group(), group(), width, first,
                               keys, values, seen, shape_.causal, shape_.window, shape_.softcap, bias,
                               in_.bias_head_stride, in_.bias_token_stride, Stored::kFloat,
                               shape_.rounds(in_.new_tokens, valid)};
      const int whole = whole_tiles(rows.rows);
      const AttentionSums sums = sums_at(memory.sums.at_least(whole * (width_ + 2)), whole, width);
      level_.attend_many(rows, sums, memory.work.at_least(attention_scratch(rows.rows, width)));
      const float* sinks = in_.sinks != nullptr ? in_.sinks + kv_head * group() : nullptr;
      divide_by_weights(rows, sums, sinks, nullptr, d, output + token(row, first) * stride, stride);
    }
  }

  Rotation rotation_at(int position) const {
    if (shape_.rotary_dim == 0) return {shape_.head_dim, 0, false, nullptr, nullptr};
    const std::size_t angle = static_cast<std::size_t>(position) * (shape_.rotary_dim / 2);
    return {shape_.head_dim, shape_.rotary_dim, shape_.interleaved, in_.cosines + angle, in_.sines + angle};
  }

  const float* copy_queries(std::size_t row, int kv_head, int first, int count, AttentionMemory& memory) const {
    const std::size_t d = shape_.head_dim;
    float* const copies = memory.queries.at_least(count * group() * width_);
    for (int index = 0; index < count; ++index) {
      const float* from = prefetched(in_.queries + token(row, first + index) * in_.query_stride + kv_head * group() * d,
                                     in_.query_stride, group() * d);
      for (int head = 0; head < group(); ++head) {
        rotate(first + index, from + head * d, shape_.scale, copies + (index * group() + head) * width_);
      }
    }
    return copies;
  }

  void rotate(int position, const float* from, float scale, float* to) const {
    level_.rotate(rotation_at(position), from, scale, to);
    std::fill(to + shape_.head_dim, to + width_, 0.0f);
  }

  const float* copy_keys(std::size_t row, int kv_head, int count, AttentionMemory& memory) const {
    const std::size_t d = shape_.head_dim;
    float* const copies = memory.keys.at_least(count * width_);
    for (int index = 0; index < count; ++index) {
      const float* from = prefetched(in_.keys + token(row, index) * in_.kv_stride + kv_head * d, in_.kv_stride, d);
      rotate(index, from, 1.0f, copies + index * width_);
    }
    return copies;
  }

  const float* copy_values(std::size_t row, int kv_head, int count, AttentionMemory& memory) const {
    const std::size_t d = shape_.head_dim;
    float* const copies = memory.values.at_least(count * width_);
    for (int index = 0; index < count; ++index) {
      const float* from = prefetched(in_.values + token(row, index) * in_.kv_stride + kv_head * d, in_.kv_stride, d);
      float* to = std::copy_n(from, d, copies + index * width_);
      std::fill(to, copies + (index + 1) * width_, 0.0f);
    }
    return copies;
  }

  const AttentionShape& shape_;
  const AttentionInputs& in_;
  const Level& level_;
  const std::size_t width_;  // of copies of a head
};

}  // namespace

void attend_to_itself(const AttentionShape& shape, const AttentionInputs& inputs, const Level& level, Parallel& parallel) {
  if (inputs.rows > 0 && inputs.new_tokens > 0) SelfAttention(shape, inputs, level).run(parallel);
}

}  // namespace edgeformer
