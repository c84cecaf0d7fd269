#include "levels.h"
#include "simd/avx512_bf16.h"
#include "simd_level.h"
#include "x86.h"

namespace edgeformer {

constinit const Level kAvx512Bf16Level = level_of<Avx512Bf16>("avx512-bf16", x86_has_avx512_bf16);

}  // namespace edgeformer
