// Sleeping until another thread changes a number.
//
// std::atomic::wait is not used: before it sleeps it calls sched_yield, and Linux takes a share of the processor from
// whoever yields, which beside other programs is lost.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace edgeformer {

using Signal = std::atomic<std::uint32_t>;

// Returns when the number may have changed, at once if it is not `seen`.
inline void sleep_while(const Signal& signal, std::uint32_t seen) {
#if defined(__linux__)
  syscall(SYS_futex, &signal, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
  signal.wait(seen);
#endif
}

inline void wake_all(Signal& signal) {
#if defined(__linux__)
  syscall(SYS_futex, &signal, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  signal.notify_all();
#endif
}

}  // namespace edgeformer
