#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attention_work.h"
#include "half.h"

namespace edgeformer {
namespace {

// Bytes of keys and values that are worth a thread's start.
constexpr std::size_t kBytesOfAStart = 64 << 10;

// One call of attend.
template <Stored kStored>
class Attention {
  using T = StoredNumber<kStored>;
  static constexpr bool kHasChannelScales = kStored == Stored::kInt8;

 public:
  Attention(const AttentionShape& shape, const AttentionInputs& inputs, const Level& level, Parallel& parallel)
      : shape_(shape), in_(inputs), level_(level), parallel_(parallel) {
    const std::size_t size = in_.rows * in_.new_tokens * shape_.query_heads * shape_.head_dim;
    queries_ = attention_memory_of_thread().queries.at_least(size);
    if (!shape_.evicts) return;
    for (std::size_t row = 0; row < in_.rows; ++row) some_apart_ |= is_apart(row);
    if (some_apart_) {
      const std::size_t bytes = 2 * in_.rows * shape_.kv_heads * capacity_apart() * width() * sizeof(T);
      apart_ = reinterpret_cast<T*>(attention_memory_of_thread().apart.at_least(bytes / sizeof(float) + 1));
    }
  }

  void run() {
    shape_.evicts ? move_past() : copy_past();
    prepare_tokens();
    in_.new_tokens == 1 ? attend_one_token() : attend_many_tokens();
    if (some_apart_) keep_last();
  }

 private:
  int group() const { return shape_.heads_per_group(); }
  std::size_t width() const { return stored_width(kStored, shape_.head_dim); }
  int valid(std::size_t row) const { return in_.last_positions[row] + 1; }
  int past(std::size_t row) const { return in_.is_prompt ? 0 : valid(row) - in_.new_tokens; }

  // The tokens of a row, and its lengths:
  //
  //     evicted          stored(past)           new_tokens
  //   ···········|──────────────────────────|───────────────|
  //   |────────────── past ─────────────────|
  //   |─────────────────────── valid ───────────────────────|
  //                  |────── kept ──────────|                  where new tokens are written: behind `kept`
  //                      |── seen_of_past ──|                  what the first new token sees: window − 1 at most
  //
  // A cache that evicts had `stored` tokens of the past, and keeps the last `kept` of them in front of the new ones. A
  // cache that does not evict keeps all: kept = past. A prompt has no past.
  int stored(int length) const {
    return stored_tokens(length, shape_.window, static_cast<int>(in_.keys_cache.present_capacity));
  }
  int seen_of_past(std::size_t row) const { return std::min(stored(past(row)), shape_.window - 1); }
  int kept(std::size_t row) const {
    if (!shape_.evicts || in_.is_prompt) return past(row);
    return is_apart(row) ? seen_of_past(row) : stored(valid(row)) - in_.new_tokens;
  }

  // Whether the cache has no room for all that new tokens see: then it gets its tokens behind them, from other memory.
  bool is_apart(std::size_t row) const {
    if (!shape_.evicts) return false;
    if (in_.is_prompt) return in_.new_tokens > static_cast<int>(in_.keys_cache.present_capacity);
    return stored(valid(row)) - in_.new_tokens < seen_of_past(row);
  }
  std::size_t capacity_apart() const { return shape_.window - 1 + in_.new_tokens; }

  // Tokens of a row from the first one that is kept.
  T* of_head(const Cache& cache, std::size_t row, int kv_head) const {
    const std::size_t head = row * shape_.kv_heads + kv_head;
    if (some_apart_ && is_apart(row)) {
      const std::size_t of_values = &cache == &in_.values_cache ? in_.rows * shape_.kv_heads : 0;
      return apart_ + (of_values + head) * capacity_apart() * width();
    }
    return present(cache, head);
  }
  T* present(const Cache& cache, std::size_t head) const {
    return static_cast<T*>(cache.present) + head * cache.present_capacity * width();
  }

