// NEON with i8mm: ARM from 2020 on: Graviton 3, Apple's M2, Cortex-X2 and A510. Its panels are those of Neon.
#pragma once

#include "neon.h"

namespace edgeformer {

struct NeonI8mm : Neon {
  static Ints multiply_pairs(Ints sums, Bytes a, Bytes w) { return vmmlaq_s32(sums, a, w); }

  // Two words of four bytes, twice; and those of two rows.
  static Bytes load_words(const std::int8_t* from) { return load_words(from, from); }
  static Bytes load_words(const std::int8_t* first, const std::int8_t* second) {
    return vcombine_s8(vld1_s8(first), vld1_s8(second));
  }
  static Bytes zip_low_words(Bytes a, Bytes b) {
    return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
  }
  static Bytes zip_high_words(Bytes a, Bytes b) {
    return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
  }
  static Ints join_low(Ints a, Ints b) {
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
  }
  static Ints join_high(Ints a, Ints b) {
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
  }
};

}  // namespace edgeformer
