#include "file_pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#endif

namespace edgeformer {

#if defined(__linux__)

// The same advice empties pages of memory that has no file, so the system is asked which is which.
void release_file_pages(const void* memory, std::size_t bytes) {
  const std::uintptr_t page = sysconf(_SC_PAGESIZE), from = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (from + page - 1) / page * page, last = (from + bytes) / page * page;
  if (first >= last) return;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // begin-end permissions offset device inode [path], by increasing address
    std::uintptr_t begin, end;
    unsigned long long inode;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %llu", &begin, &end, &inode) != 3) continue;
    if (begin >= last) return;
    begin = std::max(begin, first);
    end = std::min(end, last);
    if (inode != 0 && begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

#else

void release_file_pages(const void*, std::size_t) {}

#endif

}  // namespace edgeformer
