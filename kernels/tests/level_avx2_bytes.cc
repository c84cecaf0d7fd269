// What AVX2-VNNI does around its own instructions, with those of AVX2 in their place, for the tests: few machines have AVX-VNNI.
#include "simd/avx2_vnni.h"
#include "simd_level.h"
#include "tested_levels.h"
#include "x86.h"

namespace edgeformer {

struct Avx2Bytes : Avx2Vnni {
  static Ints dot4(Ints sums, Bytes w, Bytes a) { return Avx2::dot4(sums, w, a); }
  static Ints dot4_nibbles(Ints sums, Bytes w, Bytes a) { return Avx2::dot4_nibbles(sums, w, a); }
  static Ints dot2(Ints sums, Ints a, Ints b) { return add(sums, _mm256_madd_epi16(a, b)); }
};

constinit const Level kAvx2BytesLevel = level_of<Avx2Bytes>("avx2-bytes", x86_has_avx2);

}  // namespace edgeformer
