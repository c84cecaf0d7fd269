// AVX2 with VNNI in 256 bits: Intel from Alder Lake on, without AVX-512.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "avx2.h"

namespace edgeformer {

struct Avx2Vnni : Avx2 {
  static Ints dot4(Ints sums, Bytes w, Bytes a) { return _mm256_dpbusd_avx_epi32(sums, w, a); }
  static Ints dot4_nibbles(Ints sums, Bytes w, Bytes a) { return dot4(sums, w, a); }

  static Ints dot2(Ints sums, Ints a, Ints b) { return _mm256_dpwssd_avx_epi32(sums, a, b); }
  static Ints widen_to_words(const std::int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints load_words(const std::int16_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static void store_words(std::int16_t* to, Ints a) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
  }
  static Ints broadcast_pair(const std::int16_t* from) {
    std::int32_t pair;
    std::memcpy(&pair, from, 4);
    return _mm256_set1_epi32(pair);
  }
  static Ints zip_low(Ints a, Ints b) { return _mm256_unpacklo_epi16(a, b); }
  static Ints zip_high(Ints a, Ints b) { return _mm256_unpackhi_epi16(a, b); }
  // Words were zipped within halves of vectors.
  static void unzip(Ints& low, Ints& high) {
    const Ints first = _mm256_permute2x128_si256(low, high, 0x20);
    high = _mm256_permute2x128_si256(low, high, 0x31);
    low = first;
  }

  static Bytes words_of(Ints first, Ints second, Ints third, Ints fourth) {
    const auto low = [](Ints a) { return _mm256_and_si256(a, _mm256_set1_epi32(255)); };
    const Ints front = _mm256_or_si256(low(first), _mm256_slli_epi32(low(second), 8));
    return _mm256_or_si256(front, _mm256_or_si256(_mm256_slli_epi32(low(third), 16), _mm256_slli_epi32(fourth, 24)));
  }

  static constexpr int kWeights = 32;
  // Packing left words, and then bytes, in halves of vectors.
  static void store_weights(const float* scores, float largest, const std::uint16_t* thresholds, std::uint8_t* to) {
    const Ints first = words_of_weights(scores, largest, thresholds), second = words_of_weights(scores + 16, largest, thresholds + 16);
    const Ints order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    store_bytes(to, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order));
  }

 private:
  // 255 e^(score - largest) of 16 scores, as words. Logarithms are in units of 1 / 2,048. 255 · 128 · 2^x of their fraction x is
  // a polynomial in fixed point, which errs by 1.2e-4 of it, and is multiplied by 2^(15 - n) where their whole part is -1 - n.
  static Ints words_of_weights(const float* scores, float largest, const std::uint16_t* thresholds) {
    constexpr float kUnits = 2048 * 1.44269504f;
    const auto logarithms = [&](const float* of) {
      return _mm256_cvtps_epi32(_mm256_fmadd_ps(_mm256_loadu_ps(of), _mm256_set1_ps(kUnits), _mm256_set1_ps(-kUnits * largest)));
    };
    const Ints packed = _mm256_packs_epi32(logarithms(scores), logarithms(scores + kLanes));
    const Ints logarithm = _mm256_min_epi16(packed, _mm256_set1_epi16(-1));
    const Ints x = _mm256_and_si256(_mm256_slli_epi16(logarithm, 4), _mm256_set1_epi16(0x7ff0));  // of 15 bits
    Ints power = _mm256_set1_epi16(2555);  // minimax coefficients whose sum is 1, times 255 · 128
    for (short coefficient : {7387, 22698}) power = _mm256_add_epi16(_mm256_mulhrs_epi16(power, x), _mm256_set1_epi16(coefficient));
    power = _mm256_add_epi16(_mm256_mulhrs_epi16(power, x), _mm256_set1_epi16(255 * 128));
    const Ints weight = _mm256_slli_epi16(_mm256_mulhi_epu16(power, powers_of_two(logarithm)), 1);  // times 256
    return _mm256_srli_epi16(_mm256_adds_epu16(weight, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(thresholds))), 8);
  }

  // 2^(15 - n) as words, of words whose upper five bits are -1 - n: there is no shift of words by vectors. Upper bytes of these
  // powers are not 0 for n below 8, and lower ones are those of n - 8.
  static Ints powers_of_two(Ints logarithm) {
    const auto twice = [](__m128i of_half) { return _mm256_broadcastsi128_si256(of_half); };
    const Ints bytes = twice(_mm_setr_epi8(-128, 64, 32, 16, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0));
    const Ints upper = twice(_mm_setr_epi8(1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15));
    const Ints whole = _mm256_and_si256(_mm256_srli_epi16(_mm256_shuffle_epi8(logarithm, upper), 3), _mm256_set1_epi8(15));
    return _mm256_shuffle_epi8(bytes, _mm256_xor_si256(whole, _mm256_set1_epi16(0x0f07)));
  }
};

}  // namespace edgeformer
