// AMX beside AVX-512 with bfloat16: Intel from Sapphire Rapids on. Its panels are those of Avx512.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../aligned.h"
#include "avx512_bf16.h"

namespace edgeformer {

struct Amx : Avx512Bf16 {
  // 16 (w - 8) for 4-bit w: the nibble above, with its first bit inverted.
  static Bytes centred_low_nibbles(Bytes both) { return centred_high_nibbles(_mm512_slli_epi16(both, 4)); }
  static Bytes centred_high_nibbles(Bytes both) {
    constexpr int kFirstAndSecondXorThird = 0x6A;
    return _mm512_ternarylogic_epi32(both, _mm512_set1_epi8(-16), _mm512_set1_epi8(-128), kFirstAndSecondXorThird);
  }

  // The unit of matrix tiles (tile_products.h).
  struct Tiles {
    static constexpr int kRows = 16, kWords = 16;

    static void configure(int rows, int words, int columns) {
      struct alignas(kCacheLine) {
        std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
        std::uint16_t row_bytes[16] = {};
        std::uint8_t rows[16] = {};
      } all;
      for (int i = 0; i < 8; ++i) {
        const bool is_of_rows = i == 4 || i == 5, is_of_columns = i >= 6;
        all.rows[i] = static_cast<std::uint8_t>(is_of_columns ? words : rows);
        all.row_bytes[i] = static_cast<std::uint16_t>(4 * (is_of_rows ? words : columns));
      }
      _tile_loadconfig(&all);
    }
    static void release() { _tile_release(); }

    template <int kTile>
    static void clear() {
      _tile_zero(kTile);
    }
    template <int kTile>
    static void load(const void* from, std::size_t stride) {
      _tile_loadd(kTile, from, stride);
    }
    template <int kTile>
    static void store(void* to, std::size_t stride) {
      _tile_stored(kTile, to, stride);
    }
    template <int kSums, int kOfRows, int kOfColumns>
    static void add_signed() {
      _tile_dpbssd(kSums, kOfRows, kOfColumns);
    }
    template <int kSums, int kOfRows, int kOfColumns>
    static void add_unsigned() {
      _tile_dpbsud(kSums, kOfRows, kOfColumns);
    }
    template <int kSums, int kOfRows, int kOfColumns>
    static void add_pairs() {
      _tile_dpbf16ps(kSums, kOfRows, kOfColumns);
    }
  };
};

}  // namespace edgeformer
