#include "levels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <vector>

#if defined(__x86_64__) || defined(_M_X64)
#include "x86.h"
#endif

namespace edgeformer {

std::span<const Level* const> levels() {
  static constexpr std::array all{
#if defined(__x86_64__) || defined(_M_X64)
      &kAmxLevel, &kAvx512Bf16Level, &kAvx512Level, &kAvx2VnniLevel, &kAvx2Level,
#elif defined(__aarch64__) || defined(_M_ARM64)
      &kNeonI8mmLevel, &kNeonLevel,
#endif
      &kPlainLevel};
  return all;
}

std::span<const Level* const> levels_here() {
  static const std::vector<const Level*> here = [] {
    std::vector<const Level*> found;
    std::ranges::copy_if(levels(), std::back_inserter(found), [](const Level* level) { return level->runs_here(); });
    return found;
  }();
  return here;
}

namespace {

// A level that a faster one follows.
bool is_slow_here([[maybe_unused]] const Level& level) {
#if defined(__x86_64__) || defined(_M_X64)
  return &level == &kAvx512Bf16Level && !x86_has_fast_bf16();
#else
  return false;
#endif
}

}  // namespace

const Level* find_level(std::string_view name) {
  for (const Level* level : levels_here()) {
    if (name == level->name) return level;
  }
  return nullptr;
}

const Level& best_level() {
  static const Level& best = []() -> const Level& {
    const char* wanted = std::getenv(kLevelVariable);
    if (wanted != nullptr) {
      const Level* level = find_level(wanted);
      return level == nullptr ? kPlainLevel : *level;
    }
    for (const Level* level : levels_here()) {
      if (!is_slow_here(*level)) return *level;
    }
    return kPlainLevel;
  }();
  return best;
}

}  // namespace edgeformer
