// Quantized weights as a graph stores them: the layout of onnxruntime's MatMulNBits.
//
// Output n has one row of `inputs` integers, cut into blocks along the inputs. A weight is
// (integer - zero point of its block) * scale of its block.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgeformer {

// What determines the size of weights.
struct WeightSizes {
  int outputs, inputs, bits, block;
  bool own_zero_points = false;  // one for each block

  int blocks() const { return (inputs + block - 1) / block; }
};

struct Weights {
  int outputs;  // N
  int inputs;   // K
  int bits;     // 4 or 8
  int block;    // weights that share a scale, a multiple of 8

  const std::uint8_t* integers;     // [outputs][blocks()][block * bits / 8]; of two 4-bit integers, the low one is first
  const float* scales;              // [outputs][blocks()]
  const std::uint8_t* zero_points;  // [outputs][ceil(blocks() * bits / 8)], or null for 2^(bits-1) everywhere

  // 3, 5 or 6 where integers are as a file has them that lacks unused bits (packed_integers.h); else 0.
  int packed_bits = 0;

  int blocks() const { return sizes().blocks(); }
  WeightSizes sizes() const { return {outputs, inputs, bits, block, zero_points != nullptr}; }

  std::size_t row_bytes() const { return static_cast<std::size_t>(blocks()) * block * stored_bits() / 8; }
  int stored_bits() const { return packed_bits != 0 ? packed_bits : bits; }

  // Of weights that are not packed.
  int integer(int output, int input) const {
    const std::size_t row = static_cast<std::size_t>(output) * blocks() * block;
    return unpack(integers, row + input);
  }

  int zero_point(int output, int of_block) const {
    if (zero_points == nullptr) return 1 << (bits - 1);
    const std::size_t row_bytes = (static_cast<std::size_t>(blocks()) * bits + 7) / 8;
    return unpack(zero_points + output * row_bytes, of_block);
  }

  float scale(int output, int of_block) const { return scales[static_cast<std::size_t>(output) * blocks() + of_block]; }

 private:
  int unpack(const std::uint8_t* bytes, std::size_t index) const {
    if (bits == 8) return bytes[index];
    return bytes[index / 2] >> (index % 2 * 4) & 15;
  }
};

}  // namespace edgeformer
