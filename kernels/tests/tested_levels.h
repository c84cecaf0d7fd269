// The levels of this build, and one with a unit of matrix tiles in plain C++.
#pragma once

#include <vector>

#include "level.h"

namespace edgeformer {

extern const Level kPlainTilesLevel;

inline std::vector<const Level*> tested_levels() {
  std::vector<const Level*> all(levels().begin(), levels().end());
  all.push_back(&kPlainTilesLevel);
  return all;
}

// Whether a level rounds the products of long prompts to bfloat16.
inline bool has_pairs(const Level& level) {
  const std::string_view name = level.name;
  return name == "amx" || name == "avx512-bf16" || name == kPlainTilesLevel.name;
}

// Whether it rounds their queries and keys to bytes.
inline bool multiplies_bytes(const Level& level) { return std::string_view(level.name) == "avx512-bf16"; }

// Whether steps multiply integers of a cache by words: they round queries and weights to these.
inline bool multiplies_words(const Level& level) {
  const std::string_view name = level.name;
  return name == "amx" || name == "avx512-bf16" || name == "avx512-vnni";
}

}  // namespace edgeformer
