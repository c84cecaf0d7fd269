#include "weight_memory.h"

#include <algorithm>
#include <new>

#include "aligned.h"
#include "sanitized.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>
#endif

namespace edgeformer {
namespace {

#if defined(__linux__)

// The huge page of systems whose pages have 4 KB; those of others are so large that most of one would be left over.
constexpr std::size_t kHugePage = 2 << 20, kPageOfHuge = 4 << 10;

// Addresses that are asked for at once, or as many as there are already: the system gives memory to those that are written, but
// for the last huge page of a chunk, which is left over in part.
constexpr std::size_t kLeastChunk = 64 << 20;

// Addresses of arrays that lie side by side.
struct Chunk {
  std::uint8_t *mapped, *next, *end;
  std::size_t arrays;
};

std::uint8_t* up_to(std::uint8_t* memory, std::size_t multiple) {
  return reinterpret_cast<std::uint8_t*>(round_up(reinterpret_cast<std::uintptr_t>(memory), multiple));
}

class Chunks {
 public:
  std::uint8_t* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto has_room = [&](const Chunk& chunk) { return static_cast<std::size_t>(chunk.end - chunk.next) >= bytes; };
    auto chunk = std::find_if(chunks_.begin(), chunks_.end(), has_room);
    if (chunk == chunks_.end()) {
      std::size_t size = 0;
      for (const Chunk& each : chunks_) size += each.end - each.mapped;
      chunk = chunks_.insert(chunk, map(std::max({size, kLeastChunk, round_up(bytes, kHugePage)})));
    }
    ++chunk->arrays;
    return std::exchange(chunk->next, chunk->next + bytes);
  }

  void give_back(std::uint8_t* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto has_it = [&](const Chunk& chunk) { return chunk.mapped <= memory && memory < chunk.end; };
    const auto chunk = std::find_if(chunks_.begin(), chunks_.end(), has_it);
    if (--chunk->arrays == 0) {
      munmap(chunk->mapped, chunk->end - chunk->mapped);
      chunks_.erase(chunk);
      return;
    }
    std::uint8_t *first = up_to(memory, page_), *last = up_to(memory + bytes - page_ + 1, page_);
    if (first < last) madvise(first, last - first, MADV_DONTNEED);
  }

 private:
  Chunk map(std::size_t bytes) const {
    void* memory = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    auto* mapped = static_cast<std::uint8_t*>(memory);
    // The advice may be refused, where the system knows no huge pages.
    if (page_ == kPageOfHuge) madvise(memory, bytes + kHugePage, MADV_HUGEPAGE);
    return {mapped, up_to(mapped, kHugePage), mapped + bytes + kHugePage, 0};
  }

  const std::size_t page_ = sysconf(_SC_PAGESIZE);
  std::mutex mutex_;
  std::vector<Chunk> chunks_;
};

// It is never destroyed: sessions may be closed while the process ends.
Chunks& chunks() {
  static Chunks& all = *new Chunks;
  return all;
}

std::uint8_t* take(std::size_t bytes) {
  return kSanitized ? allocate_aligned<std::uint8_t>(bytes).release() : chunks().take(bytes);
}

void give_back(std::uint8_t* memory, std::size_t bytes) {
  kSanitized ? FreeAligned()(memory) : chunks().give_back(memory, bytes);
}

#else

std::uint8_t* take(std::size_t bytes) { return allocate_aligned<std::uint8_t>(bytes).release(); }

void give_back(std::uint8_t* memory, std::size_t) { FreeAligned()(memory); }

#endif

}  // namespace

WeightMemory allocate_weights(std::size_t bytes) {
  const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1), kCacheLine);
  return WeightMemory(take(whole), {whole});
}

void FreeWeights::operator()(std::uint8_t* memory) const { give_back(memory, bytes); }

}  // namespace edgeformer
