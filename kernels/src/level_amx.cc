#include "levels.h"
#include "simd/amx.h"
#include "simd_level.h"
#include "x86.h"

namespace edgeformer {

constinit const Level kAmxLevel = level_of<Amx>("amx", x86_has_amx);

}  // namespace edgeformer
