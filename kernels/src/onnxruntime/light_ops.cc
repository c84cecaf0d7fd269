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

// Numbers that a thread maps at once.
constexpr std::size_t kNumbersAtOnce = 1024;

// Of a tensor: sizes of a shape that have more products would overflow.
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 40;

std::int64_t numbers_of(const std::vector<std::int64_t>& shape) {
  std::int64_t numbers = 1;
  for (const std::int64_t size : shape) numbers *= size;
  return numbers;
}

}  // namespace

template <char kSign>
void ElementwiseOp<kSign>::run(Call& call, Parallel& parallel) const {
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
    const auto result = [](float left, float right) {
      return kSign == '+' ? left + right : kSign == '*' ? left * right : left / right;
    };
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

template <Map kMap>
void MapOp<kMap>::run(Call& call, Parallel& parallel) const {
  const std::vector<std::int64_t> shape = call.shape(0);
  const std::size_t size = numbers_of(shape);
  const float* x = call.input<float>(0);
  float* y = call.output<float>(0, shape);
  run_each_row((size + kNumbersAtOnce - 1) / kNumbersAtOnce, kNumbersAtOnce, parallel, [&](std::size_t part) {
    const std::size_t first = part * kNumbersAtOnce;
    level_.map(kMap, x + first, static_cast<int>(std::min(kNumbersAtOnce, size - first)), y + first);
  });
}

Split::Split(const Node& node) : widths_(node.constant_integers(1, "split")) {
  if (widths_.empty() || *std::min_element(widths_.begin(), widths_.end()) < 0) node.refuse("split must have sizes");
}

void Split::run(Call& call, Parallel& parallel) const {
  const std::vector<std::int64_t> shape = call.shape(0);
  std::int64_t all = 0;
  for (const std::int64_t width : widths_) all += width;
  if (shape.empty() || shape.back() != all) call.refuse("split must have the sizes of the last axis");
  const float* x = call.input<float>(0);
  std::vector<float*> parts;
  for (const std::int64_t width : widths_) {
    std::vector<std::int64_t> of_part = shape;
    of_part.back() = width;
    parts.push_back(call.output<float>(parts.size(), of_part));
  }
  run_each_row(rows_of(shape), all, parallel, [&](std::size_t row) {
    const float* from = x + row * all;
    for (std::size_t part = 0; part < parts.size(); from += widths_[part++]) {
      std::copy_n(from, widths_[part], parts[part] + row * widths_[part]);
    }
  });
}

template <bool kUnsqueezes>
ShapeOp<kUnsqueezes>::ShapeOp(const Node& node) : sizes_(node.constant_integers(1, kUnsqueezes ? "axes" : "shape")) {}

template <bool kUnsqueezes>
std::vector<std::int64_t> ShapeOp<kUnsqueezes>::shape_of(const Call& call, const std::vector<std::int64_t>& given) const {
  std::vector<std::int64_t> shape;
  if constexpr (kUnsqueezes) {
    const std::int64_t rank = given.size() + sizes_.size();
    shape.assign(rank, 0);
    for (const std::int64_t axis : sizes_) {
      if (axis < -rank || axis >= rank || shape[axis < 0 ? axis + rank : axis] == 1) call.refuse("axes must be of the result");
      shape[axis < 0 ? axis + rank : axis] = 1;
    }
    auto next = given.begin();
    for (std::int64_t& size : shape) size = size == 1 ? 1 : *next++;
  } else {
    std::int64_t known = 1, left = -1;
    for (std::size_t axis = 0; axis < sizes_.size(); ++axis) {
      const bool is_kept = sizes_[axis] == 0 && axis < given.size();
      const std::int64_t size = is_kept ? given[axis] : sizes_[axis];
      if (size < -1 || (size == -1 && left >= 0)) call.refuse("shape must have sizes, and -1 once at most");
      if (size == -1) left = axis;
      if (size > 0 && known > kMostNumbers / size) call.refuse("shape must have the numbers of X");
      known *= size == -1 ? 1 : size;
      shape.push_back(size);
    }
    if (left >= 0) shape[left] = known == 0 ? 0 : numbers_of(given) / known;
    if (numbers_of(shape) != numbers_of(given)) call.refuse("shape must have the numbers of X");
  }
  return shape;
}

template <bool kUnsqueezes>
void ShapeOp<kUnsqueezes>::run(Call& call, Parallel&) const {
  const std::vector<std::int64_t> given = call.shape(0), shape = shape_of(call, given);
  if (call.values().lend(0, shape, 0)) return;
  std::copy_n(call.input<float>(0), numbers_of(given), call.output<float>(0, shape));
}

template struct ElementwiseOp<'+'>;
template struct ElementwiseOp<'*'>;
template struct ElementwiseOp<'/'>;
template class MapOp<Map::kSigmoid>;
template class MapOp<Map::kSoftplus>;
template class ShapeOp<false>;
template class ShapeOp<true>;

}  // namespace edgeformer
