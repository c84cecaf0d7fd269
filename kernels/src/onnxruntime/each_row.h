// Rows of numbers that threads share out, where there is enough work for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel.h"

namespace edgeformer {

// Numbers that are worth a thread's start.
inline constexpr std::size_t kNumbersOfAStart = 16 << 10;

// Rows of a tensor, along its last axis; a single number is one.
inline std::size_t rows_of(const std::vector<std::int64_t>& shape) {
  std::size_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  return rows;
}

// Calls work(row) for each of the rows, of `size` numbers each.
template <class Function>
void run_each_row(std::size_t rows, std::size_t size, Parallel& parallel, const Function& work) {
  if (rows == 0) return;
  const std::size_t worth = std::max<std::size_t>(1, rows * size / kNumbersOfAStart);
  const std::size_t chunks = std::min({rows, worth, kChunksPerThread * parallel.threads()});
  parallel.run(chunks, Task([&](std::size_t chunk) {
                 const std::size_t end = (chunk + 1) * rows / chunks;
                 for (std::size_t row = chunk * rows / chunks; row < end; ++row) work(row);
               }));
}

}  // namespace edgeformer
