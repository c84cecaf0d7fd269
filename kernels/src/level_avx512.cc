#include "levels.h"
#include "simd/avx512.h"
#include "simd_level.h"

namespace edgeformer {

static bool runs_here() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

constinit const Level kAvx512Level = level_of<Avx512>("avx512-vnni", runs_here);

}  // namespace edgeformer
