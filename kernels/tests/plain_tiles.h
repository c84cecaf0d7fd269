// A unit of matrix tiles in plain C++, for the tests of what is written for one: few machines have AMX.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "check.h"
#include "simd/plain.h"

namespace edgeformer {

struct PlainTiles : Plain {
  using Plain::splat;
  static Ints load(const std::int32_t* from) { return {from[0], from[1], from[2], from[3]}; }
  static Floats load(const float* from) { return Plain::load(from); }

  // 16 (w - 8) for 4-bit w.
  static Bytes centred_low_nibbles(Bytes both) { return centred(low_nibbles(both)); }
  static Bytes centred_high_nibbles(Bytes both) { return centred(high_nibbles(both)); }

  static Floats nearest_whole(Floats a) {
    for (float& each : a) each = std::nearbyint(each);
    return a;
  }
  static Floats times_power_of_two(Floats a, Floats whole) {
    for (int i = 0; i < kLanes; ++i) a[i] = std::isnan(whole[i]) ? whole[i] : std::ldexp(a[i], static_cast<int>(whole[i]));
    return a;
  }

  // Pairs of bfloat16, each in the 32 bits of a float.
  static Floats pair_halves(Floats first, Floats second) {
    return {pair(first[0], first[1]), pair(first[2], first[3]), pair(second[0], second[1]), pair(second[2], second[3])};
  }
  static Floats pair_rows(Floats first, Floats second) {
    return {pair(first[0], second[0]), pair(first[1], second[1]), pair(first[2], second[2]), pair(first[3], second[3])};
  }
  static Floats add_pairs(Floats a, Floats b, Floats sums) {
    for (int i = 0; i < kLanes; ++i) sums[i] += product(a[i], b[i]);
    return sums;
  }

  struct Tiles {
    static constexpr int kRows = 16, kWords = 16;

    static void configure(int rows, int words, int columns) {
      CHECK(rows <= kRows && words <= kWords && columns <= 16, "%d rows, %d words, %d columns", rows, words, columns);
      for (int i = 0; i < 8; ++i) {
        tiles()[i] = {i >= 6 ? words : rows, 4 * (i == 4 || i == 5 ? words : columns), {}};
      }
    }
    static void release() {
      for (int i = 0; i < 8; ++i) tiles()[i] = {};
    }

    template <int kTile>
    static void clear() {
      std::memset(in_use(kTile).numbers, 0, sizeof(Tile::numbers));
    }
    template <int kTile>
    static void load(const void* from, std::size_t stride) {
      Tile& tile = in_use(kTile);
      for (int row = 0; row < tile.rows; ++row) {
        std::memcpy(tile.numbers[row], static_cast<const std::byte*>(from) + row * stride, tile.bytes);
      }
    }
    template <int kTile>
    static void store(void* to, std::size_t stride) {
      const Tile& tile = in_use(kTile);
      for (int row = 0; row < tile.rows; ++row) {
        std::memcpy(static_cast<std::byte*>(to) + row * stride, tile.numbers[row], tile.bytes);
      }
    }
    template <int kSums, int kOfRows, int kOfColumns>
    static void add_signed() {
      add<std::int32_t>(in_use(kSums), in_use(kOfRows), in_use(kOfColumns), dot<std::int8_t>);
    }
    template <int kSums, int kOfRows, int kOfColumns>
    static void add_unsigned() {
      add<std::int32_t>(in_use(kSums), in_use(kOfRows), in_use(kOfColumns), dot<std::uint8_t>);
    }
    template <int kSums, int kOfRows, int kOfColumns>
    static void add_pairs() {
      add<float>(in_use(kSums), in_use(kOfRows), in_use(kOfColumns), product);
    }

   private:
    struct Tile {
      int rows, bytes;
      float numbers[16][16];
    };

    static Tile* tiles() {
      static thread_local Tile all[8];
      return all;
    }
    static Tile& in_use(int index) {
      CHECK(tiles()[index].rows > 0, "tile %d is not configured", index);
      return tiles()[index];
    }

    template <class Sum, class F>
    static void add(Tile& sums, const Tile& rows, const Tile& columns, F product_of) {
      for (int row = 0; row < rows.rows; ++row) {
        for (int column = 0; column < columns.bytes / 4; ++column) {
          Sum sum = std::bit_cast<Sum>(sums.numbers[row][column]);
          for (int word = 0; word < columns.rows; ++word) {
            sum += product_of(rows.numbers[row][word], columns.numbers[word][column]);
          }
          sums.numbers[row][column] = std::bit_cast<float>(sum);
        }
      }
    }

    template <class T>
    static std::int32_t dot(float signed_bytes, float bytes) {
      std::int8_t a[4];
      T w[4];
      std::memcpy(a, &signed_bytes, 4);
      std::memcpy(w, &bytes, 4);
      return a[0] * w[0] + a[1] * w[1] + a[2] * w[2] + a[3] * w[3];
    }
  };

 private:
  static Bytes centred(Bytes nibbles) {
    for (auto& byte : nibbles) byte = static_cast<std::uint8_t>((byte - 8) * 16);
    return nibbles;
  }

  // To the nearest, ties to even.
  static std::uint32_t rounded(float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  }
  static float pair(float first, float second) { return std::bit_cast<float>(rounded(first) | rounded(second) << 16); }
  static float product(float a, float b) {
    const std::uint32_t left = std::bit_cast<std::uint32_t>(a), right = std::bit_cast<std::uint32_t>(b);
    return std::bit_cast<float>(left << 16) * std::bit_cast<float>(right << 16) +
           std::bit_cast<float>(left & 0xFFFF0000) * std::bit_cast<float>(right & 0xFFFF0000);
  }
};

}  // namespace edgeformer
