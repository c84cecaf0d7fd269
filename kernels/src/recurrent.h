// Layers whose state has a fixed size: a causal convolution, and linear attention.
#pragma once

#include <cstddef>

namespace edgeformer {

// One token of some channels of a convolution: y = bias + Σ taps[k] · inputs[k], or silu of that.
struct Convolution {
  const float* const* inputs;  // of each tap, the oldest first
  const float* taps;           // [count][channels]
  const float* bias;           // null: zeros
  int count, channels;
  bool silu;
};

using Convolve = void (*)(const Convolution&, float* y);

// Columns of a state that stay in the first-level cache while tokens go by: whole vectors at every level.
inline constexpr int kStateColumns = 32;

// Some columns of the state of a head, [key_dim][stride], and the tokens that change and read it. For each of them that
// `mask` has, with M the state:
//     M = exp(decay) · M
//     M = M + key ⊗ value, or with beta  M + key ⊗ beta · (value − Mᵀ · key)
//     output = scale · Mᵀ · query
// The output of others is 0.
struct StateOfHead {
  const float *query, *key, *value;  // of the first token
  const float *decay, *beta;         // the same; null: 0, and no correction
  const bool* mask;
  std::size_t to_query, to_key, to_value, to_decay;  // floats from a token to the next; to_decay is that of beta, too
  int tokens, key_dim, columns;                      // at most kStateColumns
  const float* past;
  float* present;  // may be where the past is
  std::size_t stride;
  float scale;
  float* output;  // tokens are to_value apart
  float* memory;  // [key_dim][kStateColumns]
};

using AttendState = void (*)(const StateOfHead&);

}  // namespace edgeformer
