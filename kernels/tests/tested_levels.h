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

// Whether a level rounds what long prompts multiply to bytes.
inline bool multiplies_bytes(const Level& level) {
  const std::string_view name = level.name;
  return name == "avx512-bf16" || name == "avx512-vnni";
}

// Whether it rounds that at all, to bytes or bfloat16.
inline bool rounds_prompts(const Level& level) {
  const std::string_view name = level.name;
  return multiplies_bytes(level) || name == "amx" || name == kPlainTilesLevel.name;
}

// Whether steps multiply integers of a cache by words: they round queries and weights to these.
inline bool multiplies_words(const Level& level) {
  const std::string_view name = level.name;
  return name == "amx" || name == "avx512-bf16" || name == "avx512-vnni";
}

}  // namespace edgeformer
