// What the ops of products do in a call.
#pragma once

#include "binding.h"
#include "each_row.h"

namespace edgeformer {

// Runs a product, or a feed-forward, over all axes of its first input but the last.
template <class Product>
void run_rows(const Product& product, Call& call, Parallel& parallel) {
  std::vector<std::int64_t> shape = call.shape(0);
  if (shape.empty() || shape.back() != product.inputs()) {
    call.refuse("the last dimension of A must be K, " + std::to_string(product.inputs()));
  }
  const std::size_t rows = rows_of(shape);
  shape.back() = product.outputs();
  product.run(call.input<float>(0), rows, call.output<float>(0, shape), parallel);
}

}  // namespace edgeformer
