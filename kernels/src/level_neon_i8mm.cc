#include "levels.h"
#include "simd/neon_i8mm.h"
#include "simd_level.h"

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace edgeformer {

// Processors with i8mm have dotprod. Windows has had a name for the feature since 2024 only, so Neon runs there.
static bool runs_here() {
#if defined(__linux__)
  return getauxval(AT_HWCAP2) & HWCAP2_I8MM;
#elif defined(__APPLE__)
  int found = 0;
  std::size_t size = sizeof found;
  return sysctlbyname("hw.optional.arm.FEAT_I8MM", &found, &size, nullptr, 0) == 0 && found != 0;
#else
  return false;
#endif
}

constinit const Level kNeonI8mmLevel = level_of<NeonI8mm>("neon-i8mm", runs_here);

}  // namespace edgeformer
