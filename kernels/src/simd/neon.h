// NEON with dotprod: 64-bit ARM from 2018 on: phones, Apple's M1, Raspberry Pi 5.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "../half.h"

namespace edgeformer {

struct Neon {
  static constexpr int kLanes = 4, kBytes = 16;
  static constexpr int kTileRows = 8;  // 16 of 32 registers hold sums
  static constexpr int kByteBias = 128;  // its dot product multiplies signed bytes only
  using Ints = int32x4_t;
  using Floats = float32x4_t;
  using Bytes = int8x16_t;

  static void prefetch(const void* at) { __builtin_prefetch(at); }

  static Bytes load_bytes(const std::uint8_t* from) { return vreinterpretq_s8_u8(vld1q_u8(from)); }
  static void store_bytes(std::uint8_t* to, Bytes bytes) { vst1q_u8(to, vreinterpretq_u8_s8(bytes)); }
  static Bytes broadcast4(const std::int8_t* from) {
    std::int32_t four;
    std::memcpy(&four, from, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static Bytes low_nibbles(Bytes both) { return vandq_s8(both, vdupq_n_s8(15)); }
  static Bytes high_nibbles(Bytes both) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(both), 4)); }
  template <int kBits>
  static Bytes shift_up(Bytes bytes) { return vshlq_n_s8(bytes, kBits); }
  template <int kBits>
  static Bytes shift_down(Bytes bytes) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(bytes), kBits)); }
  // Bits 4 to 7 of one and bits 2 and 3 of the other.
  static Bytes join_six_bits(Bytes upper, Bytes pair) {
    return vbslq_s8(vdupq_n_u8(0xf0), upper, vandq_s8(pair, vdupq_n_s8(12)));
  }

  static Ints dot4(Ints sums, Bytes w, Bytes a) { return vdotq_s32(sums, w, a); }
  static Ints dot4_nibbles(Ints sums, Bytes w, Bytes a) { return dot4(sums, w, a); }
  template <int kWord>
  static Ints dot4_word(Ints sums, Bytes words, Bytes columns) {
    return vdotq_laneq_s32(sums, columns, words, kWord);
  }

  static void store(std::int32_t* to, Ints a) { vst1q_s32(to, a); }
  static Ints load(const std::int32_t* from) { return vld1q_s32(from); }
  static Ints splat(std::int32_t value) { return vdupq_n_s32(value); }
  static Ints add(Ints a, Ints b) { return vaddq_s32(a, b); }
  static Ints subtract(Ints a, Ints b) { return vsubq_s32(a, b); }
  static Ints multiply(Ints a, Ints b) { return vmulq_s32(a, b); }
  static Ints widen(const std::uint8_t* from) {
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(from)))));
  }
  static Ints widen_signed(const std::uint8_t* from) {
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(from)))));
  }
  static std::int32_t reduce_add(Ints a) { return vaddvq_s32(a); }

  static Floats splat(float value) { return vdupq_n_f32(value); }
  static Floats load(const float* from) { return vld1q_f32(from); }
  static void store(float* to, Floats a) { vst1q_f32(to, a); }
  static Floats load_halves(const std::uint8_t* from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
  }
  static Floats load_bfloat16(const Bfloat16* from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(from)), 16));
  }
  static void store_halves(std::uint16_t* to, Floats a) { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
  static Floats abs(Floats a) { return vabsq_f32(a); }
  static Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
  static Floats subtract(Floats a, Floats b) { return vsubq_f32(a, b); }
  static Floats divide(Floats a, Floats b) { return vdivq_f32(a, b); }
  static Floats max(Floats a, Floats b) { return vmaxq_f32(a, b); }
  static Floats min(Floats a, Floats b) { return vminq_f32(a, b); }
  static Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  static float reduce_max(Floats a) { return vmaxvq_f32(a); }
  static float reduce_add(Floats a) { return vaddvq_f32(a); }

  static Floats power_of_two(Ints a) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(a, vdupq_n_s32(127)), 23));
  }
  static void transpose(Floats (&rows)[kLanes]) {
    const float32x4x2_t first = vtrnq_f32(rows[0], rows[1]), second = vtrnq_f32(rows[2], rows[3]);
    for (int i = 0; i < 2; ++i) {
      rows[i] = vcombine_f32(vget_low_f32(first.val[i]), vget_low_f32(second.val[i]));
      rows[i + 2] = vcombine_f32(vget_high_f32(first.val[i]), vget_high_f32(second.val[i]));
    }
  }

  static Floats sums_of_four(Floats a, Floats b, Floats c, Floats d) {
    return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
  }
  static Floats join_sums(const Floats (&fours)[1]) { return fours[0]; }

  static Ints sums_of_four(Ints a, Ints b, Ints c, Ints d) { return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)); }
  static Ints join_sums(const Ints (&fours)[1]) { return fours[0]; }

  static Floats to_floats(Ints a) { return vcvtq_f32_s32(a); }
  static Ints round(Floats a) { return vcvtnq_s32_f32(a); }
  // Values from -128 to 127, as bytes.
  static void store_narrow(std::int8_t* to, Ints a) {
    const int16x4_t words = vqmovn_s32(a);
    const int32x2_t four = vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words)));
    const std::int32_t bytes = vget_lane_s32(four, 0);
    std::memcpy(to, &bytes, 4);
  }

  static Bytes words_of(Ints first, Ints second, Ints third, Ints fourth) {
    return vreinterpretq_s8_s32(vsliq_n_s32(vsliq_n_s32(vsliq_n_s32(first, second, 8), third, 16), fourth, 24));
  }

  static constexpr int kWeights = 16;
  static void store_weights(const float* scores, float largest, const std::uint16_t* thresholds, std::uint8_t* to) {
    const uint8x16_t first = words_of_weights(scores, largest, thresholds), second = words_of_weights(scores + 8, largest, thresholds + 8);
    vst1q_u8(to, veorq_u8(vuzp2q_u8(first, second), vdupq_n_u8(kByteBias)));
  }

 private:
  // 255 e^(score - largest) of 8 scores, as the upper bytes of words. Logarithms are in units of 1 / 2,048, and 1 is added to them.
  // 255 · 128 · 2^x of their fraction x is a polynomial in fixed point, which errs by 1.2e-4 of it, and is shifted by their whole part.
  static uint8x16_t words_of_weights(const float* scores, float largest, const std::uint16_t* thresholds) {
    constexpr float kUnits = 2048 * 1.44269504f;
    const auto logarithms = [&](const float* of) {
      return vqmovn_s32(round(vfmaq_f32(vdupq_n_f32(2048 - kUnits * largest), vld1q_f32(of), vdupq_n_f32(kUnits))));
    };
    const int16x8_t logarithm = vminq_s16(vcombine_s16(logarithms(scores), logarithms(scores + kLanes)), vdupq_n_s16(2047));
    const int16x8_t x = vandq_s16(vshlq_n_s16(logarithm, 4), vdupq_n_s16(0x7ff0));  // of 15 bits
    int16x8_t power = vdupq_n_s16(2555);  // minimax coefficients whose sum is 1, times 255 · 128
    for (short coefficient : {7387, 22698}) power = vaddq_s16(vqrdmulhq_s16(power, x), vdupq_n_s16(coefficient));
    const uint16x8_t whole = vreinterpretq_u16_s16(vaddq_s16(vqrdmulhq_s16(power, x), vdupq_n_s16(255 * 128)));
    const uint16x8_t weight = vshlq_u16(whole, vshrq_n_s16(logarithm, 11));  // times 256
    return vreinterpretq_u8_u16(vqaddq_u16(weight, vld1q_u16(thresholds)));
  }

  static uint8x8_t four_bytes(const std::uint8_t* from) {
    std::uint32_t four;
    std::memcpy(&four, from, 4);
    return vreinterpret_u8_u32(vdup_n_u32(four));
  }
};

}  // namespace edgeformer
