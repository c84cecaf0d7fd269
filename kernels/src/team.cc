#include "team.h"

#include <chrono>
#include <map>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace edgeformer {
namespace {

using Clock = std::chrono::steady_clock;

// How long a member waits for the next job before it sleeps. It bridges the Python code between two decode steps.
constexpr auto kSpin = std::chrono::milliseconds(1);

// How often the clock is read while spinning.
constexpr int kSpinsPerLook = 256;

// How often the caller looks for the others' last chunks, some 0.1 ms, before it offers its core to them.
constexpr int kSpinsBeforeYield = 4096;

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int threads) : threads_(threads), shares_(std::make_unique<Share[]>(threads)) {
  for (int member = 1; member < threads; ++member) others_.emplace_back([this, member] { live(member); });
}

Team::~Team() {
  quit_ = true;
  ++jobs_;
  jobs_.notify_all();
  for (std::thread& other : others_) other.join();
}

Team& Team::shared(int threads) {
  static std::mutex mutex;
  static auto& teams = *new std::map<int, Team*>;
  const std::lock_guard lock(mutex);
  Team*& team = teams[threads];
  if (team == nullptr) team = new Team(threads);
  return *team;
}

void Team::run(std::size_t chunks, Task task) {
  const std::unique_lock lock(one_job_, std::try_to_lock);
  if (!lock || threads_ == 1 || chunks < 2) return Serial().run(chunks, task);
  // A chunk that is taken holds its job open, so whoever takes one reads this job's task and adds to its count.
  task_.store(&task, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  for (int member = 0; member < threads_; ++member) {
    const std::uint64_t first = chunks * member / threads_, end = chunks * (member + 1) / threads_;
    shares_[member].chunks.store(end << 32 | first, std::memory_order_release);
  }
  ++jobs_;
  if (sleepers_ > 0) jobs_.notify_all();
  work(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != chunks; ++spins) {
    spins < kSpinsBeforeYield ? pause() : std::this_thread::yield();
  }
}

void Team::work(int member) {
  std::uint32_t chunk;
  for (int turn = 0; turn < threads_; ++turn) {
    Share& share = shares_[(member + turn) % threads_];
    while (take(share, turn == 0, chunk)) {
      (*task_.load(std::memory_order_relaxed))(chunk);
      done_.fetch_add(1, std::memory_order_release);
    }
  }
}

bool Team::take(Share& from, bool front, std::uint32_t& chunk) {
  std::uint64_t chunks = from.chunks.load(std::memory_order_acquire);
  for (;;) {
    const std::uint32_t first = static_cast<std::uint32_t>(chunks), end = static_cast<std::uint32_t>(chunks >> 32);
    if (first >= end) return false;
    const std::uint64_t left = front ? chunks + 1 : chunks - (std::uint64_t{1} << 32);
    if (from.chunks.compare_exchange_weak(chunks, left, std::memory_order_acq_rel, std::memory_order_acquire)) {
      chunk = front ? first : end - 1;
      return true;
    }
  }
}

void Team::live(int member) {
  for (int seen = 0; !quit_;) {
    work(member);
    const auto idle_since = Clock::now();
    while (jobs_.load(std::memory_order_acquire) == seen) {
      for (int spin = 0; spin < kSpinsPerLook && jobs_.load(std::memory_order_acquire) == seen; ++spin) pause();
      if (Clock::now() - idle_since > kSpin) {
        ++sleepers_;
        jobs_.wait(seen);
        --sleepers_;
      }
    }
    seen = jobs_;
  }
}

}  // namespace edgeformer
