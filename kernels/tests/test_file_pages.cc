// Pages of a file leave the process and come back as they were; memory without a file is not touched.
#include "file_pages.h"

#include "check.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

using edgeformer::release_file_pages;

namespace {

constexpr std::size_t kPages = 5;
const std::size_t page = sysconf(_SC_PAGESIZE);

// Which pages this process has. (mincore tells what the system has in memory, with or without this process.)
std::vector<bool> present(const std::uint8_t* memory) {
  std::FILE* pagemap = std::fopen("/proc/self/pagemap", "rb");
  CHECK(pagemap != nullptr, "no /proc/self/pagemap");
  std::vector<std::uint64_t> entries(kPages);
  std::fseek(pagemap, reinterpret_cast<std::uintptr_t>(memory) / page * 8, SEEK_SET);
  CHECK(std::fread(entries.data(), 8, kPages, pagemap) == kPages, "pagemap is short");
  std::fclose(pagemap);
  std::vector<bool> here;
  for (std::uint64_t entry : entries) here.push_back(entry >> 63);
  return here;
}

void check_values(const std::uint8_t* memory) {
  for (std::size_t i = 0; i < kPages * page; ++i) CHECK(memory[i] == static_cast<std::uint8_t>(i % 251), "byte %zu", i);
}

void fill(std::uint8_t* memory) {
  for (std::size_t i = 0; i < kPages * page; ++i) memory[i] = i % 251;
}

void* map(int flags, int file) {
  void* memory = mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, flags, file, 0);
  CHECK(memory != MAP_FAILED, "mmap");
  return memory;
}

void check_file() {
  char name[] = "/tmp/test_file_pages.XXXXXX";
  const int file = mkstemp(name);
  CHECK(file >= 0, "%s", name);
  unlink(name);
  std::vector<std::uint8_t> content(kPages * page);
  fill(content.data());
  CHECK(write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size()), "write");
  auto* memory = static_cast<std::uint8_t*>(map(MAP_PRIVATE, file));
  madvise(memory, kPages * page, MADV_RANDOM);  // pages come one by one
  check_values(memory);
  CHECK(present(memory) == std::vector<bool>(kPages, true), "all pages were read");
  release_file_pages(memory + page + 1, 0);
  release_file_pages(memory + page + 1, page);  // no whole page
  CHECK(present(memory) == std::vector<bool>(kPages, true), "parts of pages stay");
  release_file_pages(memory + 1, 3 * page);
  CHECK(present(memory) == (std::vector<bool>{true, false, false, true, true}), "whole pages leave");
  check_values(memory);
  munmap(memory, kPages * page);
  close(file);
}

void check_memory_without_a_file() {
  auto* memory = static_cast<std::uint8_t*>(map(MAP_PRIVATE | MAP_ANONYMOUS, -1));
  fill(memory);
  release_file_pages(memory, kPages * page);
  check_values(memory);
  munmap(memory, kPages * page);
}

}  // namespace

int main() {
  check_file();
  check_memory_without_a_file();
}

#else
int main() {}
#endif
