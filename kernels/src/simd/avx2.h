// AVX2 with FMA and F16C: x86 from 2013 on. Its dot4 is made of 16-bit products; Avx2Vnni (avx2_vnni.h) has its own.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "../half.h"

namespace edgeformer {

struct Avx2 {
  static constexpr int kLanes = 8, kBytes = 32;
  static constexpr int kTileRows = 4;  // 8 of 16 registers hold sums
  static constexpr int kByteBias = 0;
  using Ints = __m256i;
  using Floats = __m256;
  using Bytes = __m256i;

  // One cache line holds two vectors of bytes; the second prefetch costs nothing that was measured.
  static void prefetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }

  static Bytes load_bytes(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_bytes(std::uint8_t* to, Bytes bytes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
  }
  static Bytes broadcast4(const std::int8_t* from) {
    std::int32_t four;
    std::memcpy(&four, from, 4);
    return _mm256_set1_epi32(four);
  }
  static Bytes low_nibbles(Bytes both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
  static Bytes high_nibbles(Bytes both) { return low_nibbles(_mm256_srli_epi16(both, 4)); }
  // Bits that leave a byte come to the next.
  template <int kBits>
  static Bytes shift_up(Bytes bytes) { return _mm256_slli_epi16(bytes, kBits); }
  template <int kBits>
  static Bytes shift_down(Bytes bytes) { return _mm256_srli_epi16(bytes, kBits); }
  // Bits 4 to 7 of one and bits 2 and 3 of the other.
  static Bytes join_six_bits(Bytes upper, Bytes pair) {
    return _mm256_or_si256(_mm256_and_si256(upper, _mm256_set1_epi8(-16)), _mm256_and_si256(pair, _mm256_set1_epi8(12)));
  }

  // Even and odd bytes are widened to 16 bits: sums of two products of whole bytes may not fit there.
  static Ints dot4(Ints sums, Bytes w, Bytes a) {
    const __m256i w_even = _mm256_and_si256(w, _mm256_set1_epi16(255)), w_odd = _mm256_srli_epi16(w, 8);
    const __m256i a_even = _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8), a_odd = _mm256_srai_epi16(a, 8);
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(w_even, a_even));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(w_odd, a_odd));
  }
  // Two products of a nibble and a byte fit into 16 bits: 2 * 15 * 128 < 2^15.
  static Ints dot4_nibbles(Ints sums, Bytes w, Bytes a) {
    const __m256i pairs = _mm256_maddubs_epi16(w, a);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }

  static void store(std::int32_t* to, Ints a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a); }
  static Ints load(const std::int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static Ints splat(std::int32_t value) { return _mm256_set1_epi32(value); }
  static Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  static Ints subtract(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
  static Ints multiply(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
  static Ints widen(const std::uint8_t* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints widen_signed(const std::uint8_t* from) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static std::int32_t reduce_add(Ints a) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01001110));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b10110001));
    return _mm_cvtsi128_si32(four);
  }

  static Floats splat(float value) { return _mm256_set1_ps(value); }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
  static Floats load_halves(const std::uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats load_bfloat16(const Bfloat16* from) {
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(numbers), 16));
  }
  static void store_halves(std::uint16_t* to, Floats a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static Floats abs(Floats a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static float reduce_max(Floats a) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
  static float reduce_add(Floats a) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  static Floats power_of_two(Ints a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a, _mm256_set1_epi32(127)), 23));
  }
  static void transpose(Floats (&rows)[kLanes]) {
    __m256 pairs[8];
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      for (int j = 0; j < 2; ++j) {
        const __m256d first = _mm256_castps_pd(pairs[i + j]), second = _mm256_castps_pd(pairs[i + j + 2]);
        rows[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(first, second));
        rows[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(first, second));
      }
    }
    // Within each half of a vector, columns are in place; now halves change places.
    for (int i = 0; i < 4; ++i) {
      const __m256 low = rows[i], high = rows[i + 4];
      rows[i] = _mm256_permute2f128_ps(low, high, 0x20);
      rows[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
  }

  static Floats sums_of_four(Floats a, Floats b, Floats c, Floats d) {
    return _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  }
  static Floats join_sums(const Floats (&fours)[2]) {
    return _mm256_add_ps(_mm256_permute2f128_ps(fours[0], fours[1], 0x20), _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
  }

  static Ints sums_of_four(Ints a, Ints b, Ints c, Ints d) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  }
  static Ints join_sums(const Ints (&fours)[2]) {
    return _mm256_add_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20), _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
  }

  static Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
  static Ints round(Floats a) { return _mm256_cvtps_epi32(a); }
  // Values from -128 to 127, as bytes.
  static void store_narrow(std::int8_t* to, Ints a) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
  }
};

}  // namespace edgeformer
