// AVX-512 with VNNI and bfloat16: AMD from Zen 4 on, Intel's Cooper Lake and from Sapphire Rapids on. Its panels are those of
// Avx512.
#pragma once

#include <bit>

#include "avx512.h"

namespace edgeformer {

struct Avx512Bf16 : Avx512 {
  static Floats nearest_whole(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Floats times_power_of_two(Floats a, Floats whole) { return _mm512_scalef_ps(a, whole); }

  static Floats add_pairs(Floats a, Floats b, Floats sums) {
    return _mm512_dpbf16_ps(sums, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
  }
  static Floats pair_halves(Floats first, Floats second) {
    return std::bit_cast<__m512>(_mm512_cvtne2ps_pbh(second, first));
  }
  static Floats pair_rows(Floats first, Floats second) {
    alignas(64) static constexpr std::uint16_t kZipped[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                              8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i numbers = std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kZipped), numbers));
  }
};

}  // namespace edgeformer
