// The levels of this build, each in a file of its own that is compiled for its instruction set.
#pragma once

#include "level.h"

namespace edgeformer {

extern const Level kAmxLevel, kAvx512Bf16Level, kAvx512Level, kAvx2VnniLevel, kAvx2Level, kNeonI8mmLevel, kNeonLevel, kPlainLevel;

}  // namespace edgeformer
