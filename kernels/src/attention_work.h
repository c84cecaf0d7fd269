// What the kinds of attention have in common: memory of threads, and what becomes of sums over keys.
#pragma once

#include <algorithm>
#include <cmath>

#include "aligned.h"
#include "attention_rows.h"
#include "level.h"
#include "parallel.h"

namespace edgeformer {

// Rows of queries that AttendMany takes at once, where a group has no more heads, and blocks of them that each thread gets at
// least. The more rows share what becomes of a block of keys and values, the less it costs: beside 288 rows, 576 take 0.93 of
// the time and 1,152 take 0.88 (AMD Zen 4, heads of 64). Six blocks divide a prompt's 512 tokens of 9 heads evenly by two threads.
inline constexpr int kFewRowsAtOnce = 128, kRowsAtOnce = 1024;
inline constexpr std::size_t kRowBlocksPerThread = 6;

// Tokens of `tokens` that a thread takes at once, of `heads` groups of `group` heads: blocks of nearly equal size.
inline int tokens_at_once(int tokens, std::size_t heads, int group, std::size_t threads) {
  const std::size_t rows = heads * tokens * group / (kRowBlocksPerThread * threads);
  const int most = std::max(1, std::clamp(static_cast<int>(rows), kFewRowsAtOnce, kRowsAtOnce) / group);
  const int blocks = (tokens + most - 1) / most;
  return (tokens + blocks - 1) / blocks;
}

struct AttentionMemory {
  GrowingArray<float> queries, keys, values, sums, work, apart;
};

inline AttentionMemory& attention_memory_of_thread() {
  static thread_local AttentionMemory memory;
  return memory;
}

// Sums of `rows` rows in memory for rows · (head_dim + 2) floats.
inline AttentionSums sums_at(float* memory, int rows, int head_dim) {
  float* largest = memory + static_cast<std::size_t>(rows) * head_dim;
  return {memory, largest, largest + rows};
}

// Numbers of a head that zeros make as wide as whole vectors of a level.
inline int whole_lanes(int head_dim, const Level& level) {
  return (head_dim + level.lanes() - 1) / level.lanes() * level.lanes();
}

// Divides sums of rows by their weights, a sink's included. sinks: of the rows' heads, or null. scales: of a value's
// channels, or null. output: of the first token and head, with head_dim numbers; those of a token are neighbours, and tokens lie
// `stride` floats apart.
inline void divide_by_weights(const AttentionRows& rows, const AttentionSums& sums, const float* sinks, const float* scales,
                              int head_dim, float* output, std::size_t stride) {
  for (int row = 0; row < rows.rows; ++row) {
    const int head = row % rows.heads, token = row / rows.heads;
    const float* from = sums.outputs + static_cast<std::size_t>(row) * rows.head_dim;
    float* to = output + token * stride + static_cast<std::size_t>(head) * head_dim;
    float weight = sums.weights[row], factor = 1;
    if (sinks != nullptr) {
      const float largest = std::max(sums.largest[row], sinks[head]);
      factor = std::exp(sums.largest[row] - largest);
      weight = weight * factor + std::exp(sinks[head] - largest);
    }
    const float inverse = weight == 0 ? 0 : factor / weight;
    for (int d = 0; d < head_dim; ++d) to[d] = from[d] * inverse;
    for (int d = 0; scales != nullptr && d < head_dim; ++d) to[d] *= scales[d];
  }
}

}  // namespace edgeformer
