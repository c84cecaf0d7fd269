#include "plain_tiles.h"
#include "simd_level.h"
#include "tested_levels.h"

namespace edgeformer {

constinit const Level kPlainTilesLevel = level_of<PlainTiles>("plain-tiles", [] { return true; });

}  // namespace edgeformer
