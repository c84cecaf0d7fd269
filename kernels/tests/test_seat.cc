// A thread leaves the processors that it is to keep off, unless it has no other, and gets back what it was given.
#include "seat.h"

#include <thread>

#include "check.h"

using namespace edgeformer;

int main() {
#if defined(__linux__)
  std::thread([] {
    cpu_set_t given, now;
    sched_getaffinity(0, sizeof given, &given);
    const bool has_choice = CPU_COUNT(&given) > 1;
    Processors mine, all;
    const int processor = Seat::processor();
    mine.add(processor), mine.add(-1), mine.add(CPU_SETSIZE);
    for (int any = 0; any < CPU_SETSIZE; ++any) all.add(any);
    CHECK(mine.has(processor) && !mine.has(processor + 1) && !mine.has(-1) && !mine.has(CPU_SETSIZE), "a set's processors");

    Seat seat;
    seat.keep_off(all);
    sched_getaffinity(0, sizeof now, &now);
    CHECK(CPU_EQUAL(&given, &now), "a thread without another processor stays");
    Processors none;
    seat.keep_off(none);
    sched_getaffinity(0, sizeof now, &now);
    CHECK(CPU_EQUAL(&given, &now), "nothing to keep off");

    int left = processor;
    for (int turn = 0; turn < 1000 && CPU_EQUAL(&given, &now); ++turn) {  // the system may move it just before
      Processors here;
      here.add(left = Seat::processor());
      seat.keep_off(here);
      sched_getaffinity(0, sizeof now, &now);
    }
    CHECK(!has_choice || (!CPU_ISSET(left, &now) && Seat::processor() != left), "still on processor %d", left);
    for (int turn = 0; turn < 3; ++turn) {
      Processors here;
      here.add(Seat::processor());
      seat.keep_off(here);
    }
    seat.leave();
    sched_getaffinity(0, sizeof now, &now);
    CHECK(CPU_EQUAL(&given, &now), "what was given comes back after several moves");
  }).join();
#else
  Seat().keep_off(Processors());
#endif
}
