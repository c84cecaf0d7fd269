// A team of threads of our own.
//
// Each member is given an equal share of neighbouring chunks, which it takes from the front, so that it reads memory in
// order. A member without chunks left takes them from the end of another's share: a thread that sleeps or was
// descheduled costs no more than the chunk it holds. After a job, members spin for a while, which makes the next start
// cheap, and then sleep. So does the caller while it waits for the others' last chunks.
//
// Where another program takes the processor of a member, that member would be taken with a chunk in hand, and all would
// wait for it. So members sleep at once then: a thread that uses less than its share of a processor gets it as soon as
// it wakes. And they keep off each other's processors. Where other programs want the caller's processor, too, whoever
// sleeps gives away its share, and members spin for a little.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "aligned.h"
#include "parallel.h"
#include "seat.h"
#include "sleep.h"

namespace edgeformer {

class Team final : public Parallel {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Team(int threads);
  ~Team() override;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const override { return threads_; }
  // At most 2^32 - 1 chunks. A call while another thread's job runs does its work by itself. Tasks must not throw.
  void run(std::size_t chunks, Task task) override;

  // The team of this size that the process shares. It is never destroyed: threads may outlive static objects.
  static Team& shared(int threads);

 private:
  struct alignas(kCacheLine) Share {
    std::atomic<std::uint64_t> chunks{0};  // that a member still has: the first in the lower half, the end in the upper
    std::atomic<int> processor{-1};        // where it was last seen beside other programs
  };

  void work(int member);
  void live(int member);
  void work_as_caller();
  void wait_for_others();
  void take_seat(int member, Seat& seat);
  Clock::duration idle_spin() const;
  bool is_crowded() const;
  bool take(Share& from, bool front, std::uint32_t& chunk);

  const int threads_;
  std::mutex one_job_;
  std::unique_ptr<Share[]> shares_;
  std::atomic<const Task*> task_{nullptr};
  std::atomic<std::uint32_t> chunks_{0};
  alignas(kCacheLine) Signal done_{0};
  std::atomic<bool> caller_sleeps_{false};
  alignas(kCacheLine) Signal jobs_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<std::int64_t> crowded_until_{0};  // by the clock: other programs took a member's processor
  std::atomic<bool> caller_is_crowded_{false};  // and, while they do, often the caller's
  Clock::duration caller_time_{}, caller_lacked_{};  // since that was last decided
  std::atomic<bool> quit_{false};
  std::vector<std::thread> others_;
};

}  // namespace edgeformer
