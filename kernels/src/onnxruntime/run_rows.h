// What the ops of products do in a call.
#pragma once

#include "binding.h"

namespace edgeformer {

// Runs a product, or a feed-forward, over all axes of its first input but the last.
template <class Product>
void run_rows(const Product& product, Call& call, Parallel& parallel) {
  std::vector<std::int64_t> shape = call.shape(0);
  if (shape.empty() || shape.back() != product.inputs()) {
    call.refuse("the last dimension of A must be K, " + std::to_string(product.inputs()));
  }
  std::size_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  shape.back() = product.outputs();
  product.run(call.input<float>(0), rows, call.output<float>(0, shape), parallel);
}

}  // namespace edgeformer
