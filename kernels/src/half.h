// Half-precision floats as the 16 bits that are stored. Panels keep scales in them: half the bytes of float32.
#pragma once

#include <bit>
#include <cstdint>

namespace edgeformer {

using Half = std::uint16_t;

// The upper half of a float.
struct Bfloat16 {
  std::uint16_t bits;
};

// Rounds to the nearest half, ties to even. The value must be finite and smaller than 65520 in magnitude.
inline Half to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x38800000u) {
    // Below 2^-14 halves are multiples of 2^-24. Adding 0.5 lets the float unit round to such a multiple.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<Half>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t odd = magnitude >> 13 & 1;
  return static_cast<Half>(sign | ((magnitude + 0xfff + odd - 0x38000000u) >> 13));
}

// The same for any value: what is too large becomes infinite, and what is not a number stays that.
inline Half to_any_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x477ff000u) return to_half(value);
  return static_cast<Half>((bits >> 16 & 0x8000u) | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
}

inline float from_half(Half half) {
  const std::uint32_t exponent = half & 0x7c00u;
  if (exponent == 0x7c00u) {  // infinite, or not a number
    return std::bit_cast<float>((half & 0x8000u) << 16 | 0x7f800000u | (half & 0x3ffu) << 13);
  }
  const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << 13;
  // Scaling by 2^112 moves the exponent from a half's bias to a float's, subnormal halves included.
  const float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

}  // namespace edgeformer
