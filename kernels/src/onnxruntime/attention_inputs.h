// What the ops of attention read alike.
#pragma once

#include "attention.h"
#include "binding.h"

namespace edgeformer {

using Sizes = std::vector<std::int64_t>;

// Refuses another shape than the wanted one.
void want(const Call& call, const char* name, const Sizes& found, const Sizes& wanted);

// The attributes of GroupQueryAttention; head_dim and rotary_dim are known when it runs.
AttentionShape attention_shape_of(const Node& node);

// Of a size that kernels take.
void check_head_dim(const Call& call, std::int64_t head_dim);

// query [rows, tokens, heads · head_dim], and key and value [rows, keys, kv_heads · head_dim], which may be packed behind
// it: inputs 0, 1 and 2.
void read_queries(const Call& call, const AttentionShape& shape, std::int64_t rows, std::int64_t tokens,
                  std::int64_t keys, std::int64_t head_dim, AttentionInputs& to);

// total_sequence_length, a tensor of one number.
std::int64_t read_total(const Call& call, std::size_t index);

// cos_cache and sin_cache, if they are there; returns how many positions they have, or `most`.
std::int64_t read_angles(const Call& call, std::size_t first, std::int64_t head_dim, std::int64_t most, AttentionInputs& to);

// attention_bias and head_sink, if they are there.
void read_bias_and_sinks(const Call& call, std::size_t first, const AttentionShape& shape, std::int64_t tokens,
                         std::int64_t total, AttentionInputs& to);

// The attribute `scale`; 0 stands for 1 / sqrt(head_dim).
float attention_scale(float scale, std::int64_t head_dim);

// The attributes, head_dim, what is rotated of it, and a scale.
AttentionShape complete(AttentionShape shape, const Call& call, std::int64_t head_dim, std::size_t cosines);

}  // namespace edgeformer
