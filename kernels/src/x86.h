// Which instructions this processor has, and its system saves the registers of, by CPUID: the compiler's own answer,
// __builtin_cpu_supports, is always no where zig links.
#pragma once

#include <cpuid.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace edgeformer {

struct X86Registers {
  unsigned a, b, c, d;

  bool has_in_b(int bit) const { return b >> bit & 1; }
  bool has_in_c(int bit) const { return c >> bit & 1; }
  bool has_in_d(int bit) const { return d >> bit & 1; }
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

// On Intel's processors an instruction for pairs of bfloat16 takes longer than the two multiply-adds that it stands for: a
// prompt's attention reached 88 instead of 124 · 10⁹ operations a second (Sapphire Rapids or later, one core, 2026-11-28).
static inline bool x86_has_fast_bf16() {
  constexpr unsigned kEndOfGenuineIntel = 0x6C65746E;
  return x86_registers(0).c != kEndOfGenuineIntel;
}

static inline bool x86_has_avx512_bf16() {
  constexpr int kBf16 = 5;
  return x86_has_avx512_vnni() && (x86_registers(7, 1).a >> kBf16 & 1);
}

// Whether this process may use the registers of AMX. Linux wants to be asked, once for all threads, since it then saves 8 KB
// more of each (Documentation/arch/x86/xstate.rst). Other systems are not asked: nobody has tried them.
static inline bool x86_may_use_tiles() {
#if defined(__linux__)
  constexpr unsigned kTiles = 0x60000;  // their configuration and their numbers
  constexpr long kRequestPermission = 0x1023, kOfNumbers = 18;
  return x86_saves(kTiles) && syscall(SYS_arch_prctl, kRequestPermission, kOfNumbers) == 0;
#else
  return false;
#endif
}

static inline bool x86_has_amx() {
  constexpr int kBf16 = 22, kTile = 24, kInt8 = 25;
  const X86Registers found = x86_registers(7);
  return x86_has_avx512_bf16() && found.has_in_d(kBf16) && found.has_in_d(kTile) && found.has_in_d(kInt8) &&
         x86_may_use_tiles();
}

static inline bool x86_has_avx_vnni() {
  constexpr int kAvxVnni = 4;
  return x86_has_avx2() && (x86_registers(7, 1).a >> kAvxVnni & 1);
}

}  // namespace edgeformer
