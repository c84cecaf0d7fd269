// Work that is shared out between threads, whoever owns them.
#pragma once

#include <cstddef>
#include <type_traits>

namespace edgeformer {

// Chunks of work for each thread: enough that one that finishes early finds something to take over.
inline constexpr std::size_t kChunksPerThread = 4;

// A function of a chunk's index. It refers to a callable that outlives it.
class Task {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, Task>)
  explicit Task(const F& function)
      : object_(&function), call_([](const void* object, std::size_t chunk) { (*static_cast<const F*>(object))(chunk); }) {}

  void operator()(std::size_t chunk) const { call_(object_, chunk); }

 private:
  const void* object_;
  void (*call_)(const void*, std::size_t);
};

class Parallel {
 public:
  virtual ~Parallel() = default;
  // Threads that work, the caller's included; a hint for how finely to cut.
  virtual int threads() const = 0;
  // Calls the task once for each chunk from 0 to chunks - 1, and returns when all calls have.
  virtual void run(std::size_t chunks, Task task) = 0;
};

// Runs in the caller's thread.
class Serial final : public Parallel {
 public:
  int threads() const override { return 1; }
  void run(std::size_t chunks, Task task) override {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) task(chunk);
  }
};

}  // namespace edgeformer
