// The weights of a node, in panels: the one place where an op's quantized weights are read.
#pragma once

#include "binding.h"
#include "panels.h"

namespace edgeformer {

// Packs the weights that three inputs of a node from `first` on have, all of them constants and as in
// com.microsoft::MatMulNBits: integers, scales, and perhaps zero points. The file's pages that they came from leave this
// process.
//
// sizes: what the node's attributes say; whether there are zero points, its inputs do.
Panels panels_of(const Node& node, std::size_t first, WeightSizes sizes);

}  // namespace edgeformer