  // Rotated queries, so that those which read the same keys are neighbours: [rows][kv_heads][new_tokens][group][head_dim]
  float* queries(std::size_t row, int kv_head, int token) const {
    return queries_ + ((row * shape_.kv_heads + kv_head) * in_.new_tokens + token) * group() * shape_.head_dim;
  }

  float* output(std::size_t row, int token, int head) const {
    return in_.output + ((row * in_.new_tokens + token) * shape_.query_heads + head) * shape_.head_dim;
  }

  // Where past and present are two buffers. What lies behind the valid keys becomes 0.
  void copy_past() {
    for (const Cache* each : {&in_.keys_cache, &in_.values_cache}) {
      const Cache& cache = *each;
      if (cache.past == cache.present) continue;
      parallel_.run(in_.rows * shape_.kv_heads, Task([&](std::size_t head) {
                      const std::size_t kept = past(head / shape_.kv_heads) * width(), all = cache.present_capacity * width();
                      T* to = present(cache, head);
                      const T* from = static_cast<const T*>(cache.past) + head * cache.past_capacity * width();
                      if (kept > 0) std::copy_n(from, kept, to);
                      std::fill(to + kept, to + all, T{});
                    }));
    }
  }

  // Calls f(cache, row, kv_head) for the keys and for the values of every head.
  template <class F>
  void for_each_head(F f) {
    parallel_.run(2 * in_.rows * shape_.kv_heads, Task([&](std::size_t chunk) {
                    const std::size_t head = chunk / 2;
                    f(chunk % 2 == 0 ? in_.keys_cache : in_.values_cache, head / shape_.kv_heads,
                      static_cast<int>(head % shape_.kv_heads));
                  }));
  }

  // Puts what is kept of the past in front of the new tokens.
  void move_past() {
    bool stays = in_.keys_cache.past == in_.keys_cache.present && in_.values_cache.past == in_.values_cache.present;
    for (std::size_t row = 0; row < in_.rows; ++row) stays = stays && !is_apart(row) && kept(row) == stored(past(row));
    if (stays) return;
    for_each_head([&](const Cache& cache, std::size_t row, int kv_head) {
      const std::size_t d = width(), head = row * shape_.kv_heads + kv_head, size = kept(row) * d;
      const T* from = static_cast<const T*>(cache.past) + head * cache.past_capacity * d + stored(past(row)) * d - size;
      T* to = of_head(cache, row, kv_head);
      if (size > 0) std::memmove(to, from, size * sizeof(T));
      if (cache.past == cache.present || is_apart(row)) return;
      std::fill(to + size, to + cache.present_capacity * d, T{});
    });
  }

  // Gives the cache the last tokens of rows that are apart.
  void keep_last() {
    for_each_head([&](const Cache& cache, std::size_t row, int kv_head) {
      if (!is_apart(row)) return;
      const std::size_t d = width(), tokens = stored(valid(row));
      const T* end = of_head(cache, row, kv_head) + (kept(row) + valid(row) - past(row)) * d;
      T* to = std::copy_n(end - tokens * d, tokens * d, present(cache, row * shape_.kv_heads + kv_head));
      std::fill_n(to, (cache.present_capacity - tokens) * d, T{});
    });
  }

  void prepare_tokens() {
    const std::size_t tokens = in_.rows * in_.new_tokens;
    const std::size_t chunks = std::min(tokens / 8, kChunksPerThread * parallel_.threads());
    if (chunks < 2) {
      for (std::size_t token = 0; token < tokens; ++token) prepare_token(token);
      return;
    }
    parallel_.run(chunks, Task([&](std::size_t chunk) {
                    const std::size_t end = (chunk + 1) * tokens / chunks;
                    for (std::size_t token = chunk * tokens / chunks; token < end; ++token) prepare_token(token);
                  }));
  }

