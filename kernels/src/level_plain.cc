#include "levels.h"
#include "simd/plain.h"
#include "simd_level.h"

namespace edgeformer {

constinit const Level kPlainLevel = level_of<Plain>("plain", [] { return true; });

}  // namespace edgeformer
