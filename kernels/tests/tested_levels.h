// The levels of this build, and one with a unit of matrix tiles in plain C++.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "level.h"

namespace edgeformer {

extern const Level kPlainTilesLevel;

inline std::vector<const Level*> tested_levels() {
  std::vector<const Level*> all(levels().begin(), levels().end());
  all.push_back(&kPlainTilesLevel);
  return all;
}

// The same, or those that the arguments of a program name.
inline std::vector<const Level*> tested_levels(int argc, char** argv) {
  if (argc < 2) return tested_levels();
  std::vector<const Level*> named;
  for (int i = 1; i < argc; ++i) {
    for (const Level* level : tested_levels()) {
      if (level->name == std::string_view(argv[i])) named.push_back(level);
    }
  }
  if (named.size() + 1 == static_cast<std::size_t>(argc)) return named;
  std::fprintf(stderr, "a level is unknown\n");
  std::exit(2);
}

// Whether a level rounds what long prompts multiply to bytes.
inline bool multiplies_bytes(const Level& level) {
  const std::string_view name = level.name;
  return name == "avx512-bf16" || name == "avx512-vnni" || name == "avx2-vnni" || name == "neon-i8mm" || name == "neon-dotprod";
}

// Whether it rounds that at all, to bytes or bfloat16.
inline bool rounds_prompts(const Level& level) {
  const std::string_view name = level.name;
  return multiplies_bytes(level) || name == "amx" || name == kPlainTilesLevel.name;
}

// Whether steps multiply integers of a cache by words: they round queries and weights to these.
inline bool multiplies_words(const Level& level) {
  const std::string_view name = level.name;
  return name == "amx" || name == "avx512-bf16" || name == "avx512-vnni" || name == "avx2-vnni";
}

}  // namespace edgeformer