  // Rotates the queries of a token, and writes its keys and values into the cache.
  void prepare_token(std::size_t index) {
    const std::size_t row = index / in_.new_tokens;
    const int token = static_cast<int>(index % in_.new_tokens), position = past(row) + token;
    const std::size_t angle = static_cast<std::size_t>(position) * (shape_.rotary_dim / 2);
    const Rotation rotation{shape_.head_dim, shape_.rotary_dim, shape_.interleaved,
                            shape_.rotary_dim > 0 ? in_.cosines + angle : nullptr,
                            shape_.rotary_dim > 0 ? in_.sines + angle : nullptr};
    for (int head = 0; head < shape_.query_heads; ++head) {
      const float* from = in_.queries + index * in_.query_stride + static_cast<std::size_t>(head) * shape_.head_dim;
      float* to = queries(row, head / group(), token) + static_cast<std::size_t>(head % group()) * shape_.head_dim;
      level_.rotate(rotation, from, shape_.scale, to);
      // The scales of keys belong to queries, so that integers of keys are multiplied as they are.
      if constexpr (kHasChannelScales) multiply(to, scales_of(in_.keys_cache, head / group()));
    }
    if (in_.keys == nullptr) return;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const std::size_t from = index * in_.kv_stride + static_cast<std::size_t>(head) * shape_.head_dim;
      const std::size_t at = (kept(row) + token) * width();
      T *key = of_head(in_.keys_cache, row, head) + at, *value = of_head(in_.values_cache, row, head) + at;
      if constexpr (kStored == Stored::kFloat) {
        level_.rotate(rotation, in_.keys + from, 1.0f, key);
        std::copy_n(in_.values + from, shape_.head_dim, value);
        continue;
      }
      float* rotated = attention_memory_of_thread().keys.at_least(shape_.head_dim);
      level_.rotate(rotation, in_.keys + from, 1.0f, rotated);
      round(rotated, in_.keys_cache, head, key);
      round(in_.values + from, in_.values_cache, head, value);
    }
  }

  void round(const float* x, const Cache& cache, int kv_head, T* to) const {
    const int count = shape_.head_dim;
    if constexpr (kStored == Stored::kHalf) level_.round_to_half(x, count, to);
    if constexpr (kStored == Stored::kInt8) level_.round_to_int8(x, scales_of(cache, kv_head), count, to);
    if constexpr (kStored == Stored::kInt8PerToken) level_.round_to_int8_per_token(x, count, to);
  }

  // Of a head's channels; null where these have none.
  const float* scales_of(const Cache& cache, int kv_head) const {
    return kHasChannelScales ? cache.scales + static_cast<std::size_t>(kv_head) * shape_.head_dim : nullptr;
  }

  void multiply(float* x, const float* scales) const {
    for (int d = 0; d < shape_.head_dim; ++d) x[d] *= scales[d];
  }

  AttentionRows rows_of(std::size_t row, int kv_head, int token, int tokens) const {
    const float* bias = in_.bias;
    const int evicted = past(row) - kept(row);
    if (bias != nullptr) {
      bias += evicted + row * in_.bias_row_stride + kv_head * group() * in_.bias_head_stride + token * in_.bias_token_stride;
    }
    return {queries(row, kv_head, token), tokens * group(), group(), shape_.head_dim, kept(row) + token,
            of_head(in_.keys_cache, row, kv_head), of_head(in_.values_cache, row, kv_head), valid(row) - evicted,
            shape_.causal, shape_.window, shape_.softcap, bias, in_.bias_head_stride, in_.bias_token_stride, kStored,
            shape_.rounds(in_.new_tokens, valid(row))};
  }

  // Keys and values of one head of a row: parts of kKeysAtOnce keys, which are summed each by itself.
  struct Head {
    std::size_t row;
    int kv_head;
    AttentionRows rows;
    std::size_t first_part;
    int parts() const { return (rows.end_of_keys(0) - rows.first_key(0) + kKeysAtOnce - 1) / kKeysAtOnce; }
  };

