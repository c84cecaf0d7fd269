#include "levels.h"
#include "simd/avx2_vnni.h"
#include "simd_level.h"

#include <cpuid.h>

namespace edgeformer {

// Compilers before clang 18 do not know this feature by name.
static bool has_avx_vnni() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

static bool runs_here() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_avx_vnni();
}

constinit const Level kAvx2VnniLevel = level_of<Avx2Vnni>("avx2-vnni", runs_here);

}  // namespace edgeformer
