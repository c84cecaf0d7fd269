#include "levels.h"

#include <array>
#include <cstdlib>
#include <string_view>

namespace edgeformer {

std::span<const Level* const> levels() {
  static constexpr std::array all{
#if defined(__x86_64__) || defined(_M_X64)
      &kAvx512Level, &kAvx2VnniLevel, &kAvx2Level,
#elif defined(__aarch64__) || defined(_M_ARM64)
      &kNeonLevel,
#endif
      &kPlainLevel};
  return all;
}

const Level& best_level() {
  static const Level& best = [&]() -> const Level& {
    const char* wanted = std::getenv("EDGEFORMER_KERNELS_LEVEL");
    for (const Level* level : levels()) {
      if (level->runs_here() && (wanted == nullptr || wanted == std::string_view(level->name))) return *level;
    }
    return kPlainLevel;
  }();
  return best;
}

}  // namespace edgeformer
