// AVX-512 with VNNI: Intel from Ice Lake on, AMD from Zen 4 on.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "../half.h"

namespace edgeformer {

struct Avx512 {
  static constexpr int kLanes = 16, kBytes = 64;
  static constexpr int kTileRows = 12;  // 24 of 32 registers hold sums
  // 12 registers hold sums and 12 results: a store of a whole vector takes the place of two products (AMD Zen 5), and a tile
  // of 12 rows has 24 of them for each block.
  static constexpr int kRowsInRegisters = 6;
  static constexpr int kByteBias = 0;
  using Ints = __m512i;
  using Floats = __m512;
  using Bytes = __m512i;

  static void prefetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }

  static Bytes load_bytes(const std::uint8_t* from) { return _mm512_load_si512(from); }
  static void store_bytes(std::uint8_t* to, Bytes bytes) { _mm512_store_si512(to, bytes); }
  static Bytes broadcast4(const std::int8_t* from) {
    std::int32_t four;
    std::memcpy(&four, from, 4);
    return _mm512_set1_epi32(four);
  }
  static Bytes low_nibbles(Bytes both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
  static Bytes high_nibbles(Bytes both) { return low_nibbles(_mm512_srli_epi16(both, 4)); }
  // Bits that leave a byte come to the next.
  template <int kBits>
  static Bytes shift_up(Bytes bytes) { return _mm512_slli_epi16(bytes, kBits); }
  template <int kBits>
  static Bytes shift_down(Bytes bytes) { return _mm512_srli_epi16(bytes, kBits); }
  // Bits 4 to 7 of one and bits 2 and 3 of the other.
  static Bytes join_six_bits(Bytes upper, Bytes pair) {
    constexpr int kAndOr = 0xea;  // a & b | c
    return _mm512_ternarylogic_epi32(upper, _mm512_set1_epi8(-16), _mm512_and_si512(pair, _mm512_set1_epi8(12)), kAndOr);
  }

  static Ints dot4(Ints sums, Bytes w, Bytes a) { return _mm512_dpbusd_epi32(sums, w, a); }
  static Ints dot4_nibbles(Ints sums, Bytes w, Bytes a) { return dot4(sums, w, a); }

  static void store(std::int32_t* to, Ints a) { _mm512_storeu_si512(to, a); }
  static Ints load(const std::int32_t* from) { return _mm512_loadu_si512(from); }
  static Ints splat(std::int32_t value) { return _mm512_set1_epi32(value); }
  static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
  static Ints multiply(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
  static Ints widen(const std::uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints widen_signed(const std::uint8_t* from) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static std::int32_t reduce_add(Ints a) { return _mm512_reduce_add_epi32(a); }

  static Floats splat(float value) { return _mm512_set1_ps(value); }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
  static Floats load_halves(const std::uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Floats load_bfloat16(const Bfloat16* from) {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
  }
  static void store_halves(std::uint16_t* to, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static Floats abs(Floats a) { return _mm512_abs_ps(a); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static float reduce_max(Floats a) { return _mm512_reduce_max_ps(a); }
  static float reduce_add(Floats a) { return _mm512_reduce_add_ps(a); }

  static Floats power_of_two(Ints a) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(a, _mm512_set1_epi32(127)), 23));
  }
  static void transpose(Floats (&rows)[kLanes]) {
    __m512 pairs[16];
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      for (int j = 0; j < 2; ++j) {
        const __m512d first = _mm512_castps_pd(pairs[i + j]), second = _mm512_castps_pd(pairs[i + j + 2]);
        rows[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
        rows[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
      }
    }
    // Within each quarter of a vector, columns are in place; now quarters change places.
    for (int i = 0; i < 4; ++i) {
      const __m512 first = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
      const __m512 second = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
      const __m512 third = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
      const __m512 fourth = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);
      rows[i] = _mm512_shuffle_f32x4(first, third, 0x88);
      rows[i + 4] = _mm512_shuffle_f32x4(second, fourth, 0x88);
      rows[i + 8] = _mm512_shuffle_f32x4(first, third, 0xdd);
      rows[i + 12] = _mm512_shuffle_f32x4(second, fourth, 0xdd);
    }
  }

  static Floats sums_of_four(Floats a, Floats b, Floats c, Floats d) {
    const __m512d first = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    const __m512d second = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(first, second)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(first, second)));
  }
  static Floats join_sums(const Floats (&fours)[4]) {
    const Floats low = add_quarters(fours[0], fours[1]), high = add_quarters(fours[2], fours[3]);
    return add_quarters(low, high);
  }

  static Ints dot2(Ints sums, Ints a, Ints b) { return _mm512_dpwssd_epi32(sums, a, b); }
  static Ints widen_to_words(const std::int8_t* from) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Ints load_words(const std::int16_t* from) { return _mm512_loadu_si512(from); }
  static void store_words(std::int16_t* to, Ints a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(a));
  }
  static Ints broadcast_pair(const std::int16_t* from) {
    std::int32_t pair;
    std::memcpy(&pair, from, 4);
    return _mm512_set1_epi32(pair);
  }
  static Ints zip_low(Ints a, Ints b) { return _mm512_unpacklo_epi16(a, b); }
  static Ints zip_high(Ints a, Ints b) { return _mm512_unpackhi_epi16(a, b); }
  // Words were zipped within quarters of vectors.
  static void unzip(Ints& low, Ints& high) {
    alignas(64) static constexpr std::int32_t kFirst[16] = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23};
    alignas(64) static constexpr std::int32_t kSecond[16] = {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31};
    const Ints first = _mm512_permutex2var_epi32(low, _mm512_load_si512(kFirst), high);
    high = _mm512_permutex2var_epi32(low, _mm512_load_si512(kSecond), high);
    low = first;
  }
  static Ints sums_of_four(Ints a, Ints b, Ints c, Ints d) {
    const Ints first = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const Ints second = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  }
  static Ints join_sums(const Ints (&fours)[4]) {
    return add_quarters(add_quarters(fours[0], fours[1]), add_quarters(fours[2], fours[3]));
  }

  static Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
  static Ints round(Floats a) { return _mm512_cvtps_epi32(a); }
  // Values from -128 to 127, as bytes.
  static void store_narrow(std::int8_t* to, Ints a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(a));
  }

  static Bytes words_of(Ints first, Ints second, Ints third, Ints fourth) {
    const auto low = [](Ints a) { return _mm512_and_si512(a, _mm512_set1_epi32(255)); };
    const Ints front = _mm512_or_si512(low(first), _mm512_slli_epi32(low(second), 8));
    return _mm512_or_si512(front, _mm512_or_si512(_mm512_slli_epi32(low(third), 16), _mm512_slli_epi32(fourth, 24)));
  }

  static constexpr int kWeights = 64;
  // Packing left words, and then bytes, in quarters of vectors.
  static void store_weights(const float* scores, float largest, const std::uint16_t* thresholds, std::uint8_t* to) {
    alignas(64) static constexpr std::int32_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const Ints first = words_of_weights(scores, largest, thresholds), second = words_of_weights(scores + 32, largest, thresholds + 32);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(_mm512_load_si512(kOrder), _mm512_packus_epi16(first, second)));
  }

 private:
  // 255 e^(score - largest) of 32 scores, as words. Logarithms are in units of 1 / 2,048. 255 · 128 · 2^x of their fraction x is
  // a polynomial in fixed point, which errs by 1.2e-4 of it, and is shifted by their whole part.
  static Ints words_of_weights(const float* scores, float largest, const std::uint16_t* thresholds) {
    constexpr float kUnits = 2048 * 1.44269504f;
    const auto logarithms = [&](const float* of) {
      return _mm512_cvtps_epi32(_mm512_fmadd_ps(_mm512_loadu_ps(of), _mm512_set1_ps(kUnits), _mm512_set1_ps(-kUnits * largest)));
    };
    const Ints packed = _mm512_packs_epi32(logarithms(scores), logarithms(scores + kLanes));
    const Ints logarithm = _mm512_min_epi16(packed, _mm512_set1_epi16(-1));
    const Ints x = _mm512_srli_epi16(_mm512_slli_epi16(logarithm, 5), 1);  // of 15 bits
    Ints power = _mm512_set1_epi16(2555);  // minimax coefficients whose sum is 1, times 255 · 128
    for (short coefficient : {7387, 22698}) power = _mm512_add_epi16(_mm512_mulhrs_epi16(power, x), _mm512_set1_epi16(coefficient));
    power = _mm512_add_epi16(_mm512_mulhrs_epi16(power, x), _mm512_set1_epi16(255 * 128));
    const Ints shift = _mm512_srli_epi16(_mm512_xor_si512(logarithm, _mm512_set1_epi16(-1)), 11);
    const Ints weight = _mm512_srlv_epi16(power, shift);  // times 256
    return _mm512_srli_epi16(_mm512_adds_epu16(weight, _mm512_loadu_si512(thresholds)), 8);
  }

  // Quarters 0 + 1 and 2 + 3 of a, then those of b.
  static Floats add_quarters(Floats a, Floats b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  static Ints add_quarters(Ints a, Ints b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
};

}  // namespace edgeformer
