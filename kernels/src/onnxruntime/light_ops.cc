#include "light_ops.h"

#include <algorithm>

#include "each_row.h"

namespace edgeformer {
namespace {

// How far apart the numbers of an operand are along each axis of the result: 0 along those that it is repeated on.
std::vector<std::size_t> strides_of(const std::vector<std::int64_t>& shape, std::size_t axes) {
  std::vector<std::size_t> strides(axes);
  std::size_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) {
    strides[axes - shape.size() + axis] = shape[axis] == 1 ? 0 : stride;
  }
  return strides;
}

// The shape that two broadcast to.
std::vector<std::int64_t> joined(const Call& call, const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  std::vector<std::int64_t> shape(std::max(a.size(), b.size()), 1);
  for (const auto& each : {a, b}) {
    for (std::size_t axis = 0; axis < each.size(); ++axis) {
      std::int64_t& size = shape[shape.size() - each.size() + axis];
      if (size != 1 && each[axis] != 1 && size != each[axis]) call.refuse("A and B have shapes that do not broadcast");
      if (each[axis] != 1) size = each[axis];
    }
  }
  return shape;
}

}  // namespace

template <bool kMultiplies>
void ElementwiseOp<kMultiplies>::run(Call& call, Parallel& parallel) const {
  const std::vector<std::int64_t> of_a = call.shape(0), of_b = call.shape(1), shape = joined(call, of_a, of_b);
  const float *a = call.input<float>(0), *b = call.input<float>(1);
  float* c = call.output<float>(0, shape);
  const std::size_t axes = shape.size(), size = axes == 0 ? 1 : shape.back();
  const std::vector<std::size_t> to_a = strides_of(of_a, axes), to_b = strides_of(of_b, axes);
  const std::size_t step_a = axes == 0 ? 0 : to_a.back(), step_b = axes == 0 ? 0 : to_b.back();
  run_each_row(rows_of(shape), size, parallel, [&](std::size_t row) {
    std::size_t at_a = 0, at_b = 0, left = row;
    for (std::size_t axis = axes < 2 ? 0 : axes - 1; axis-- > 0; left /= shape[axis]) {
      const std::size_t index = left % shape[axis];
      at_a += index * to_a[axis];
      at_b += index * to_b[axis];
    }
    const float *x = a + at_a, *y = b + at_b;
    float* to = c + row * size;
    const auto result = [](float left, float right) { return kMultiplies ? left * right : left + right; };
    if (step_a == 1 && step_b == 1) {
      for (std::size_t i = 0; i < size; ++i) to[i] = result(x[i], y[i]);
    } else {
      for (std::size_t i = 0; i < size; ++i) to[i] = result(x[i * step_a], y[i * step_b]);
    }
  });
}

void SimplifiedLayerNormalization::run(Call& call, Parallel& parallel) const {
  const std::vector<std::int64_t> shape = call.shape(0);
  if (shape.empty() || call.shape(1) != std::vector{shape.back()}) call.refuse("scale must have as many numbers as a row of X");
  const std::size_t size = shape.back();
  const float *x = call.input<float>(0), *scale = call.input<float>(1);
  float* y = call.output<float>(0, shape);
  run_each_row(rows_of(shape), size, parallel, [&](std::size_t row) {
    level_.norm(x + row * size, scale, static_cast<int>(size), epsilon_, y + row * size);
  });
}

template struct ElementwiseOp<false>;
template struct ElementwiseOp<true>;

}  // namespace edgeformer
