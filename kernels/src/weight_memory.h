// Memory of weights, which every step reads from end to end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace edgeformer {

struct FreeWeights {
  std::size_t bytes = 0;
  void operator()(std::uint8_t* memory) const;
};

using WeightMemory = std::unique_ptr<std::uint8_t[], FreeWeights>;

// Bytes on a cache line, without values. On Linux, arrays of many matrices lie side by side in memory that asks for huge pages:
// most matrices are smaller than one. Memory that is freed goes back to the system. Throws std::bad_alloc where there is none.
WeightMemory allocate_weights(std::size_t bytes);

}  // namespace edgeformer
