#include "levels.h"
#include "simd/avx2.h"
#include "simd_level.h"
#include "x86.h"

namespace edgeformer {

// Every processor with AVX2 has F16C.
constinit const Level kAvx2Level = level_of<Avx2>("avx2", x86_has_avx2);

}  // namespace edgeformer
