// AVX2 with VNNI in 256 bits: Intel from Alder Lake on, without AVX-512.
#pragma once

#include "avx2.h"

namespace edgeformer {

struct Avx2Vnni : Avx2 {
  static Ints dot4(Ints sums, Bytes w, Bytes a) { return _mm256_dpbusd_avx_epi32(sums, w, a); }
  static Ints dot4_nibbles(Ints sums, Bytes w, Bytes a) { return dot4(sums, w, a); }
};

}  // namespace edgeformer
