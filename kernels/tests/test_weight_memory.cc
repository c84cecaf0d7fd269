// Arrays of weights do not overlap, keep what is written while others are freed, and give their memory back.
#include "weight_memory.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "sanitized.h"

#if defined(__linux__)
#include <unistd.h>
#endif

using edgeformer::allocate_weights;
using edgeformer::WeightMemory;

namespace {

struct Array {
  WeightMemory memory;
  std::size_t bytes;
  std::uint8_t value;
};

Array filled(std::size_t bytes, std::uint8_t value) {
  Array array{allocate_weights(bytes), bytes, value};
  CHECK(reinterpret_cast<std::uintptr_t>(array.memory.get()) % 64 == 0, "%zu bytes begin at a cache line", bytes);
  std::fill_n(array.memory.get(), bytes, value);
  return array;
}

void check_values(const Array& array) {
  const auto is_other = [&](std::uint8_t byte) { return byte != array.value; };
  CHECK(std::none_of(array.memory.get(), array.memory.get() + array.bytes, is_other), "%zu bytes", array.bytes);
}

// Arrays of all sizes come and go.
void check_history(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Array> arrays;
  for (int step = 0; step < 400; ++step) {
    if (arrays.size() < 12 || random() % 3 > 0) {
      arrays.push_back(filled(random() % (1u << (4 + random() % 18)), static_cast<std::uint8_t>(step)));
    } else {
      std::swap(arrays[random() % arrays.size()], arrays.back());
      check_values(arrays.back());
      arrays.pop_back();
    }
  }
  for (const Array& array : arrays) check_values(array);
}

#if defined(__linux__)

std::size_t resident_bytes() {
  std::FILE* statm = std::fopen("/proc/self/statm", "r");
  CHECK(statm != nullptr, "no /proc/self/statm");
  unsigned long all = 0, resident = 0;
  CHECK(std::fscanf(statm, "%lu %lu", &all, &resident) == 2, "statm");
  std::fclose(statm);
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Of half of the arrays, while the others stay, then of these, and of arrays that are alone.
void check_memory_goes_back() {
  constexpr std::size_t kBytes = 3 << 20, kArrays = 60;
  const std::size_t before = resident_bytes();
  std::vector<Array> arrays;
  for (std::size_t i = 0; i < kArrays; ++i) arrays.push_back(filled(kBytes, static_cast<std::uint8_t>(i)));
  CHECK(resident_bytes() - before < kArrays * kBytes + (16 << 20), "as much is taken as was asked for");
  for (std::size_t i = 0; i < kArrays; i += 2) arrays[i].memory.reset();
  for (std::size_t i = 1; i < kArrays; i += 2) check_values(arrays[i]);
  CHECK(resident_bytes() - before < kArrays * kBytes * 6 / 10, "half of it was freed");
  arrays.clear();
  for (int i = 0; i < 20; ++i) check_values(filled(kBytes, 1));
  // An emulator keeps 15 MB for itself.
  CHECK(resident_bytes() < before + (24 << 20), "all of it was freed");
}

#else

void check_memory_goes_back() {}

#endif

}  // namespace

int main() {
  check_history(1);
  std::vector<std::thread> threads;
  for (unsigned seed = 2; seed < 6; ++seed) threads.emplace_back(check_history, seed);
  for (std::thread& thread : threads) thread.join();
  const Array large = filled((100 << 20) + 1, 7), none = filled(0, 0);
  check_values(large);
  if (!edgeformer::kSanitized) check_memory_goes_back();
  std::puts("memory of weights is right");
}
