#include "team.h"

#include <chrono>
#include <ctime>
#include <map>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace edgeformer {
namespace {

using Clock = Team::Clock;

// How long a member waits for the next job before it sleeps. It bridges the Python code between two decode steps.
constexpr auto kSpin = std::chrono::milliseconds(1);

// The same while other programs take processors from members and caller: what a member spins, it lacks for its chunks.
constexpr auto kCrowdedSpin = std::chrono::microseconds(50);

// How long it is taken for granted that others still do.
constexpr auto kCrowdedFor = std::chrono::milliseconds(100);

// Time that a thread lacks if others had its processor: more than interrupts take.
constexpr auto kTaken = std::chrono::microseconds(300);

// How often a member looks whether it lacks time: reading its own costs a call of the system.
constexpr auto kLook = std::chrono::milliseconds(1);

// Work of the caller after which it is decided whether others often have its processor: some of their turns.
constexpr auto kCallerLook = std::chrono::milliseconds(10);

// How long the caller waits for the others' last chunks before it sleeps, while other programs take processors.
constexpr auto kCallerSpin = std::chrono::microseconds(100);

// How often the clock is read while spinning.
constexpr int kSpinsPerLook = 256;

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long this thread has had a processor; nothing where the system does not say.
Clock::duration thread_time() {
#if defined(__linux__) || defined(__APPLE__)
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
#else
  return Clock::now().time_since_epoch();  // as if it always had
#endif
}

// Spins until is_over() or for this long; returns whether it is over.
template <class Condition>
bool spin(Clock::duration longest, const Condition& is_over) {
  const auto since = Clock::now();
  for (;;) {
    for (int turn = 0; turn < kSpinsPerLook; ++turn, pause()) {
      if (is_over()) return true;
    }
    if (Clock::now() - since > longest) return false;
  }
}

// What a thread got of the time that passes: less than all where other programs want its processor.
class Presence {
 public:
  // Time counts from now on: the thread was asleep before.
  void woke() { since_ = Clock::now(), used_ = thread_time(); }

  Clock::duration passed() const { return Clock::now() - since_; }
  Clock::duration lacked() const { return passed() - (thread_time() - used_); }

  // Whether its processor was taken from it since the last look; false where that was just now.
  bool was_taken() {
    const Clock::duration passed = this->passed();
    if (passed < kLook) return false;
    const Clock::duration taken = lacked();
    woke();
    return taken > kTaken && taken > passed / 32;
  }

 private:
  Clock::time_point since_ = Clock::now();
  Clock::duration used_ = thread_time();
};

Clock::rep now() { return Clock::now().time_since_epoch().count(); }

}  // namespace

Team::Team(int threads) : threads_(threads), shares_(std::make_unique<Share[]>(threads)) {
  for (int member = 1; member < threads; ++member) others_.emplace_back([this, member] { live(member); });
}

Team::~Team() {
  quit_ = true;
  ++jobs_;
  wake_all(jobs_);
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
  chunks_.store(static_cast<std::uint32_t>(chunks), std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  for (int member = 0; member < threads_; ++member) {
    const std::uint64_t first = chunks * member / threads_, end = chunks * (member + 1) / threads_;
    shares_[member].chunks.store(end << 32 | first, std::memory_order_release);
  }
  ++jobs_;
  if (sleepers_ > 0) wake_all(jobs_);
  work_as_caller();
  wait_for_others();
}

void Team::work_as_caller() {
  if (!is_crowded()) return work(0);
  shares_[0].processor.store(Seat::processor(), std::memory_order_relaxed);
  const Presence presence;
  work(0);
  caller_time_ += presence.passed(), caller_lacked_ += presence.lacked();
  if (caller_time_ < kCallerLook) return;
  caller_is_crowded_ = caller_lacked_ > caller_time_ / 4;
  caller_time_ = caller_lacked_ = {};
}

void Team::wait_for_others() {
  const std::uint32_t chunks = chunks_.load(std::memory_order_relaxed);
  const auto are_done = [&] { return done_.load(std::memory_order_acquire) == chunks; };
  if (spin(kCallerSpin, are_done) || (!is_crowded() && spin(kSpin - kCallerSpin, are_done))) return;
  caller_sleeps_ = true;  // before the count is read: whoever counts the last chunk afterwards sees it
  for (std::uint32_t done; (done = done_) != chunks;) sleep_while(done_, done);
  caller_sleeps_ = false;
}

void Team::work(int member) {
  std::uint32_t chunk;
  for (int turn = 0; turn < threads_; ++turn) {
    Share& share = shares_[(member + turn) % threads_];
    while (take(share, turn == 0, chunk)) {
      const std::uint32_t chunks = chunks_.load(std::memory_order_relaxed);
      (*task_.load(std::memory_order_relaxed))(chunk);
      if (++done_ == chunks && caller_sleeps_) wake_all(done_);
    }
  }
}

bool Team::is_crowded() const { return now() < crowded_until_.load(std::memory_order_relaxed); }

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

// Lower members have the right of way, the caller first of all.
void Team::take_seat(int member, Seat& seat) {
  const std::int64_t since = now() - crowded_until_.load(std::memory_order_relaxed);
  if (since > Clock::duration(kCrowdedFor).count()) return seat.leave();
  if (since > 0 || caller_is_crowded_) return;
  Processors taken;
  for (int lower = 0; lower < member; ++lower) taken.add(shares_[lower].processor.load(std::memory_order_relaxed));
  seat.keep_off(taken);
  shares_[member].processor.store(Seat::processor(), std::memory_order_relaxed);
}

Clock::duration Team::idle_spin() const {
  if (!is_crowded()) return kSpin;
  return Seat::kCanMove && !caller_is_crowded_ ? Clock::duration::zero() : kCrowdedSpin;
}

void Team::live(int member) {
  Presence presence;
  Seat seat;
  for (std::uint32_t seen = 0; !quit_;) {
    take_seat(member, seat);
    work(member);
    if (presence.was_taken()) crowded_until_ = now() + Clock::duration(kCrowdedFor).count();
    if (!spin(idle_spin(), [&] { return jobs_.load(std::memory_order_acquire) != seen; })) {
      ++sleepers_;
      while (jobs_ == seen) sleep_while(jobs_, seen);
      --sleepers_;
      presence.woke();
    }
    seen = jobs_;
  }
}

}  // namespace edgeformer
