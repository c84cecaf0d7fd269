// What the kernels of attention read and write: queries that read the same keys and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace edgeformer {

// The type of the numbers of keys and values. Integers have a scale for each channel, which is known before; or one for each
// key and value, its largest number over 127, a float behind its integers.
enum class Stored { kFloat, kHalf, kInt8, kInt8PerToken };

template <Stored kStored>
using StoredNumber = std::conditional_t<kStored == Stored::kFloat, float,
                                        std::conditional_t<kStored == Stored::kHalf, std::uint16_t, std::int8_t>>;

// From a key to the next, in numbers of its type.
constexpr int stored_width(Stored stored, int head_dim) {
  return head_dim + (stored == Stored::kInt8PerToken ? static_cast<int>(sizeof(float)) : 0);
}

struct AttentionRows {
  // [rows][head_dim], rotated and scaled. Row r is head r % heads of token r / heads.
  const float* queries;
  int rows, heads, head_dim;
  int position;               // of the first token
  const void *keys, *values;  // [valid][stored_width]
  int valid;
  bool causal;
  int window;
  float softcap;
  const float* bias;  // of the first head and token, or null
  std::size_t bias_head_stride, bias_token_stride;
  Stored stored = Stored::kFloat;
  bool may_round = false;  // products may be of bfloat16 and bytes, or of one token of words, where the level has them
  const void* keys_ahead = nullptr;  // those that attend_one is asked for next, or null

  // Keys that a token sees.
  int first_key(int token) const {
    const int first = position + token + 1 - window;
    return window > 0 && first > 0 ? first : 0;
  }
  int end_of_keys(int token) const {
    const int after = position + token + 1;
    return causal && after < valid ? after : valid;
  }
};

// Sums over keys: outputs[row] = Σ e^(score - largest) v, and weights[row] = Σ e^(score - largest).
struct AttentionSums {
  float* outputs;  // [rows][head_dim]
  float *largest, *weights;
};

// Keys that are taken at once. The fewer there are, the more often sums of values are loaded and stored: with 64, attention
// of 4,096 tokens takes 1.1 times as long (AMD Zen 5, heads of 64).
inline constexpr int kKeysAtOnce = 128;

// Sums over keys `begin` to `end`, at most kKeysAtOnce, of rows of one token, which sees all of these.
using AttendOne = void (*)(const AttentionRows&, int begin, int end, const AttentionSums&);

// Rows of a tile of a unit of matrix tiles, which writes all of them; so there is memory for whole tiles.
inline constexpr int kTileRowsOfUnit = 16;
constexpr int whole_tiles(int rows) { return (rows + kTileRowsOfUnit - 1) / kTileRowsOfUnit * kTileRowsOfUnit; }

// Rows whose scores of a block of keys are in memory at once: whole tiles of the levels. From 24 to 96 take the same time within
// 1 % (AMD Zen 4).
inline constexpr int kRowsOfScores = 96;

// Sums over all keys that rows see. scratch: attention_scratch(rows, head_dim) floats on a cache line.
using AttendMany = void (*)(const AttentionRows&, const AttentionSums&, float* scratch);

// Scores of rows; keys as columns; keys and values as floats where they are not; pairs of values; words of both; and queries as
// pairs and words, of which the last ones are written in whole vectors.
constexpr std::size_t attention_scratch(int rows, int head_dim) {
  return kKeysAtOnce * (kRowsOfScores + 3 * head_dim + 2) + 3 * head_dim + std::size_t(whole_tiles(rows)) * (head_dim + 4);
}

// to = x times 1 / scales, rounded to the nearest integer, ties to even, from -128 to 127; any integer of what is not a
// number. count is in whole vectors.
using RoundToInt8 = void (*)(const float* x, const float* scales, int count, std::int8_t* to);

// to = x over its scale, rounded likewise, and the scale behind it. Of what is not finite, the scale is NaN.
using RoundPerToken = void (*)(const float* x, int count, std::int8_t* to);

// to = x rounded to the nearest half, ties to even. count is in whole vectors.
using RoundToHalf = void (*)(const float* x, int count, std::uint16_t* to);

// y = scale times x with its first rotary_dim numbers rotated: halves of it, or neighbours where `interleaved`.
struct Rotation {
  int head_dim, rotary_dim;
  bool interleaved;
  const float *cosines, *sines;  // of the position: [rotary_dim / 2]
};
using Rotate = void (*)(const Rotation&, const float* x, float scale, float* y);

}  // namespace edgeformer
