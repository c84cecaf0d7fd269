// Arrays that begin on a cache line, so that no vector load crosses two.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace edgeformer {

inline constexpr std::size_t kCacheLine = 64;

inline constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct FreeAligned {
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{kCacheLine}); }
};

template <class T>
using AlignedArray = std::unique_ptr<T[], FreeAligned>;

// Elements of a number type, without values: memory that is not written takes none of the system's.
template <class T>
AlignedArray<T> allocate_aligned(std::size_t size) {
  const std::size_t bytes = round_up(size * sizeof(T), kCacheLine);
  return AlignedArray<T>(new (::operator new(bytes, std::align_val_t{kCacheLine})) T[bytes / sizeof(T)]);
}

// Elements are zero.
template <class T>
AlignedArray<T> make_aligned(std::size_t size) {
  AlignedArray<T> array = allocate_aligned<T>(size);
  std::uninitialized_value_construct_n(array.get(), round_up(size * sizeof(T), kCacheLine) / sizeof(T));
  return array;
}

// An array that keeps its memory while it is asked for no more than before: for scratch space of a thread.
template <class T>
class GrowingArray {
 public:
  T* at_least(std::size_t size) {
    if (size > size_) {
      array_ = make_aligned<T>(size);
      size_ = size;
    }
    return array_.get();
  }

 private:
  AlignedArray<T> array_;
  std::size_t size_ = 0;
};

}  // namespace edgeformer
