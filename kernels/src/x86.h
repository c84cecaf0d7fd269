// Which instructions this processor has, and its system saves the registers of, by CPUID: the compiler's own answer,
// __builtin_cpu_supports, is always no where zig links.
#pragma once

#include <cpuid.h>

namespace edgeformer {

struct X86Registers {
  unsigned a, b, c, d;

  bool has_in_b(int bit) const { return b >> bit & 1; }
  bool has_in_c(int bit) const { return c >> bit & 1; }
};

// What CPUID says of a leaf; zeros for one that the processor does not know. Static, as files for other instructions use it.
static inline X86Registers x86_registers(unsigned leaf, unsigned part = 0) {
  X86Registers all{};
  if (!__get_cpuid_count(leaf, part, &all.a, &all.b, &all.c, &all.d)) return {};
  return all;
}

// Whether the system saves these parts of the registers, bits of XCR0.
static inline bool x86_saves(unsigned parts) {
  constexpr int kXsaveIsUsed = 27;
  if (!x86_registers(1).has_in_c(kXsaveIsUsed)) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & parts) == parts;
}

static inline bool x86_has_avx2() {
  constexpr int kFma = 12, kF16c = 29, kAvx2 = 5;
  constexpr unsigned kVectors = 0x6;
  const X86Registers first = x86_registers(1);
  return x86_saves(kVectors) && first.has_in_c(kFma) && first.has_in_c(kF16c) && x86_registers(7).has_in_b(kAvx2);
}

static inline bool x86_has_avx512_vnni() {
  constexpr int kF = 16, kDq = 17, kBw = 30, kVl = 31, kVnni = 11;
  constexpr unsigned kWideVectors = 0xE6;
  const X86Registers found = x86_registers(7);
  return x86_has_avx2() && x86_saves(kWideVectors) && found.has_in_b(kF) && found.has_in_b(kDq) && found.has_in_b(kBw) &&
         found.has_in_b(kVl) && found.has_in_c(kVnni);
}

static inline bool x86_has_avx512_bf16() {
  constexpr int kBf16 = 5;
  return x86_has_avx512_vnni() && (x86_registers(7, 1).a >> kBf16 & 1);
}

static inline bool x86_has_avx_vnni() {
  constexpr int kAvxVnni = 4;
  return x86_has_avx2() && (x86_registers(7, 1).a >> kAvxVnni & 1);
}

}  // namespace edgeformer
