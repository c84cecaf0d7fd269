// Which processors a thread may run on.
//
// Members of a team that sleep between jobs use less than a processor each, and Linux then likes to put two of them on
// one: they take turns there, and the other processor is left to another program.
#pragma once

#if defined(__linux__)
#include <sched.h>
#endif

namespace edgeformer {

// Processors by the system's numbers; numbers beyond the set's size are left out of it.
class Processors {
 public:
#if defined(__linux__)
  Processors() { CPU_ZERO(&set_); }
  void add(int processor) {
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_SET(processor, &set_);
  }
  bool has(int processor) const { return processor >= 0 && processor < CPU_SETSIZE && CPU_ISSET(processor, &set_); }

 private:
  friend class Seat;
  cpu_set_t set_;
#else
  void add(int) {}
  bool has(int) const { return false; }
#endif
};

// The processors of the thread that owns this object: those that it was given, less those that it keeps off.
class Seat {
 public:
#if defined(__linux__)
  static constexpr bool kCanMove = true;
  static int processor() { return sched_getcpu(); }

  // Moves this thread away from these processors if it is on one of them and has others.
  void keep_off(const Processors& taken) {
    if (!taken.has(processor())) return;
    if (!moved_ && sched_getaffinity(0, sizeof given_, &given_) != 0) return;
    cpu_set_t rest;
    CPU_AND(&rest, &given_, &taken.set_);
    CPU_XOR(&rest, &given_, &rest);
    if (CPU_COUNT(&rest) > 0 && sched_setaffinity(0, sizeof rest, &rest) == 0) moved_ = true;
  }

  // Lets this thread run again wherever it was allowed to.
  void leave() {
    if (moved_ && sched_setaffinity(0, sizeof given_, &given_) == 0) moved_ = false;
  }

 private:
  cpu_set_t given_;
  bool moved_ = false;
#else
  static constexpr bool kCanMove = false;
  static int processor() { return -1; }
  void keep_off(const Processors&) {}
  void leave() {}
#endif
};

}  // namespace edgeformer
