#include "levels.h"
#include "simd/avx2_vnni.h"
#include "simd_level.h"
#include "x86.h"

namespace edgeformer {

constinit const Level kAvx2VnniLevel = level_of<Avx2Vnni>("avx2-vnni", x86_has_avx_vnni);

}  // namespace edgeformer
