#include "panels.h"

#include <algorithm>
#include <cmath>

namespace edgeformer {
namespace {

// The exponent by which a column's scales are divided: its largest scale becomes less than 2^15.
int exponent_of_scales(const Weights& weights, int output) {
  float largest = 0;
  for (int block = 0; block < weights.blocks(); ++block) {
    largest = std::max(largest, std::fabs(weights.scale(output, block)));
  }
  return largest > 0 ? std::ilogb(largest) - 14 : 0;
}

}  // namespace

Panels::Panels(const Weights& weights, int columns, int byte_bias)
    : outputs_(weights.outputs),
      bits_(weights.bits),
      block_(weights.block),
      blocks_(weights.blocks()),
      columns_(columns),
      bias_(weights.bits == 8 ? byte_bias : 0),
      has_zero_points_(weights.zero_points != nullptr),
      bytes_(make_aligned<std::uint8_t>(count() * panel_bytes())),
      factors_(make_aligned<float>(static_cast<std::size_t>(count()) * columns)) {
  for (int output = 0; output < outputs_; ++output) pack_column(weights, output);
}

void Panels::pack_column(const Weights& weights, int output) {
  const int index = output / columns_, column = output % columns_, exponent = exponent_of_scales(weights, output);
  std::uint8_t* at = bytes_.get() + index * panel_bytes();
  std::uint8_t* zero_points = at + blocks_ * block_bytes();
  factors_[output] = std::ldexp(1.0f, exponent);
  for (int block = 0; block < blocks_; ++block, at += block_bytes()) {
    const int first = block * block_, end = std::min(first + block_, weights.inputs);
    for (int input = first; input < end; ++input) {
      const int within = input - first, step = within * bits_ / 32, high = bits_ == 4 && within % 8 >= 4;
      const int integer = weights.integer(output, input) - bias_;
      at[(static_cast<std::size_t>(step) * columns_ + column) * 4 + within % 4] |= integer << (high ? 4 : 0);
    }
    const Half scale = to_half(std::ldexp(weights.scale(output, block), -exponent));
    reinterpret_cast<Half*>(at + integer_bytes())[column] = scale;
    if (has_zero_points_) zero_points[block * columns_ + column] = weights.zero_point(output, block) - bias_;
  }
}

}  // namespace edgeformer
