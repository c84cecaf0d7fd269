#include "levels.h"
#include "simd/neon.h"
#include "simd_level.h"

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace edgeformer {

static bool runs_here() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
  return true;  // all of Apple's 64-bit processors since 2018, and all on which Windows 11 runs
#endif
}

constinit const Level kNeonLevel = level_of<Neon>("neon-dotprod", runs_here);

}  // namespace edgeformer
