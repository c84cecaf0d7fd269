#include "levels.h"
#include "simd/avx512.h"
#include "simd_level.h"
#include "x86.h"

namespace edgeformer {

constinit const Level kAvx512Level = level_of<Avx512>("avx512-vnni", x86_has_avx512_vnni);

}  // namespace edgeformer
