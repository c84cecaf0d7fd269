#include "levels.h"
#include "simd/avx2.h"
#include "simd_level.h"

namespace edgeformer {

// Every processor with AVX2 has F16C.
static bool runs_here() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

constinit const Level kAvx2Level = level_of<Avx2>("avx2", runs_here);

}  // namespace edgeformer