  // Threads share out heads; or the parts of few heads, so that these keep many threads busy.
  void attend_one_token() {
    std::vector<Head> heads;
    std::vector<std::size_t> head_of_part;
    for (std::size_t row = 0; row < in_.rows; ++row) {
      for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
        heads.push_back({row, kv_head, rows_of(row, kv_head, 0, 1), head_of_part.size()});
        head_of_part.resize(head_of_part.size() + heads.back().parts(), heads.size() - 1);
      }
    }
    const std::size_t parts = head_of_part.size(), bytes = parts * 2 * kKeysAtOnce * width() * sizeof(T);
    float* sums = attention_memory_of_thread().sums.at_least(parts * floats_of_part());
    const std::size_t most = bytes < kBytesOfAStart ? 1 : kChunksPerThread * parallel_.threads();
    if (heads.size() >= most) {
      return parallel_.run(most, Task([&](std::size_t chunk) {
                             const std::size_t end = (chunk + 1) * heads.size() / most;
                             for (std::size_t i = chunk * heads.size() / most; i < end; ++i) {
                               const Head* next = i + 1 < end ? &heads[i + 1] : nullptr;
                               for (int part = 0; part < heads[i].parts(); ++part) attend_part(heads[i], part, next, sums);
                               join(heads[i], sums);
                             }
                           }));
    }
    const std::size_t chunks = std::min(parts, most);
    parallel_.run(chunks, Task([&](std::size_t chunk) {
                    const std::size_t end = (chunk + 1) * parts / chunks;
                    for (std::size_t i = chunk * parts / chunks; i < end; ++i) {
                      const Head& head = heads[head_of_part[i]];
                      const Head* next = i + 1 < end ? &heads[head_of_part[i + 1]] : nullptr;
                      attend_part(head, static_cast<int>(i - head.first_part), next, sums);
                    }
                  }));
    for (const Head& head : heads) join(head, sums);
  }

  std::size_t floats_of_part() const { return static_cast<std::size_t>(group()) * (shape_.head_dim + 2); }
  AttentionSums sums_of(const Head& head, int part, float* sums) const {
    return sums_at(sums + (head.first_part + part) * floats_of_part(), group(), shape_.head_dim);
  }

  // next: the head whose parts follow those of this one, or null.
  void attend_part(const Head& head, int part, const Head* next, float* sums) const {
    AttentionRows rows = head.rows;
    rows.may_round = shape_.may_round;
    const int begin = rows.first_key(0) + part * kKeysAtOnce, end = std::min(begin + kKeysAtOnce, rows.end_of_keys(0));
    if (end < rows.end_of_keys(0)) {
      rows.keys_ahead = keys_from(rows, end);
    } else if (next != nullptr) {
      rows.keys_ahead = keys_from(next->rows, next->rows.first_key(0));
    }
    level_.attend_one(rows, begin, end, sums_of(head, part, sums));
  }
  const T* keys_from(const AttentionRows& rows, int key) const {
    return static_cast<const T*>(rows.keys) + key * width();
  }

  void join(const Head& joined, float* sums) const {
    for (int row = 0; row < group(); ++row) {
      const int head = joined.kv_head * group() + row;
      float largest = in_.sinks != nullptr ? in_.sinks[head] : -INFINITY;
      for (int part = 0; part < joined.parts(); ++part) {
        largest = std::max(largest, sums_of(joined, part, sums).largest[row]);
      }
      if (largest == -INFINITY) largest = 0;  // there are no scores, or one that is not a number
      float weight = in_.sinks != nullptr ? std::exp(in_.sinks[head] - largest) : 0.0f;
      float* to = output(joined.row, 0, head);
      std::fill_n(to, shape_.head_dim, 0.0f);
      for (int part = 0; part < joined.parts(); ++part) {
        const AttentionSums of = sums_of(joined, part, sums);
        const float factor = std::exp(of.largest[row] - largest);
        const float* from = of.outputs + static_cast<std::size_t>(row) * shape_.head_dim;
        for (int d = 0; d < shape_.head_dim; ++d) to[d] += factor * from[d];
        weight += factor * of.weights[row];
      }
      const float inverse = weight == 0 ? 0 : 1 / weight;
      for (int d = 0; d < shape_.head_dim; ++d) to[d] *= inverse;
      if constexpr (kHasChannelScales) multiply(to, scales_of(in_.values_cache, joined.kv_head));
    }
  }

