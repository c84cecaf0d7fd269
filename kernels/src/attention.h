// Attention over a cache, fused with the rotation of queries and keys and with the append of keys and values.
//
// Query heads in groups of equal size share a head of keys and values. For new token s of a row with `valid` keys, of
// which `past` were there before,
//
//     score[t] = cap · tanh(q · k[t] / cap) + bias[s, t]      (without the cap where it is 0)
//     y        = Σ_t  e^score[t] · v[t]  /  (e^sink + Σ_t e^score[t])
//
// over the keys t < valid that token past + s may see: none after itself if attention is causal, and no more than
// `window` up to itself if there is a window. Where it sees none, y is 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "level.h"
#include "parallel.h"

namespace edgeformer {

struct AttentionShape {
  int query_heads, kv_heads, head_dim;
  int rotary_dim = 0;        // of a head, rotated; 0: nothing is
  bool interleaved = false;  // rotates neighbours instead of halves
  bool causal = true;
  int window = 0;            // 0: none
  bool evicts = false;       // the cache keeps what a window needs: see stored_tokens
  float scale = 1;           // of queries
  float softcap = 0;
  bool may_round = true;     // products may be of fewer bits, where the level has them: see AttentionRows

  int heads_per_group() const { return query_heads / kv_heads; }

  // From so many new tokens, and keys of a row, on, products may round: shorter prompts spend little time in them, and a step
  // that checks drafts should give what a step of one token gives. Graphs that allow it round the activations of all other
  // products to 8 bits.
  bool rounds(int new_tokens, int keys) const { return may_round && new_tokens >= 64 && keys > 256; }
};

// The keys or values of all rows: [rows][kv_heads][capacity][stored_width]. Numbers are floats or halves; or int8, of which
// each stands for itself times a scale. New ones are rounded before a query meets them.
struct Cache {
  const void* past;  // may be null, and may be `present`: then nothing is copied
  std::size_t past_capacity;
  void* present;
  std::size_t present_capacity;
  Stored stored = Stored::kFloat;  // keys and values are of one type
  const float* scales = nullptr;   // [kv_heads][head_dim], of kInt8
};

struct AttentionInputs {
  std::size_t rows;
  int new_tokens;
  // New tokens of queries, keys and values, and floats from a token to the next: [rows][new_tokens][heads][head_dim].
  // Without keys and values, the cache already has those of the new tokens.
  const float *queries, *keys, *values;
  std::size_t query_stride, kv_stride;
  const float *cosines, *sines;       // [positions][rotary_dim / 2]
  const std::int32_t* last_positions;  // [rows]: of the last new token; keys that are valid, minus one
  bool is_prompt;                     // the new tokens are the first ones, and shorter rows are padded behind
  const float* bias;                  // or null; see strides
  std::size_t bias_row_stride, bias_head_stride, bias_token_stride;
  const float* sinks;                 // [query_heads], or null
  Cache keys_cache, values_cache;
  float* output;                      // [rows][new_tokens][query_heads][head_dim]
};

// Tokens that a cache which evicts has of a text of `length`: the last ones, in order. It is filled, and then keeps the
// last `window` again. capacity is no less than window.
inline int stored_tokens(int length, int window, int capacity) {
  return length <= capacity ? length : (length - capacity - 1) % (capacity - window + 1) + window;
}

// The level whose kernels compute heads of this size: the given one, which runs here, or a narrower one. head_dim is a
// multiple of 8.
const Level& level_for(int head_dim, const Level& best = best_level());

// May be called by several threads at once. Results do not depend on the number of threads.
void attend(const AttentionShape& shape, const AttentionInputs& inputs, const Level& level, Parallel& parallel);

// The same for heads that are copied: zeros make them as wide as the level's vectors, where that is a quarter more at most.
const Level& level_for_copies(int head_dim, const Level& best = best_level());

// Attention of the tokens of each row to each other, without a cache: those of `inputs` and is_prompt are not read, and keys
// and values are there. Where a row is shorter than new_tokens, what lies behind it becomes 0. level: of level_for_copies.
void attend_to_itself(const AttentionShape& shape, const AttentionInputs& inputs, const Level& level, Parallel& parallel);

}  // namespace edgeformer
