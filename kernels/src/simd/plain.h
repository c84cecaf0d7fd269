// Plain C++ in the form of a SIMD level of four lanes: for processors without a level of their own.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "../half.h"

namespace edgeformer {

struct Plain {
  static constexpr int kLanes = 4, kBytes = 16;
  static constexpr int kTileRows = 2;
  static constexpr int kByteBias = 0;
  using Ints = std::array<std::int32_t, kLanes>;
  using Floats = std::array<float, kLanes>;
  using Bytes = std::array<std::uint8_t, kBytes>;

  static void prefetch(const void*) {}

  static Bytes load_bytes(const std::uint8_t* from) {
    Bytes bytes;
    std::memcpy(bytes.data(), from, kBytes);
    return bytes;
  }
  static void store_bytes(std::uint8_t* to, Bytes bytes) { std::memcpy(to, bytes.data(), kBytes); }
  static Bytes broadcast4(const std::int8_t* from) {
    Bytes bytes;
    for (int i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::uint8_t>(from[i % 4]);
    return bytes;
  }
  static Bytes low_nibbles(Bytes both) {
    for (auto& byte : both) byte &= 15;
    return both;
  }
  static Bytes high_nibbles(Bytes both) {
    for (auto& byte : both) byte >>= 4;
    return both;
  }
  template <int kBits>
  static Bytes shift_up(Bytes bytes) {
    for (auto& byte : bytes) byte <<= kBits;
    return bytes;
  }
  template <int kBits>
  static Bytes shift_down(Bytes bytes) {
    for (auto& byte : bytes) byte >>= kBits;
    return bytes;
  }
  // Bits 4 to 7 of one and bits 2 and 3 of the other.
  static Bytes join_six_bits(Bytes upper, Bytes pair) {
    for (int i = 0; i < kBytes; ++i) upper[i] = (upper[i] & 0xf0) | (pair[i] & 12);
    return upper;
  }
  static Ints dot4(Ints sums, Bytes w, Bytes a) {
    for (int i = 0; i < kBytes; ++i) sums[i / 4] += w[i] * static_cast<std::int8_t>(a[i]);
    return sums;
  }
  static Ints dot4_nibbles(Ints sums, Bytes w, Bytes a) { return dot4(sums, w, a); }

  static Ints splat(std::int32_t value) { return make<Ints>([&](int) { return value; }); }
  static Ints add(Ints a, Ints b) { return make<Ints>([&](int i) { return a[i] + b[i]; }); }
  static Ints subtract(Ints a, Ints b) { return make<Ints>([&](int i) { return a[i] - b[i]; }); }
  static Ints multiply(Ints a, Ints b) { return make<Ints>([&](int i) { return a[i] * b[i]; }); }
  static Ints widen(const std::uint8_t* from) { return make<Ints>([&](int i) { return std::int32_t{from[i]}; }); }
  static Ints widen_signed(const std::uint8_t* from) {
    return make<Ints>([&](int i) { return std::int32_t{static_cast<std::int8_t>(from[i])}; });
  }
  static std::int32_t reduce_add(Ints a) { return a[0] + a[1] + a[2] + a[3]; }

  static Floats splat(float value) { return make<Floats>([&](int) { return value; }); }
  static Floats load(const float* from) { return make<Floats>([&](int i) { return from[i]; }); }
  static void store(float* to, Floats a) { std::copy(a.begin(), a.end(), to); }
  static Floats load_halves(const std::uint8_t* from) {
    std::array<Half, kLanes> halves;
    std::memcpy(halves.data(), from, sizeof halves);
    return make<Floats>([&](int i) { return from_half(halves[i]); });
  }
  static Floats load_bfloat16(const Bfloat16* from) {
    return make<Floats>([&](int i) { return std::bit_cast<float>(std::uint32_t{from[i].bits} << 16); });
  }
  static void store_halves(std::uint16_t* to, Floats a) { std::transform(a.begin(), a.end(), to, to_any_half); }
  static Floats abs(Floats a) { return make<Floats>([&](int i) { return std::fabs(a[i]); }); }
  static Floats add(Floats a, Floats b) { return make<Floats>([&](int i) { return a[i] + b[i]; }); }
  static Floats subtract(Floats a, Floats b) { return make<Floats>([&](int i) { return a[i] - b[i]; }); }
  static Floats divide(Floats a, Floats b) { return make<Floats>([&](int i) { return a[i] / b[i]; }); }
  static Floats max(Floats a, Floats b) { return make<Floats>([&](int i) { return a[i] > b[i] ? a[i] : b[i]; }); }
  static Floats min(Floats a, Floats b) { return make<Floats>([&](int i) { return a[i] < b[i] ? a[i] : b[i]; }); }
  static Floats multiply(Floats a, Floats b) { return make<Floats>([&](int i) { return a[i] * b[i]; }); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return make<Floats>([&](int i) { return a[i] * b[i] + c[i]; }); }
  static float reduce_max(Floats a) { return std::max(std::max(a[0], a[1]), std::max(a[2], a[3])); }
  static float reduce_add(Floats a) { return a[0] + a[1] + a[2] + a[3]; }

  static Floats power_of_two(Ints a) {
    return make<Floats>([&](int i) { return std::bit_cast<float>(static_cast<std::uint32_t>(a[i] + 127) << 23); });
  }
  static void transpose(Floats (&rows)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < i; ++j) std::swap(rows[i][j], rows[j][i]);
    }
  }

  static Floats sums_of_four(Floats a, Floats b, Floats c, Floats d) {
    return {reduce_add(a), reduce_add(b), reduce_add(c), reduce_add(d)};
  }
  static Floats join_sums(const Floats (&fours)[1]) { return fours[0]; }

  static Floats to_floats(Ints a) { return make<Floats>([&](int i) { return static_cast<float>(a[i]); }); }
  // Of numbers that are not numbers, any integer: processors differ, and in C++ the conversion is undefined.
  static Ints round(Floats a) {
    return make<Ints>([&](int i) { return std::isnan(a[i]) ? 0 : static_cast<std::int32_t>(std::nearbyint(a[i])); });
  }
  static void store_narrow(std::int8_t* to, Ints a) { std::copy(a.begin(), a.end(), to); }

 private:
  template <class Lanes, class F>
  static Lanes make(F element) {
    return {element(0), element(1), element(2), element(3)};
  }
};

}  // namespace edgeformer
