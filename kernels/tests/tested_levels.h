// The levels of this build, one with a unit of matrix tiles in plain C++, and on x86 one for what AVX2-VNNI does beside AVX2.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "level.h"
#include "sanitized.h"

namespace edgeformer {

extern const Level kPlainTilesLevel;
#if defined(__x86_64__)
extern const Level kAvx2BytesLevel;
#endif

// Threads share out rows, panels and heads alike at all levels, so where they are watched, the fastest one and the unit do.
inline std::vector<const Level*> tested_levels() {
  if (kThreadsAreWatched) return {&best_level(), &kPlainTilesLevel};
  std::vector<const Level*> all(levels().begin(), levels().end());
  all.push_back(&kPlainTilesLevel);
#if defined(__x86_64__)
  all.push_back(&kAvx2BytesLevel);
#endif
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

// Whether the name of a level is one of these.
template <class... Names>
bool is_one_of(const Level& level, Names... names) {
  return ((std::string_view(level.name) == names) || ...);
}

// Whether a level rounds what long prompts multiply to bytes.
inline bool multiplies_bytes(const Level& level) {
  return is_one_of(level, "avx512-bf16", "avx512-vnni", "avx2-vnni", "avx2-bytes", "neon-i8mm", "neon-dotprod");
}

// Whether it rounds that at all, to bytes or bfloat16.
inline bool rounds_prompts(const Level& level) { return multiplies_bytes(level) || is_one_of(level, "amx", kPlainTilesLevel.name); }

// Whether steps multiply integers of a cache by words: they round queries and weights to these.
inline bool multiplies_words(const Level& level) {
  return is_one_of(level, "amx", "avx512-bf16", "avx512-vnni", "avx2-vnni", "avx2-bytes");
}

}  // namespace edgeformer