  void attend_many_tokens() {
    const int at_once = tokens_at_once(in_.new_tokens, in_.rows * shape_.kv_heads, group(), parallel_.threads());
    const std::size_t blocks = (in_.new_tokens + at_once - 1) / at_once;
    parallel_.run(in_.rows * shape_.kv_heads * blocks, Task([&](std::size_t chunk) {
                    const std::size_t row = chunk / blocks / shape_.kv_heads;
                    const int kv_head = static_cast<int>(chunk / blocks % shape_.kv_heads);
                    const int token = static_cast<int>(chunk % blocks) * at_once;
                    attend_block(row, kv_head, token, std::min(at_once, in_.new_tokens - token));
                  }));
  }

  void attend_block(std::size_t row, int kv_head, int token, int tokens) {
    const AttentionRows rows = rows_of(row, kv_head, token, tokens);
    AttentionMemory& memory = attention_memory_of_thread();
    const int whole = whole_tiles(rows.rows);
    const std::size_t size = static_cast<std::size_t>(whole) * (shape_.head_dim + 2);
    const AttentionSums sums = sums_at(memory.sums.at_least(size), whole, shape_.head_dim);
    level_.attend_many(rows, sums, memory.work.at_least(attention_scratch(rows.rows, shape_.head_dim)));
    const std::size_t stride = static_cast<std::size_t>(shape_.query_heads) * shape_.head_dim;
    divide_by_weights(rows, sums, in_.sinks != nullptr ? in_.sinks + kv_head * group() : nullptr,
                      scales_of(in_.values_cache, kv_head), shape_.head_dim, output(row, token, kv_head * group()), stride);
  }

  const AttentionShape& shape_;
  const AttentionInputs& in_;
  const Level& level_;
  Parallel& parallel_;
  float* queries_;
  bool some_apart_ = false;
  T* apart_ = nullptr;  // keys, then values: [rows][kv_heads][capacity_apart()][width()]
};

template <class F>
const Level& widest_level(const Level& best, F fits) {
  if (fits(best)) return best;
  const auto here = levels_here();
  for (auto at = std::find(here.begin(), here.end(), &best); at != here.end(); ++at) {
    if (fits(**at)) return **at;
  }
  return *here.back();
}

}  // namespace

const Level& level_for(int head_dim, const Level& best) {
  return widest_level(best, [&](const Level& level) { return head_dim % level.lanes() == 0; });
}

const Level& level_for_copies(int head_dim, const Level& best) {
  return widest_level(best, [&](const Level& level) { return 4 * whole_lanes(head_dim, level) <= 5 * head_dim; });
}

void attend(const AttentionShape& shape, const AttentionInputs& inputs, const Level& level, Parallel& parallel) {
  if (inputs.rows == 0 || inputs.new_tokens == 0) return;
  switch (inputs.keys_cache.stored) {
    case Stored::kFloat: return Attention<Stored::kFloat>(shape, inputs, level, parallel).run();
    case Stored::kHalf: return Attention<Stored::kHalf>(shape, inputs, level, parallel).run();
    case Stored::kInt8: return Attention<Stored::kInt8>(shape, inputs, level, parallel).run();
    case Stored::kInt8PerToken: return Attention<Stored::kInt8PerToken>(shape, inputs, level, parallel).run();
  }
}

}  // namespace edgeformer
