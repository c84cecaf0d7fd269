// Integers of 3, 5 and 6 bits as a file has them: without the bits that they do not use.
//
// They are the highest bits of integers of 4 and 8 bits. The bytes of a block are cut into groups, of which the bytes lie a
// part of the block apart. The first bytes of a group are stored, and have the bits of the others in the place of unused ones:
//
//     bits   unused in a byte   bytes of a group   stored
//     3      0 and 4            4                  3
//     5      0 to 2             8                  5
//     6      0 and 1            4                  3
//
// export/quantize/packing.py packs them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgeformer {

// Bytes of a group and, of these, bytes that are stored.
struct Packing {
  int group, stored;
};

// Of integers of these bits; a group of 0 for others.
constexpr Packing packing_of(int bits) {
  if (bits == 3 || bits == 6) return {4, 3};
  return bits == 5 ? Packing{8, 5} : Packing{0, 0};
}

// Bits of the integers that products read, of those of 3, 5 and 6 bits.
constexpr int product_bits(int packed_bits) { return packed_bits == 3 ? 4 : 8; }

// Makes the bytes of a block, of which there are `size`: whole groups.
inline void unpack_block(const std::uint8_t* from, int bits, std::size_t size, std::uint8_t* to) {
  const Packing packing = packing_of(bits);
  const std::size_t part = size / packing.group, stored = part * packing.stored;
  const std::uint8_t kept = bits == 3 ? 0xee : bits == 5 ? 0xf8 : 0xfc;
  for (std::size_t i = 0; i < stored; ++i) to[i] = from[i] & kept;
  for (std::size_t i = 0; i < part; ++i) {
    const auto of = [&](int byte, int mask) { return from[byte * part + i] & mask; };
    std::uint8_t* other = to + stored + i;
    if (bits == 3) {
      *other = of(0, 0x11) << 1 | of(1, 0x11) << 2 | of(2, 0x11) << 3;
    } else if (bits == 6) {
      *other = of(0, 3) << 6 | of(1, 3) << 4 | of(2, 3) << 2;
    } else {
      other[0] = of(0, 7) << 5 | of(3, 3) << 3;
      other[part] = of(1, 7) << 5 | of(4, 3) << 3;
      other[2 * part] = of(2, 7) << 5 | of(3, 4) << 2 | of(4, 4) << 1;
    }
  }
}

}  // namespace edgeformer
